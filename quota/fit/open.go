package fit

import (
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// Open finds the node for a pod whose gate is to open, and gives it a slot
// until [State.Settle].
//
// The place promised to its workload is taken if it still has room, another one
// otherwise. The answer is a reason instead if there is none, or if the pod
// could take the room of others in flight on that node: the scheduler may serve
// them in any order, and 40Gi then 20Gi may fit where 20Gi then 40Gi does not.
//
// A pod that has a slot keeps it while the node would still take the pod. When
// the node is gone, cordoned or full, it gets another; if there is none, it keeps
// what it has, since the scheduler may be about to use it.
func (s *State) Open(id engine.WorkloadID, a *engine.PodSetAssignment, pod types.UID) (string, *engine.NoRoom) {
	w := s.workloads[id]
	if w == nil || w.set(a.Name) == nil {
		return "", &engine.NoRoom{Reason: "what its pods need is not known yet"}
	}
	set := w.set(a.Name)
	var mine *slot
	for _, sl := range w.slots {
		if sl.pod == pod {
			mine = sl
			break
		}
		if mine == nil && sl.pod == "" && sl.set == a.Name {
			mine = sl
		}
	}
	given := mine != nil && mine.pod == pod
	if given && mine.equipped {
		// Its devices are allocated: it goes where they are.
		return mine.node, nil
	}
	// Without the slot that was promised, there is at least its own room.
	t := s.look("")
	s.leaveOut(t, mine)
	q := s.query(id, w, set, a, map[string]string{}, t)
	found := s.again(mine, q, t)
	if given && found != nil {
		return mine.node, nil
	}
	if found == nil {
		var why *noRoom
		if found, why = s.placeOne(q, t, map[string]string{}); why != nil {
			if given {
				return mine.node, nil
			}
			s.counts.Refusals[why.cause]++
			return "", &why.NoRoom
		}
	}
	if !s.anyOrder(found, mine) {
		if given {
			return mine.node, nil
		}
		return "", &engine.NoRoom{Reason: fmt.Sprintf("pods in flight on %s could take its room in another order", found.node)}
	}
	if given {
		s.counts.Moved++
	}
	found.pod = pod
	s.removeSlots(w, func(sl *slot) bool { return sl == mine })
	s.addSlot(w, found)
	return found.node, nil
}

// again tries the promised node first.
func (s *State) again(promised *slot, q *query, t *trial) *slot {
	if promised == nil {
		return nil
	}
	n := s.nodes[promised.node]
	if n == nil || n.object == nil || q.fixed != "" && q.fixed != n.name {
		return nil
	}
	sl, err := s.try(q, n, t, &refusals{})
	if err != nil {
		return nil
	}
	return sl
}

// inFlight bounds how many pods of unlike claims may be in flight on one node,
// because every order of them is tried.
const inFlight = 4

// anyOrder says whether a pod and those in flight on its node all get their
// devices in whichever order the scheduler serves them. The slot that it leaves
// does not count.
func (s *State) anyOrder(last, leaves *slot) bool {
	n := s.nodes[last.node]
	flight := []*slot{last}
	for _, sl := range n.slots {
		if sl.pod != "" && sl != leaves && len(sl.claims) > 0 {
			flight = append(flight, sl)
		}
	}
	if len(flight) == 1 || len(last.claims) == 0 {
		return true
	}
	kinds := map[string]int{}
	of := map[string]*slot{}
	for _, sl := range flight {
		key := signature(sl.claims)
		kinds[key]++
		of[key] = sl
	}
	if len(kinds) == 1 {
		// Whoever comes first, what is taken is the same, and it was found to fit.
		return true
	}
	// What the API shows, without promises: the scheduler knows nothing of them.
	t := &trial{views: map[*node]*view{}, without: map[engine.WorkloadID]bool{}}
	base := s.computeWithoutSlots(n)
	if roomForAll(base, flight) {
		return true
	}
	if len(flight) > inFlight {
		return false
	}
	return s.orders(last.workload, n, t, kinds, of)
}

// orders serves what is left of kinds in every order.
func (s *State) orders(id engine.WorkloadID, n *node, t *trial, kinds map[string]int, of map[string]*slot) bool {
	v := s.bare(n, t)
	for _, key := range slices.Sorted(maps.Keys(kinds)) {
		if kinds[key] == 0 {
			continue
		}
		results, err := s.allocate(id, n, v.state, of[key].claims)
		if err != nil || results == nil {
			return false
		}
		sl := &slot{node: n.name}
		for i := range results {
			sl.devices = append(sl.devices, devicesOf(results[i].Devices.Results)...)
		}
		kinds[key]--
		t.slots = append(t.slots, sl)
		ok := s.orders(id, n, t, kinds, of)
		t.slots = t.slots[:len(t.slots)-1]
		kinds[key]++
		if !ok {
			return false
		}
	}
	return true
}

// bare is a node with what claims hold and the slots of a trial, and no others.
func (s *State) bare(n *node, t *trial) *view {
	promised, roaming := n.slots, s.roaming
	n.slots, s.roaming = nil, nil
	defer func() { n.slots, s.roaming = promised, roaming }()
	return s.compute(n, t)
}

func (s *State) computeWithoutSlots(n *node) *view { return s.bare(n, &trial{}) }

// roomForAll says that some card has so much left that all of these would fit on
// it together: then each finds that card, or one before it, in any order. It only
// tells for claims that any card may serve.
func roomForAll(v *view, flight []*slot) bool {
	var memory, cores int64
	class := ""
	for _, sl := range flight {
		for _, c := range sl.claims {
			if len(c.Spec.Devices.Constraints) > 0 {
				return false
			}
			for i := range c.Spec.Devices.Requests {
				r := c.Spec.Devices.Requests[i].Exactly
				if r == nil || r.Count > 1 || len(r.Selectors) > 0 || r.AllocationMode != resourceapi.DeviceAllocationModeExactCount || class != "" && class != r.DeviceClassName {
					return false
				}
				class = r.DeviceClassName
				x := wantOf(r.AllocationMode, r.Count, r.Capacity)
				if x.memory < 0 {
					return false
				}
				memory, cores = memory+x.memory, cores+max(0, x.cores)
			}
		}
	}
	// It must be a card that the class selects: one of them was served there.
	for i := range v.cards {
		c := &v.cards[i]
		if !c.open || c.tainted || !c.shareable || c.freeMemory < memory || c.freeCores < cores {
			continue
		}
		for _, sl := range flight {
			if slices.ContainsFunc(sl.devices, func(d device) bool { return d.id == c.id }) {
				return true
			}
		}
	}
	return false
}
