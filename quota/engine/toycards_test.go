package engine

import (
	"fmt"
	"sort"
	"strings"
)

// toyCards is a Fit for stories: cards with one number each, pods that need a
// piece of one card, first fit.
type toyCards struct {
	cards []*toyCard
	taken map[WorkloadID][]toyPiece
}

type toyCard struct {
	where    string
	flavor   FlavorName
	resource Resource
	size     Amount
}

type toyPiece struct {
	card *toyCard
	size Amount
}

// card reads "card node-1/0 a100 mem=80".
func (s *story) card(args []string) error {
	if s.fit == nil {
		s.fit = &toyCards{taken: map[WorkloadID][]toyPiece{}}
	}
	name, value, _ := strings.Cut(args[2], "=")
	size, err := parseAmount(value)
	if err != nil {
		return err
	}
	s.fit.cards = append(s.fit.cards, &toyCard{args[0], FlavorName(args[1]), Resource(name), size})
	return nil
}

// give frees what a workload occupies on cards.
func (s *story) give(id string) {
	if s.fit != nil {
		delete(s.fit.taken, WorkloadID(id))
	}
}

func (f *toyCards) free(without map[WorkloadID]bool) map[*toyCard]Amount {
	free := map[*toyCard]Amount{}
	for _, c := range f.cards {
		free[c] = c.size
	}
	for id, pieces := range f.taken {
		if !without[id] {
			for _, p := range pieces {
				free[p.card] -= p.size
			}
		}
	}
	return free
}

func (f *toyCards) Place(w *Workload, a Assignment, without []WorkloadID) (Placement, *NoRoom) {
	gone := map[WorkloadID]bool{w.ID: true}
	for _, id := range without {
		gone[id] = true
	}
	free := f.free(gone)
	p, short, ok := f.place(a, free)
	if ok {
		return p, nil
	}
	no := &NoRoom{Flavors: []FlavorName{short.flavor}}
	no.Reason = fmt.Sprintf("no card of %s has %s %s free", short.flavor, FormatAmount(short.resource, short.size), short.resource)
	for _, c := range f.cards {
		if c.flavor == short.flavor && free[c] > 0 {
			no.Holes = append(no.Holes, Hole{c.where, c.resource, free[c]})
		}
	}
	sort.SliceStable(no.Holes, func(i, j int) bool { return no.Holes[i].Size > no.Holes[j].Size })
	if _, ok := f.keep(a); ok {
		no.Keep = func(WorkloadID, ...WorkloadID) (Placement, bool) { return f.keep(a) }
	} else {
		no.Never = true
	}
	return Placement{}, no
}

// keep is a place on empty cards.
func (f *toyCards) keep(a Assignment) (Placement, bool) {
	empty := map[*toyCard]Amount{}
	for _, c := range f.cards {
		empty[c] = c.size
	}
	p, _, ok := f.place(a, empty)
	return p, ok
}

// place puts each pod on the first card that holds it.
func (f *toyCards) place(a Assignment, free map[*toyCard]Amount) (Placement, toyCard, bool) {
	var p Placement
	var pieces []toyPiece
	for _, ps := range a.PodSets {
		for i := int32(0); i < ps.Count; i++ {
			c, size := f.choose(ps, free)
			if size == 0 {
				continue
			}
			if c.where == "" {
				return p, *c, false
			}
			free[c] -= size
			pieces = append(pieces, toyPiece{c, size})
			p.Pods = append(p.Pods, PlacedPod{PodSet: ps.Name, Index: i, Node: c.where})
		}
	}
	p.Detail = pieces
	return p, toyCard{}, true
}

func (f *toyCards) choose(ps PodSetAssignment, free map[*toyCard]Amount) (*toyCard, Amount) {
	for _, r := range sortedResources(ps.Usage) {
		size := ps.Usage[r] / Amount(max(1, ps.Count))
		counted := false
		for _, c := range f.cards {
			if c.resource != r || c.flavor != ps.Flavors[r] {
				continue
			}
			counted = true
			if free[c] >= size {
				return c, size
			}
		}
		if counted && size > 0 {
			return &toyCard{flavor: ps.Flavors[r], resource: r, size: size}, size
		}
	}
	return nil, 0
}

func (f *toyCards) Take(id WorkloadID, p Placement) {
	pieces, _ := p.Detail.([]toyPiece)
	f.taken[id] = pieces
}

func (f *toyCards) Drop(id WorkloadID) { delete(f.taken, id) }
