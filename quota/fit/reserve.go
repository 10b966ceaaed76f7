package fit

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// Take implements the engine's Fit: it reserves a placement that Place gave, instead
// of whatever was reserved before.
func (s *State) Take(id engine.WorkloadID, p engine.Placement) {
	placed, _ := p.Detail.([]*slot)
	w := s.workload(id)
	before := w.outranks()
	if w.kept = 0; len(placed) > 0 {
		w.kept = placed[0].kept
	}
	s.setSlots(w, slices.Clone(placed))
	if before > 0 && w.kept == 0 {
		s.displaceKept(placed, before)
	}
}

// Drop implements the engine's Fit: it gives up what was reserved.
func (s *State) Drop(id engine.WorkloadID) {
	if w := s.workloads[id]; w != nil {
		// Whoever has the rank next may have room that is kept for those after him, even
		// if no place was left to the last.
		s.freed = s.freed || w.kept > 0
		w.kept = 0
		s.setSlots(w, nil)
		s.forget(id, w)
	}
}

// setSlots exchanges the slots of a workload.
func (s *State) setSlots(w *workload, slots []*slot) {
	if slices.Equal(w.slots, slots) {
		return
	}
	for _, sl := range w.slots {
		s.unlistSlot(sl)
	}
	w.slots = slots
	for _, sl := range slots {
		s.listSlot(sl)
	}
}

// addSlot gives a workload one more.
func (s *State) addSlot(w *workload, sl *slot) {
	w.slots = append(w.slots, sl)
	s.listSlot(sl)
}

// removeSlots takes some from a workload.
func (s *State) removeSlots(w *workload, which func(*slot) bool) {
	w.slots = slices.DeleteFunc(w.slots, func(sl *slot) bool {
		if !which(sl) {
			return false
		}
		s.unlistSlot(sl)
		return true
	})
}

func (s *State) listSlot(sl *slot) {
	n := s.node(sl.node)
	if len(n.slots) == 0 && n.base != nil && n.held == nil && len(s.roaming) == 0 {
		n.held = n.base.clone()
	}
	n.slots = append(n.slots, sl)
	if sl.awaited {
		s.awaiting[sl] = struct{}{}
	}
	s.changeSlot(sl, true)
	if s.roams(sl) {
		s.roaming[sl] = struct{}{}
	}
}

func (s *State) unlistSlot(sl *slot) {
	s.freed = true
	delete(s.roaming, sl)
	delete(s.awaiting, sl)
	s.regain(sl)
	s.changeSlot(sl, false)
	if n := s.nodes[sl.node]; n != nil {
		n.slots = slices.DeleteFunc(n.slots, func(o *slot) bool { return o == sl })
		if len(n.slots) == 0 && len(s.roaming) == 0 {
			n.held = nil
		}
		s.tidy(n)
	}
}

func (s *State) changeSlot(sl *slot, taken bool) {
	if s.roams(sl) {
		s.touchAll()
		return
	}
	if n := s.nodes[sl.node]; n != nil {
		s.change(n, sl.devices, taken, true)
		s.burden(n, sl.requests, taken, true)
	}
}

// TopUp reserves places for the pods of an assignment that have no devices yet,
// as many as there are, beside the slots that the workload has already, and says
// whether all have one now. It is for a workload that was admitted before a
// restart.
func (s *State) TopUp(id engine.WorkloadID, a engine.Assignment) bool {
	w := s.workloads[id]
	if w == nil {
		return false
	}
	all := true
	t := s.look("")
	for i := range a.PodSets {
		given := &a.PodSets[i]
		set := w.set(given.Name)
		if set == nil {
			continue
		}
		have := int32(0)
		for _, sl := range w.slots {
			if sl.set == given.Name && !sl.equipped {
				have++
			}
		}
		shared := map[string]string{}
		for ; have < given.Count; have++ {
			sl, why := s.placeOne(s.query(id, w, set, given, shared, t), t, shared)
			if why != nil {
				all = false
				break
			}
			s.addSlot(w, sl)
			// It counts by itself now.
			t = s.look("")
		}
	}
	return all
}

// Trim gives up promised places of a set beyond as many pods as may still come
// for one. Pods that got their devices another way need no promise any more.
func (s *State) Trim(id engine.WorkloadID, set string, most int32) {
	w := s.workloads[id]
	if w == nil {
		return
	}
	for _, sl := range w.slots {
		if sl.set == set && sl.pod == "" {
			most--
		}
	}
	if most >= 0 {
		return
	}
	s.removeSlots(w, func(sl *slot) bool {
		if sl.set != set || sl.pod != "" || most >= 0 {
			return false
		}
		most++
		return true
	})
	s.forget(id, w)
}

// Void gives up promised places of a set where a pod would not be taken any more: the
// node is gone, or its cards are. It looks at a few each time, and says whether there
// were such.
func (s *State) Void(id engine.WorkloadID, a *engine.PodSetAssignment) bool {
	w := s.workloads[id]
	if w == nil || w.set(a.Name) == nil {
		return false
	}
	var void []*slot
	for _, sl := range s.othersOf(w, nil, a.Name) {
		t := s.lookFor(sl)
		if s.promisedOn(sl, s.query(id, w, w.set(a.Name), a, map[string]string{}, t), t) == nil {
			void = append(void, sl)
		}
	}
	s.removeSlots(w, func(sl *slot) bool { return slices.Contains(void, sl) })
	return len(void) > 0
}

// Slots are the pods of a set that were given a place, and how many places are
// promised to others that may come.
func (s *State) Slots(id engine.WorkloadID, set string) (given map[types.UID]struct{}, promised int) {
	w := s.workloads[id]
	if w == nil {
		return nil, 0
	}
	for _, sl := range w.slots {
		if sl.set == set && sl.pod == "" {
			promised++
		}
	}
	if promised == 0 {
		return nil, 0
	}
	given = map[types.UID]struct{}{}
	for _, sl := range w.slots {
		if sl.pod != "" {
			given[sl.pod] = struct{}{}
		}
	}
	return given, promised
}

// Claims is how many claims of its own a pod of a set needs.
func (s *State) Claims(id engine.WorkloadID, set string) int {
	w := s.workloads[id]
	if w == nil || w.set(set) == nil {
		return 0
	}
	n := len(w.set(set).Claims)
	if extended, _ := s.extendedOf(&w.set(set).Spec); extended != nil {
		n++
	}
	return n
}

// Equipped says that a pod's own claims have their devices, on the node if that
// is known: from now on the claims count themselves, and the slot keeps only the
// pod's place on that node.
func (s *State) Equipped(id engine.WorkloadID, pod types.UID, node string) {
	w := s.workloads[id]
	if w == nil {
		return
	}
	for _, sl := range w.slots {
		if sl.pod != pod || sl.equipped && (node == "" || node == sl.node) {
			continue
		}
		if node != "" {
			s.landed(node == sl.node)
		}
		s.unlistSlot(sl)
		sl.devices, sl.claims, sl.equipped = nil, nil, true
		if node != "" {
			sl.node = node
		}
		s.listSlot(sl)
	}
}

func (s *State) landed(where bool) {
	if where {
		s.counts.Hits++
	} else {
		s.counts.Misses++
	}
}

// InFlight says whether a pod of a workload, or a claim, was given a place that
// is not settled yet: it may be about to get its ticket.
func (s *State) InFlight(id engine.WorkloadID) bool {
	w := s.workloads[id]
	return w != nil && slices.ContainsFunc(w.slots, func(sl *slot) bool { return sl.pod != "" })
}

// Settle ends the slot of a pod: its claims are allocated and count by
// themselves, or the pod is gone.
func (s *State) Settle(id engine.WorkloadID, pod types.UID) {
	if w := s.workloads[id]; w != nil {
		s.removeSlots(w, func(sl *slot) bool { return sl.pod == pod })
		s.forget(id, w)
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
		for _, d := range sl.devices {
			if d.Driver == driver && d.ShareID == nil && (d.AdminAccess == nil || !*d.AdminAccess) {
				names = append(names, d.Pool+"/"+d.Device)
			}
		}
	}
	return names
}

// Coming lists the pods that were given a place and are not settled.
func (s *State) Coming() []types.UID {
	var all []types.UID
	for _, w := range s.workloads {
		for _, sl := range w.slots {
			if sl.pod != "" {
				all = append(all, sl.pod)
			}
		}
	}
	return all
}
