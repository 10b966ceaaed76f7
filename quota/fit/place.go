package fit

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// slot is the place of one pod: promised until its claims are seen allocated.
type slot struct {
	workload engine.WorkloadID
	set      string
	node     string
	// pod is the pod that the slot was given to, "" while none has.
	pod types.UID
	// equipped says that the pod's claims have their devices and count themselves.
	equipped bool
	requests corev1.ResourceList
	// devices are what the allocator gave for the trial.
	devices []device
	// claims are what those answer, kind stands for them.
	claims []*resourceapi.ResourceClaim
	kind   string
	// awaited says that others have the place still: they are asked to leave it, or
	// it is kept for when they do.
	awaited bool
	// gone are those who are asked to leave it, and others who leave already.
	gone map[engine.WorkloadID]bool
	// kept is the rank of a place that is kept for somebody who waits, the least
	// first; 0 for others.
	kept int64
	// lost says that somebody else was given the place.
	lost bool
	// since is when it could first have been used but for others who have to come
	// before.
	since time.Time
}

func (sl *slot) has(claim types.UID) bool {
	return slices.ContainsFunc(sl.claims, func(c *resourceapi.ResourceClaim) bool { return c.UID == claim })
}

// slotOn makes the slot for a pod on a node, by what the allocator said.
func (q *query) slotOn(n *node, results []resourceapi.AllocationResult) *slot {
	return &slot{workload: q.workload, set: q.set.Name, node: n.name, requests: q.needs, claims: q.claims, kind: q.key, devices: devicesOfAll(results)}
}

// Place implements the engine's Fit.
func (s *State) Place(w *engine.Workload, flavors engine.Assignment, without []engine.WorkloadID) (engine.Placement, *engine.NoRoom) {
	known := s.workloads[w.ID]
	if known == nil {
		return engine.Placement{}, &engine.NoRoom{Reason: "what its pods need is not known yet"}
	}
	t := s.look(w.ID, without...)
	placed, why := s.placeAll(w.ID, known, &flavors, t, s.placeOne)
	if why != nil {
		if len(without) == 0 {
			s.counts.Refusals[why.cause]++
			flavors := copyOf(&flavors)
			why.Keep = func(id engine.WorkloadID, without ...engine.WorkloadID) (engine.Placement, bool) {
				return s.keep(id, flavors, without)
			}
		}
		return engine.Placement{}, &why.NoRoom
	}
	if len(without) > 0 {
		for _, sl := range placed {
			sl.awaited, sl.gone = true, t.without
		}
	}
	p := placement(placed)
	if len(without) > 0 {
		p.Displaces = s.displacedBy(placed, t)
	}
	return p, nil
}

// noRoom is why there is none, and the kind of reason.
type noRoom struct {
	engine.NoRoom
	cause Cause
}

// finder finds a place for one more pod in a trial.
type finder func(q *query, t *trial, shared map[string]string) (*slot, *noRoom)

// placeAll finds a place for every pod of an assignment, one after the other.
func (s *State) placeAll(id engine.WorkloadID, w *workload, a *engine.Assignment, t *trial, find finder) ([]*slot, *noRoom) {
	var placed []*slot
	for i := range a.PodSets {
		given := &a.PodSets[i]
		set := w.set(given.Name)
		if set == nil {
			return nil, &noRoom{cause: CauseUnknown, NoRoom: engine.NoRoom{Reason: fmt.Sprintf("what the pods of set %q need is not known yet", given.Name)}}
		}
		shared := map[string]string{}
		var q *query
		for range given.Count {
			if last := len(placed) - 1; last >= 0 {
				s.put(t, placed[last])
			}
			if q == nil || len(set.Shared) > 0 {
				q = s.query(id, w, set, given, shared, t)
			}
			sl, why := find(q, t, shared)
			if why != nil {
				if total := podsOf(a); total > 1 {
					more := ""
					if len(placed) > 0 {
						more = "for one more "
					}
					why.Reason = fmt.Sprintf("%d of %d pods have room; %s%s", len(placed), total, more, why.Reason)
				}
				return nil, why
			}
			placed = append(placed, sl)
		}
	}
	return placed, nil
}

func placement(placed []*slot) engine.Placement {
	p := engine.Placement{Detail: placed}
	index := map[string]int32{}
	for _, sl := range placed {
		p.Pods = append(p.Pods, engine.PlacedPod{PodSet: sl.set, Index: index[sl.set], Node: sl.node})
		index[sl.set]++
	}
	return p
}

func podsOf(a *engine.Assignment) int32 {
	var n int32
	for i := range a.PodSets {
		n += a.PodSets[i].Count
	}
	return n
}

// linkTries bounds on how many nodes cards of one NVLink domain are looked for.
const linkTries = 64

// placeOne finds a node for one more pod. shared remembers where the claims by
// name were put that the pods of this trial use together.
func (s *State) placeOne(q *query, t *trial, shared map[string]string) (*slot, *noRoom) {
	why := &refusals{}
	var second *slot
	for n := range s.candidates(q, t) {
		if t.barred[n] {
			continue
		}
		sl, err := s.try(q, n, t, why)
		if err != nil {
			return nil, &noRoom{cause: CauseClaim, NoRoom: engine.NoRoom{Reason: strings.TrimSpace(err.Error())}}
		}
		if sl == nil {
			continue
		}
		if !s.safePromise(n, sl, t) {
			why.add(&refusal{CauseCards, "pods on their way there may be given what is left"})
			continue
		}
		if q.policy == NVLink && q.wants.many && !s.linked(n, sl.devices) {
			if second == nil {
				second = sl
			}
			if why.tried < linkTries {
				continue
			}
			sl = second
		}
		second = sl
		break
	}
	if second == nil {
		return nil, s.noRoom(q, why, t)
	}
	for _, c := range q.set.Shared {
		shared[c.Name] = second.node
	}
	return second, nil
}

// try asks for a place on one node; nil if there is none there. An error says
// that there can be none anywhere.
func (s *State) try(q *query, n *node, t *trial, why *refusals) (*slot, error) {
	r := s.accepts(n, q, t)
	if r == nil {
		r = q.busyPlugin(n)
	}
	if r != nil {
		why.add(r)
		return nil, nil
	}
	why.tried++
	v := s.view(n, t)
	if _, known := v.refused[q.key]; known && q.key != "" {
		return nil, nil
	}
	if sl, told := s.again(q, n, v); told {
		if sl == nil {
			v.refuse(q.key)
		}
		return sl, nil
	}
	results, err := s.allocate(q.workload, n, v.state, q.claims)
	switch {
	case errors.Is(err, errTooMany):
		why.hard++
		return nil, nil
	case err != nil:
		return nil, err
	case results == nil:
		v.refuse(q.key)
		return nil, nil
	}
	sl := q.slotOn(n, results)
	n.serve(q, sl)
	return sl, nil
}

// safePromise says that a place can be promised beside pods on their way, and
// beside those who wait for what others have.
func (s *State) safePromise(n *node, sl *slot, t *trial) bool {
	if len(sl.claims) == 0 || !slices.ContainsFunc(n.slots, func(o *slot) bool { return o.pod != "" || o.awaited }) {
		return true
	}
	l := s.lineOf(n, t)
	// Those promised room there come as well, each as soon as it may.
	if come := slices.Concat(l.flight, l.promised, []*slot{sl}); len(l.awaited) > 0 && !s.safe(n, line{flight: come, awaited: l.awaited}, t.without) {
		return false
	}
	if len(l.flight) == 0 {
		return true
	}
	l.promised = append(l.promised, sl)
	return s.safe(n, l, t.without)
}

// remembered bounds what is remembered of one node.
const remembered = 64

func (v *view) refuse(key string) {
	if v.refused == nil || len(v.refused) >= remembered {
		v.refused = map[string]struct{}{}
	}
	v.refused[key] = struct{}{}
}

// refusals counts why nodes were refused, for one sentence.
type refusals struct {
	reasons map[string]int
	causes  map[Cause]int
	// tried counts the nodes whose cards were looked at, hard those of them that
	// were not searched to the end.
	tried, hard int
}

func (r *refusals) add(why *refusal) {
	if r.reasons == nil {
		r.reasons, r.causes = map[string]int{}, map[Cause]int{}
	}
	r.reasons[why.text]++
	r.causes[why.cause]++
}

// cause is the commonest.
func (r *refusals) cause() Cause {
	best := CauseNode
	for _, c := range slices.Sorted(maps.Keys(r.causes)) {
		if r.causes[c] > r.causes[best] {
			best = c
		}
	}
	return best
}

func (r *refusals) String() string {
	reasons := slices.Sorted(maps.Keys(r.reasons))
	slices.SortStableFunc(reasons, func(a, b string) int { return r.reasons[b] - r.reasons[a] })
	var parts []string
	for i, reason := range reasons {
		if i == 3 {
			break
		}
		parts = append(parts, fmt.Sprintf("%d nodes: %s", r.reasons[reason], reason))
	}
	text := strings.Join(parts, "; ")
	if strings.HasPrefix(text, "1 nodes: ") {
		text = "1 node: " + text[len("1 nodes: "):]
	}
	return strings.ReplaceAll(text, "; 1 nodes: ", "; 1 node: ")
}

// displaced are the workloads left out of a trial that have something on a node.
func (s *State) displaced(n *node, t *trial) map[engine.WorkloadID]bool {
	if len(t.without) == 0 {
		return nil
	}
	there := map[engine.WorkloadID]bool{}
	note := func(id engine.WorkloadID) {
		if t.without[id] {
			there[id] = true
		}
	}
	for _, slice := range n.slices {
		if p := s.pools[poolKey{slice.Spec.Driver, slice.Spec.Pool.Name}]; p != nil {
			for _, h := range p.taken {
				note(h.workload)
			}
		}
	}
	for _, p := range n.pods {
		note(p.workload)
	}
	for _, sl := range n.slots {
		note(sl.workload)
	}
	return there
}

// displacedBy are those that have something where the pods of a placement go, nil
// if it uses devices of everybody's, where that cannot be told.
func (s *State) displacedBy(placed []*slot, t *trial) []engine.WorkloadID {
	all := map[engine.WorkloadID]bool{}
	for _, sl := range placed {
		if s.roams(sl) {
			return nil
		}
		maps.Copy(all, s.displaced(s.nodes[sl.node], t))
	}
	return slices.AppendSeq([]engine.WorkloadID{}, slices.Values(slices.Sorted(maps.Keys(all))))
}
