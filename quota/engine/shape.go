package engine

import (
	"sort"
	"strconv"
)

// shape is what a workload asks for. Equal workloads share one, so that a
// backlog of a hundred thousand like jobs costs one shape, one plan a queue and
// one trial.
type shape struct {
	key  string
	sets []PodSet
	refs int
	// fault is why no queue can take it, "" if none.
	fault string
}

// shapeOf returns the shared shape of pod sets, which it copies.
func (e *Engine) shapeOf(sets []PodSet) *shape {
	e.keyBuffer = appendShapeKey(e.keyBuffer[:0], sets)
	if s, ok := e.shapes[string(e.keyBuffer)]; ok {
		s.refs++
		return s
	}
	s := &shape{key: string(e.keyBuffer), sets: copySets(sets), refs: 1}
	s.fault = faultOf(s.sets)
	e.shapes[s.key] = s
	return s
}

func (e *Engine) dropShape(s *shape) {
	if s == nil {
		return
	}
	if s.refs--; s.refs == 0 {
		delete(e.shapes, s.key)
	}
}

// faultOf finds what makes pod sets senseless: negative amounts, sums that do
// not fit an Amount, counts that contradict each other.
func faultOf(sets []PodSet) string {
	partial := 0
	for i := range sets {
		ps := &sets[i]
		if ps.Count < 0 {
			return "pod set " + ps.Name + " has a negative count"
		}
		if ps.MinCount < 0 || ps.MinCount > ps.Count {
			return "pod set " + ps.Name + " has a minCount of " + strconv.Itoa(int(ps.MinCount)) + " with a count of " + strconv.Itoa(int(ps.Count))
		}
		if ps.MinCount > 0 {
			partial++
		}
		if f := faultOfAmounts(ps, ps.Requests, ps.Count); f != "" {
			return f
		}
		if f := faultOfAmounts(ps, ps.Once, 1); f != "" {
			return f
		}
		for _, name := range sortedFlavors(ps.ByFlavor) {
			if f := faultOfAmounts(ps, ps.ByFlavor[name], ps.Count); f != "" {
				return f
			}
		}
	}
	if partial > 1 {
		return "more than one pod set has a minCount"
	}
	return ""
}

func faultOfAmounts(ps *PodSet, amounts Amounts, count int32) string {
	for _, r := range sortedResources(amounts) {
		a := amounts[r]
		switch {
		case a < 0:
			return "pod set " + ps.Name + " asks for a negative amount of " + string(r)
		case a.Times(int64(count)).Add(ps.Once[r]) == Unlimited || a == Unlimited:
			return "pod set " + ps.Name + " asks for more " + string(r) + " than can be counted"
		}
	}
	return ""
}

func sortedResources(a Amounts) []Resource {
	rs := make([]Resource, 0, len(a))
	for r := range a {
		rs = append(rs, r)
	}
	if len(rs) > 1 {
		sort.Slice(rs, func(i, j int) bool { return rs[i] < rs[j] })
	}
	return rs
}

func sortedFlavors[V any](m map[FlavorName]V) []FlavorName {
	fs := make([]FlavorName, 0, len(m))
	for f := range m {
		fs = append(fs, f)
	}
	if len(fs) > 1 {
		sort.Slice(fs, func(i, j int) bool { return fs[i] < fs[j] })
	}
	return fs
}

func appendShapeKey(b []byte, sets []PodSet) []byte {
	for i := range sets {
		ps := &sets[i]
		b = appendText(b, ps.Name)
		b = strconv.AppendInt(b, int64(ps.Count), 36)
		b = append(b, '/')
		b = strconv.AppendInt(b, int64(ps.MinCount), 36)
		b = appendAmounts(append(b, 'r'), ps.Requests)
		b = appendAmounts(append(b, 'o'), ps.Once)
		for _, f := range sortedFlavors(ps.ByFlavor) {
			b = appendAmounts(appendText(append(b, 'f'), string(f)), ps.ByFlavor[f])
		}
		for _, f := range sortedFlavors(ps.Unfit) {
			b = appendText(appendText(append(b, 'u'), string(f)), ps.Unfit[f])
		}
		b = append(b, ';')
	}
	return b
}

func appendAmounts(b []byte, a Amounts) []byte {
	if len(a) == 1 {
		for r, v := range a {
			return strconv.AppendInt(appendText(b, string(r)), int64(v), 36)
		}
	}
	for _, r := range sortedResources(a) {
		b = strconv.AppendInt(appendText(b, string(r)), int64(a[r]), 36)
		b = append(b, ',')
	}
	return b
}

// appendText writes a string so that no other sequence of fields reads the
// same.
func appendText(b []byte, s string) []byte {
	b = strconv.AppendInt(b, int64(len(s)), 36)
	b = append(b, ':')
	return append(b, s...)
}

func copySets(sets []PodSet) []PodSet {
	out := make([]PodSet, len(sets))
	for i, ps := range sets {
		ps.Requests = copyAmounts(ps.Requests)
		ps.Once = copyAmounts(ps.Once)
		if ps.ByFlavor != nil {
			by := make(map[FlavorName]Amounts, len(ps.ByFlavor))
			for f, a := range ps.ByFlavor {
				by[f] = copyAmounts(a)
			}
			ps.ByFlavor = by
		}
		if ps.Unfit != nil {
			unfit := make(map[FlavorName]string, len(ps.Unfit))
			for f, why := range ps.Unfit {
				unfit[f] = why
			}
			ps.Unfit = unfit
		}
		out[i] = ps
	}
	return out
}

func copyAmounts(a Amounts) Amounts {
	if a == nil {
		return nil
	}
	out := make(Amounts, len(a))
	for r, v := range a {
		out[r] = v
	}
	return out
}
