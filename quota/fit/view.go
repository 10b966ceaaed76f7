package fit

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// view is what is left of one node, in one trial or when everything counts.
type view struct {
	state structured.AllocatedState
	cards []card
	used  corev1.ResourceList
	pods  int64
	keys  keys
	// counters are all of those that the cards draw from.
	counters []int64
	// refused are the queries that the allocator had no room for; they need not
	// be asked again while nothing changes.
	refused map[string]struct{}
}

// trial is one look at the state: who is left out of account, and what counts
// besides as taken.
type trial struct {
	without map[engine.WorkloadID]bool
	// own is the workload that looks: its own slots do not count.
	own engine.WorkloadID
	// skip is one slot that does not count.
	skip *slot
	// slots are the places given in this trial.
	slots []*slot
	// found says that places which others lost do not count: those who were
	// promised room do not wait for those who cannot have it.
	found bool
	// now says that places which others have still take nothing of what is free: who
	// was promised room does not wait until those have left. That they get theirs
	// when they have is the matter of safe.
	now bool
	// before is the rank from which on kept places do not count, 0 if all do.
	before int64
	// barred are nodes that are not to be taken.
	barred map[*node]bool
	// views are the nodes that the trial sees otherwise than everybody; nil while
	// they are not computed.
	views map[*node]*view
}

// look starts a trial for a workload. Whatever the workloads in without have does
// not count, nor do the slots of the workload itself.
func (s *State) look(own engine.WorkloadID, without ...engine.WorkloadID) *trial {
	s.reindex()
	t := &trial{own: own, without: map[engine.WorkloadID]bool{}, views: map[*node]*view{}}
	for _, id := range without {
		t.without[id] = true
		w := s.workloads[id]
		if w == nil {
			continue
		}
		for _, h := range w.holdings {
			for i := range h.results {
				s.differs(t, h.results[i].key)
			}
		}
		for _, p := range w.bound {
			if n := s.nodes[p.node]; n != nil {
				t.views[n] = nil
			}
		}
		s.differSlots(t, w.slots)
	}
	if w := s.workloads[own]; w != nil {
		s.differSlots(t, w.slots)
		if t.before = w.outranks(); t.before > 0 {
			for sl := range s.awaiting {
				s.differSlot(t, sl)
			}
		}
	}
	return t
}

// differ says that a trial sees the nodes of a pool otherwise.
func (s *State) differs(t *trial, key poolKey) {
	p := s.pools[key]
	if p == nil {
		return
	}
	for n := range p.nodes {
		t.views[n] = nil
	}
	if p.open > 0 {
		for _, n := range s.nodes {
			t.views[n] = nil
		}
	}
}

func (s *State) differSlots(t *trial, slots []*slot) {
	for _, sl := range slots {
		s.differSlot(t, sl)
	}
}

func (s *State) differSlot(t *trial, sl *slot) {
	if n := s.nodes[sl.node]; n != nil {
		t.views[n] = nil
	}
	if s.roams(sl) {
		for _, n := range s.nodes {
			t.views[n] = nil
		}
	}
}

// lookFor starts a trial for somebody who was promised room: the slot that he is
// to leave, if any, does not count, nor do places that others lost.
func (s *State) lookFor(mine *slot) *trial {
	t := s.look("")
	t.found, t.now = true, true
	for _, slots := range []map[*slot]struct{}{s.lost, s.awaiting} {
		for sl := range slots {
			s.differSlot(t, sl)
		}
	}
	s.leaveOut(t, mine)
	return t
}

// leaveOut has a slot not count in a trial.
func (s *State) leaveOut(t *trial, sl *slot) {
	t.skip = sl
	if sl != nil {
		s.differSlot(t, sl)
	}
}

// put counts a place as given in a trial.
func (s *State) put(t *trial, sl *slot) {
	t.slots = append(t.slots, sl)
	if n := s.nodes[sl.node]; n != nil && !s.roams(sl) {
		v, differs := t.views[n]
		if !differs {
			v = s.view(n, t).clone()
		}
		if v != nil {
			v = s.with(n, v, []*slot{sl})
		}
		t.views[n] = v
		return
	}
	s.differSlot(t, sl)
}

// bar has a node not be taken in a trial.
func (t *trial) bar(n *node) {
	if t.barred == nil {
		t.barred = map[*node]bool{}
	}
	t.barred[n] = true
}

func (t *trial) counts(sl *slot) bool {
	return sl != t.skip && sl.workload != t.own && !t.without[sl.workload] && !(t.found && sl.lost) && !(t.before > 0 && sl.kept >= t.before)
}

// takes says that a slot takes something of what is free.
func (t *trial) takes(sl *slot) bool { return t.counts(sl) && !(t.now && sl.awaited) }

// view is a node as a trial sees it.
func (s *State) view(n *node, t *trial) *view {
	v, differs := t.views[n]
	if !differs {
		if n.base == nil {
			n.base = s.compute(n, &trial{})
		}
		return n.base
	}
	if v == nil {
		v = s.compute(n, t)
		t.views[n] = v
	}
	return v
}

// compute is what a trial finds left of a node: what is held of it, less the
// slots that count.
func (s *State) compute(n *node, t *trial) *view {
	if v := s.less(n, t); v != nil {
		return v
	}
	all := make([]*slot, 0, len(n.slots)+1)
	for _, sl := range n.slots {
		if t.takes(sl) {
			all = append(all, sl)
		}
	}
	for sl := range s.roaming {
		if t.takes(sl) && sl.node != n.name {
			all = append(all, sl)
		}
	}
	for _, sl := range t.slots {
		if sl.node == n.name || s.roams(sl) {
			all = append(all, sl)
		}
	}
	return s.with(n, s.bare(n, t.without), all)
}

// less is what everybody sees of a node, less the one slot that a trial leaves out:
// that is sooner given back than all others are added up. nil where the trial sees
// more of the node otherwise.
func (s *State) less(n *node, t *trial) *view {
	sl := t.skip
	if sl == nil || sl.node != n.name || n.base == nil || t.own != "" || len(t.without) > 0 || t.before > 0 || len(t.slots) > 0 ||
		t.found && len(s.lost) > 0 || t.now && (len(s.roaming) > 0 || slices.ContainsFunc(n.slots, func(o *slot) bool { return o.awaited })) || s.roams(sl) {
		return nil
	}
	v := n.base.clone()
	if !v.follow(n, sl.devices, false) {
		return nil
	}
	v.burden(sl.requests, false)
	return v
}

// with adds slots to a view of a node.
func (s *State) with(n *node, v *view, slots []*slot) *view {
	for _, sl := range slots {
		for _, d := range sl.devices {
			if c := v.take(d); c != nil {
				c.leave(&v.state)
			}
		}
		if sl.node == n.name {
			addAll(v.used, sl.requests)
			v.pods++
		}
	}
	if len(slots) > 0 {
		n.counters.shut(v)
		v.refused, v.keys = nil, keysOf(n, v.cards)
	}
	return v
}

// bare is what claims and bound pods leave of a node, without those of some
// workloads, and without what is promised. It is the caller's own.
func (s *State) bare(n *node, without map[engine.WorkloadID]bool) *view {
	if len(without) > 0 {
		return s.sum(n, without)
	}
	return s.held(n).clone()
}

// held is what claims and bound pods leave of a node. It is not to be changed.
//
// While nothing is promised on a node that is all, and there is one view of it.
func (s *State) held(n *node) *view {
	if n.held != nil {
		return n.held
	}
	if len(n.slots) > 0 || len(s.roaming) > 0 {
		n.held = s.sum(n, nil)
		return n.held
	}
	if n.base == nil {
		n.base = s.sum(n, nil)
	}
	return n.base
}

// sum adds up what claims and bound pods have of a node. What is taken of a pool
// counts on every node that can use it.
func (s *State) sum(n *node, without map[engine.WorkloadID]bool) *view {
	if n.cards == nil {
		n.cards = cardsOf(n.slices)
		n.forgetKinds()
		n.counters = tallyOf(n.cards, n.slices)
	}
	v := &view{state: newAllocated(), used: corev1.ResourceList{}, cards: slices.Clone(n.cards), counters: n.counters.all}
	var seen []poolKey
	for _, list := range [][]*resourceapi.ResourceSlice{n.slices, s.shared} {
		for _, slice := range list {
			key := poolKey{slice.Spec.Driver, slice.Spec.Pool.Name}
			if !slices.Contains(seen, key) {
				seen = append(seen, key)
				s.takePool(v, key, without)
			}
		}
	}
	for _, p := range n.pods {
		if !without[p.workload] {
			addAll(v.used, p.requests)
			v.pods++
		}
	}
	for i := range v.cards {
		v.cards[i].leave(&v.state)
	}
	n.counters.shut(v)
	v.keys = keysOf(n, v.cards)
	return v
}

// clone is a view of one's own. What is taken of single cards is shared until it
// changes.
func (v *view) clone() *view {
	c := &view{used: make(corev1.ResourceList, len(v.used)+2), pods: v.pods, keys: v.keys, counters: v.counters}
	for name, q := range v.used {
		c.used[name] = q.DeepCopy()
	}
	for i := range v.cards {
		v.cards[i].lent = true
	}
	c.cards = slices.Clone(v.cards)
	c.state.AllocatedDevices = maps.Clone(v.state.AllocatedDevices)
	c.state.AllocatedSharedDeviceIDs = maps.Clone(v.state.AllocatedSharedDeviceIDs)
	c.state.AggregatedCapacity = make(structured.ConsumedCapacityCollection, len(v.state.AggregatedCapacity)+1)
	for id, sum := range v.state.AggregatedCapacity {
		if c.cardOf(id) == nil {
			sum = sum.Clone()
		}
		c.state.AggregatedCapacity[id] = sum
	}
	return c
}

// over says that more is taken of some card than there is.
func (v *view) over() bool {
	return slices.ContainsFunc(v.cards, func(c card) bool { return c.over })
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// roams says whether a slot has devices of a pool that belongs to no single node.
func (s *State) roams(sl *slot) bool {
	if len(s.shared) == 0 {
		return false
	}
	return slices.ContainsFunc(sl.devices, func(d device) bool {
		p := s.pools[d.key]
		return p != nil && p.open > 0
	})
}

// reroam finds anew which slots have such devices.
func (s *State) reroam() {
	clear(s.roaming)
	for _, w := range s.workloads {
		for _, sl := range w.slots {
			if s.roams(sl) {
				s.roaming[sl] = struct{}{}
			}
		}
	}
}
