package fit

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// copyOf is an assignment that may be kept.
func copyOf(a *engine.Assignment) engine.Assignment {
	c := *a
	c.PodSets = slices.Clone(a.PodSets)
	for i := range c.PodSets {
		c.PodSets[i].Flavors = maps.Clone(c.PodSets[i].Flavors)
	}
	return c
}

// keepTries bounds on how many nodes a place to keep is looked for.
const keepTries = 32

// keep finds the place that is best kept free for a workload which waits for
// room: for each pod, the node and the cards on it of which the least is in use.
// What is in use there goes on; nobody else comes. A place that it was given
// before is kept while the node would still take the pod, so that waiting is not
// begun anew.
func (s *State) keep(id engine.WorkloadID, a engine.Assignment) (engine.Placement, bool) {
	w := s.workloads[id]
	if w == nil {
		return engine.Placement{}, false
	}
	before := slices.Clone(w.slots)
	t := s.look(id)
	placed, why := s.placeAll(id, w, &a, t, func(q *query, t *trial, _ map[string]string) (*slot, *noRoom) {
		for i, sl := range before {
			if sl.set != q.set.Name || sl.pod != "" {
				continue
			}
			before = slices.Delete(before, i, i+1)
			if n := s.nodes[sl.node]; n != nil && q.welcome(n) == nil && q.large(n) == nil && len(n.cards) > 0 {
				return sl, nil
			}
			break
		}
		if sl := s.keepOne(q, t); sl != nil {
			sl.awaited = true
			return sl, nil
		}
		return nil, &noRoom{}
	})
	if why != nil {
		return engine.Placement{}, false
	}
	return placement(placed), true
}

// keepOne finds the node that needs to lose least for one pod. Places promised
// to others stay theirs.
func (s *State) keepOne(q *query, t *trial) *slot {
	var best *slot
	var least int64
	tried := 0
	for _, n := range slices.Backward(q.index.free) {
		if tried == keepTries {
			break
		}
		if q.fixed != "" && q.fixed != n.name || q.welcome(n) != nil || q.large(n) != nil || q.busyPlugin(n) != nil {
			continue
		}
		tried++
		if sl, lost := s.clear(q, n, t); sl != nil && (best == nil || lost < least) {
			best, least = sl, lost
		}
	}
	return best
}

// clear finds the fewest cards of a node that have to become empty for a pod to
// fit, the emptiest first, and how much is in use of them.
func (s *State) clear(q *query, n *node, t *trial) (*slot, int64) {
	v := s.view(n, t)
	promised := s.promises(n, t)
	order := make([]*card, len(v.cards))
	for i := range v.cards {
		order[i] = &v.cards[i]
	}
	inUse := func(c *card) int64 { return max(0, c.memory) - c.freeMemory }
	slices.SortStableFunc(order, func(a, b *card) int { return cmp.Compare(inUse(a), inUse(b)) })
	state := newAllocated()
	for _, c := range order {
		copyDevice(&state, &v.state, c.id)
	}
	lost := int64(0)
	for _, c := range order {
		if !c.touched {
			continue
		}
		// As if it held nothing but what is promised of it.
		copyDevice(&state, &promised, c.id)
		lost += inUse(c)
		results, err := s.allocate(q.workload, n, state, q.claims)
		if err != nil {
			return nil, 0
		}
		if results != nil {
			return q.slotOn(n, results), lost
		}
	}
	return nil, 0
}

// promises is what is promised of the cards of a node, without what claims hold.
func (s *State) promises(n *node, t *trial) structured.AllocatedState {
	state := newAllocated()
	for _, list := range [][]*slot{n.slots, t.slots} {
		for _, sl := range list {
			if sl.node != n.name || sl.workload == t.own && !slices.Contains(t.slots, sl) {
				continue
			}
			for _, d := range sl.devices {
				take(&state, d)
			}
		}
	}
	return state
}

// copyDevice makes one device in a state as it is in another.
func copyDevice(to, from *structured.AllocatedState, id structured.DeviceID) {
	to.AllocatedDevices.Delete(id)
	to.AllocatedSharedDeviceIDs.Delete(oneShare(id))
	delete(to.AggregatedCapacity, id)
	if from.AllocatedDevices.Has(id) {
		to.AllocatedDevices.Insert(id)
	}
	if from.AllocatedSharedDeviceIDs.Has(oneShare(id)) {
		to.AllocatedSharedDeviceIDs.Insert(oneShare(id))
	}
	if c, ok := from.AggregatedCapacity[id]; ok {
		to.AggregatedCapacity[id] = c
	}
}
