package fit

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

// Take implements the engine's Fit: it reserves a placement that Place gave, instead
// of whatever was reserved before.
func (s *State) Take(id engine.WorkloadID, p engine.Placement) {
	w := s.workloads[id]
	if w == nil {
		w = &workload{}
		s.workloads[id] = w
	}
	placed, _ := p.Detail.([]*slot)
	w.slots = slices.Clone(placed)
}

// Drop implements the engine's Fit: it gives up what was reserved.
func (s *State) Drop(id engine.WorkloadID) {
	if w := s.workloads[id]; w != nil {
		w.slots = nil
	}
}

// TopUp reserves places for the pods of an assignment that have none yet, as
// many as there are, beside the slots that the workload has already, and says
// whether all have one now. It is for a workload that was admitted before a
// restart.
func (s *State) TopUp(id engine.WorkloadID, a engine.Assignment) bool {
	w := s.workloads[id]
	if w == nil {
		return false
	}
	all := true
	t := s.look()
	for i := range a.PodSets {
		given := &a.PodSets[i]
		set := w.set(given.Name)
		if set == nil {
			continue
		}
		have := int32(0)
		for _, sl := range w.slots {
			if sl.set == given.Name {
				have++
			}
		}
		shared := map[string]string{}
		for ; have < given.Count; have++ {
			sl, why := s.placeOne(id, set, given, t, shared)
			if why != nil {
				all = false
				break
			}
			t.slots = append(t.slots, sl)
			w.slots = append(w.slots, sl)
		}
	}
	return all
}

// Claims is how many claims of its own a pod of a set needs.
func (s *State) Claims(id engine.WorkloadID, set string) int {
	w := s.workloads[id]
	if w == nil || w.set(set) == nil {
		return 0
	}
	n := len(w.set(set).Claims)
	if extended, _ := pricing.ExtendedResources(&w.set(set).Spec, s.classes); extended != nil {
		n++
	}
	return n
}

// Equipped says that a pod's own claims have their devices: from now on the
// claims count themselves, and the slot keeps only the pod's place on the node.
func (s *State) Equipped(id engine.WorkloadID, pod types.UID) {
	if w := s.workloads[id]; w != nil {
		for _, sl := range w.slots {
			if sl.pod == pod {
				sl.results, sl.claims = nil, nil
			}
		}
	}
}

// InFlight says whether a pod of a workload, or a claim, was given a place that
// is not settled yet: it may be about to get its ticket.
func (s *State) InFlight(id engine.WorkloadID) bool {
	w := s.workloads[id]
	return w != nil && slices.ContainsFunc(w.slots, func(sl *slot) bool { return sl.pod != "" })
}

// Open finds the node for a pod whose gate is to open, and gives it a slot
// until [State.Settle]. claims are the pod's own claims as they are in the API.
//
// The place promised to its workload is taken if it still has room, another one
// otherwise. The answer is a reason instead if there is none, or if the pod
// could take the room of others in flight on that node: the scheduler may serve
// them in any order, and 40Gi then 20Gi may fit where 20Gi then 40Gi does not.
func (s *State) Open(id engine.WorkloadID, a *engine.PodSetAssignment, pod types.UID) (string, *engine.NoRoom) {
	w := s.workloads[id]
	if w == nil || w.set(a.Name) == nil {
		return "", &engine.NoRoom{Reason: "what its pods need is not known yet"}
	}
	set := w.set(a.Name)
	var mine *slot
	for _, sl := range w.slots {
		if sl.pod == pod {
			return sl.node, nil
		}
		if mine == nil && sl.pod == "" && sl.set == a.Name {
			mine = sl
		}
	}
	// Without the slot that was promised, there is at least its own room.
	t := s.look()
	t.slots = slices.DeleteFunc(t.slots, func(sl *slot) bool { return sl == mine })
	found := s.again(mine, set, a, t)
	if found == nil {
		var why *engine.NoRoom
		if found, why = s.placeOne(id, set, a, t, map[string]string{}); why != nil {
			return "", why
		}
	}
	if !s.anyOrder(found) {
		return "", &engine.NoRoom{Reason: fmt.Sprintf("pods in flight on %s could take its room in another order", found.node)}
	}
	found.pod = pod
	w.slots = append(slices.DeleteFunc(w.slots, func(sl *slot) bool { return sl == mine }), found)
	return found.node, nil
}

// again tries the promised node first.
func (s *State) again(promised *slot, set *PodSet, a *engine.PodSetAssignment, t *trial) *slot {
	if promised == nil {
		return nil
	}
	n := s.nodes[promised.node]
	if n == nil || n.object == nil {
		return nil
	}
	if s.accepts(n, s.withFlavors(set, a), promised.requests, t) != "" || s.busyPlugin(n, &set.Spec) != "" {
		return nil
	}
	claims, fixed, err := s.claimsOf(set, map[string]string{}, t)
	if err != nil || (fixed != "" && fixed != n.name) {
		return nil
	}
	results, err := s.allocate(promised.workload, n, s.allocated(n, t), claims)
	if err != nil || results == nil {
		return nil
	}
	return &slot{workload: promised.workload, set: promised.set, node: n.name, requests: promised.requests, results: results, claims: claims}
}

// maxInFlight bounds how many different pods may be in flight on one node,
// because every order of them is tried.
const maxInFlight = 4

// anyOrder says whether a pod and those in flight on its node all get their
// devices in whichever order the scheduler serves them.
func (s *State) anyOrder(last *slot) bool {
	n := s.nodes[last.node]
	flight := []*slot{last}
	held := &trial{without: map[engine.WorkloadID]bool{}}
	for _, w := range s.workloads {
		for _, sl := range w.slots {
			if sl.node == last.node && sl.pod != "" && sl != last {
				flight = append(flight, sl)
			}
		}
	}
	kinds := map[string][]*slot{}
	var names []string
	for _, sl := range flight {
		key := s.need(sl.claims)
		if kinds[key] == nil {
			names = append(names, key)
		}
		kinds[key] = append(kinds[key], sl)
	}
	if len(names) == 1 {
		return true
	}
	if len(names) > maxInFlight {
		return false
	}
	ok := true
	permute(names, func(order []string) bool {
		t := &trial{without: held.without}
		for _, kind := range order {
			for _, sl := range kinds[kind] {
				results, err := s.allocate(last.workload, n, s.allocated(n, t), sl.claims)
				if err != nil || results == nil {
					ok = false
					return false
				}
				t.slots = append(t.slots, &slot{node: n.name, results: results})
			}
		}
		return true
	})
	return ok
}

// permute calls f with every order of names until it returns false.
func permute(names []string, f func([]string) bool) bool {
	var rec func(k int) bool
	rec = func(k int) bool {
		if k == len(names) {
			return f(names)
		}
		for i := k; i < len(names); i++ {
			names[k], names[i] = names[i], names[k]
			again := rec(k + 1)
			names[k], names[i] = names[i], names[k]
			if !again {
				return false
			}
		}
		return true
	}
	return rec(0)
}

// Settle ends the slot of a pod: its claims are allocated and count by
// themselves, or the pod is gone.
func (s *State) Settle(id engine.WorkloadID, pod types.UID) {
	if w := s.workloads[id]; w != nil {
		w.slots = slices.DeleteFunc(w.slots, func(sl *slot) bool { return sl.pod == pod })
	}
}

// Exclusive lists the exclusive devices of our driver that a trial gave to a
// pod with a slot, as "pool/device".
func (s *State) Exclusive(id engine.WorkloadID, pod types.UID, driver string) []string {
	w := s.workloads[id]
	if w == nil {
		return nil
	}
	var names []string
	for _, sl := range w.slots {
		if sl.pod != pod {
			continue
		}
		for i := range sl.results {
			for _, r := range sl.results[i].Devices.Results {
				if r.Driver == driver && r.ShareID == nil && (r.AdminAccess == nil || !*r.AdminAccess) {
					names = append(names, r.Pool+"/"+r.Device)
				}
			}
		}
	}
	return names
}

// NodeOf is the node of the slot that a pod was given, "" if it has none.
func (s *State) NodeOf(id engine.WorkloadID, pod types.UID) string {
	if w := s.workloads[id]; w != nil {
		for _, sl := range w.slots {
			if sl.pod == pod {
				return sl.node
			}
		}
	}
	return ""
}
