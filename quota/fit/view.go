package fit

import (
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
	t.found = true
	for sl := range s.lost {
		s.differSlot(t, sl)
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
	return sl != t.skip && sl.workload != t.own && !t.without[sl.workload] && !(t.found && sl.lost)
}

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

// compute sums up what is taken of a node. What is taken of a pool counts on
// every node that can use it.
func (s *State) compute(n *node, t *trial) *view {
	if n.cards == nil {
		n.cards, n.selected = cardsOf(n.slices), nil
	}
	v := &view{state: newAllocated(), used: corev1.ResourceList{}, cards: slices.Clone(n.cards)}
	var seen []poolKey
	for _, list := range [][]*resourceapi.ResourceSlice{n.slices, s.shared} {
		for _, slice := range list {
			key := poolKey{slice.Spec.Driver, slice.Spec.Pool.Name}
			if !slices.Contains(seen, key) {
				seen = append(seen, key)
				s.takePool(v, key, t)
			}
		}
	}
	for _, p := range n.pods {
		if !t.without[p.workload] {
			addAll(v.used, p.requests)
			v.pods++
		}
	}
	add := func(sl *slot) {
		for _, d := range sl.devices {
			v.take(d)
		}
		if sl.node == n.name {
			addAll(v.used, sl.requests)
			v.pods++
		}
	}
	for _, sl := range n.slots {
		if t.counts(sl) {
			add(sl)
		}
	}
	for sl := range s.roaming {
		if t.counts(sl) && sl.node != n.name {
			add(sl)
		}
	}
	for _, sl := range t.slots {
		if sl.node == n.name || s.roams(sl) {
			add(sl)
		}
	}
	for i := range v.cards {
		v.cards[i].leave(&v.state)
	}
	closeByCounters(v.cards, n.slices)
	v.keys = keysOf(n, v.cards)
	return v
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

// take adds a device to what is taken, without saying what is left of the cards.
func (v *view) take(d device) *card {
	take(&v.state, d)
	c := v.card(d)
	if c != nil && d.ShareID == nil {
		c.whole++
	} else if c != nil {
		c.shares++
	}
	return c
}

// card is the card of a node that a result names, nil if it is none of the node's
// own or takes nothing of it.
func (v *view) card(d device) *card {
	if d.AdminAccess != nil && *d.AdminAccess {
		return nil
	}
	for i := range v.cards {
		if v.cards[i].id == d.id {
			return &v.cards[i]
		}
	}
	return nil
}

// giveBack is the inverse of take.
func (v *view) giveBack(d device) *card {
	c := v.card(d)
	if c == nil {
		return nil
	}
	if d.ShareID == nil {
		if c.whole--; c.whole == 0 {
			v.state.AllocatedDevices.Delete(c.id)
		}
		return c
	}
	for name, q := range d.ConsumedCapacity {
		if sum := v.state.AggregatedCapacity[c.id][name]; sum != nil {
			sum.Sub(q)
		}
	}
	if c.shares--; c.shares == 0 {
		v.state.AllocatedSharedDeviceIDs.Delete(oneShare(c.id))
		delete(v.state.AggregatedCapacity, c.id)
	}
	return c
}

// change follows, in what is left of a node, that devices are taken or given
// back. It leaves to compute what is more than a matter of single cards.
func (s *State) change(n *node, devices []device, taken bool) {
	v := n.base
	defer s.mark(n)
	if v == nil {
		return
	}
	for _, d := range devices {
		if d.AdminAccess != nil && *d.AdminAccess || !n.has(d.key) {
			continue
		}
		var c *card
		if taken {
			c = v.take(d)
		} else {
			c = v.giveBack(d)
		}
		if c == nil || len(c.device.ConsumesCounters) > 0 {
			n.base = nil
			return
		}
		c.leave(&v.state)
	}
	v.refused = nil
	v.keys = keysOf(n, v.cards)
}

// has says whether a node has slices of a pool.
func (n *node) has(key poolKey) bool {
	return slices.ContainsFunc(n.slices, func(o *resourceapi.ResourceSlice) bool {
		return o.Spec.Driver == key.driver && o.Spec.Pool.Name == key.name
	})
}

// burden follows the same for what a pod takes besides devices.
func (s *State) burden(n *node, requests corev1.ResourceList, taken bool) {
	defer s.mark(n)
	if n.base == nil {
		return
	}
	if taken {
		addAll(n.base.used, requests)
		n.base.pods++
		return
	}
	for name, q := range requests {
		total := n.base.used[name]
		total.Sub(q)
		n.base.used[name] = total
	}
	n.base.pods--
}

func (s *State) takePool(v *view, key poolKey, t *trial) {
	p := s.pools[key]
	if p == nil {
		return
	}
	for _, h := range p.taken {
		if t.without[h.workload] {
			continue
		}
		for i := range h.results {
			if h.results[i].key == key {
				v.take(h.results[i])
			}
		}
	}
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
