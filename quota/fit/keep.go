package fit

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sort"

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

// keepTries bounds among how many nodes that would do the best place to keep is
// looked for.
const keepTries = 32

// keep finds the place that is best kept free for a workload which waits for
// room: for each pod, the node and the cards on it of which the least is in use.
// What is in use there goes on; nobody else comes. A place that it was given
// before is kept while the node would still take the pod, so that waiting is not
// begun anew, or until there is one that can be used at once: under a job of days it
// is exchanged for what others have left meanwhile. What the workloads in without
// have does not count.
func (s *State) keep(id engine.WorkloadID, a engine.Assignment, without []engine.WorkloadID) (engine.Placement, bool) {
	w := s.workloads[id]
	if w == nil {
		return engine.Placement{}, false
	}
	t := s.look(id, without...)
	t.before = 0
	k := &keeper{s: s, rank: w.kept, before: slices.Clone(w.slots), full: map[*node]string{}, none: map[string]bool{}}
	for _, other := range without {
		k.inherit(s.workloads[other], id)
	}
	if k.rank == 0 {
		s.keeps++
		k.rank = s.keeps
	}
	if len(k.before) > 0 {
		// All that is kept counts, also what is kept for others of its pods.
		k.free = s.look("", without...)
	}
	placed, why := s.placeAll(id, w, &a, t, k.find)
	if why != nil {
		return engine.Placement{}, false
	}
	return placement(placed), true
}

// keeper looks for the places that are kept for one workload.
type keeper struct {
	s    *State
	rank int64
	// before are places that are kept already and not given again yet.
	before []*slot
	// free is the trial in which places are looked for that can be used at once; nil
	// if none was kept before. None are the claims for which there are none.
	free *trial
	none map[string]bool
	// full has what no node is tried for again: of pods that ask alike, none goes
	// where one before had no place.
	full map[*node]string
}

// inherit takes over the rank and the places of another, who does not count, if
// nothing is kept yet.
func (k *keeper) inherit(other *workload, id engine.WorkloadID) {
	if other == nil || other.kept == 0 || k.rank > 0 {
		return
	}
	k.rank = other.kept
	for _, sl := range other.slots {
		mine := *sl
		mine.workload = id
		k.before = append(k.before, &mine)
	}
}

// find is a finder.
func (k *keeper) find(q *query, t *trial, shared map[string]string) (*slot, *noRoom) {
	sl := k.next(q)
	if sl != nil {
		n := k.s.nodes[sl.node]
		stays := n != nil && q.welcome(n) == nil && q.large(n) == nil
		if stays && k.s.usable(q, n, sl, t) {
			return sl, nil
		}
		if now := k.atOnce(q, shared); now != nil {
			return now, nil
		}
		if stays && k.s.stillKept(q, n, sl, t) {
			return sl, nil
		}
	}
	if sl = k.s.keepOne(q, t, k.full); sl == nil {
		return nil, &noRoom{}
	}
	sl.awaited, sl.kept = true, k.rank
	return sl, nil
}

// next takes the next of the places that are kept already for pods of a set.
func (k *keeper) next(q *query) *slot {
	i := slices.IndexFunc(k.before, func(sl *slot) bool { return sl.set == q.set.Name && sl.pod == "" && sl.kind == q.key })
	if i < 0 {
		return nil
	}
	sl := k.before[i]
	k.before = slices.Delete(k.before, i, i+1)
	return sl
}

// atOnce is a place that a pod could have now, nil if there is none.
func (k *keeper) atOnce(q *query, shared map[string]string) *slot {
	if q.key != "" && k.none[q.key] {
		return nil
	}
	sl, why := k.s.placeOne(q, k.free, shared)
	if why != nil {
		k.none[q.key] = true
		return nil
	}
	k.s.put(k.free, sl)
	sl.awaited, sl.kept = true, k.rank
	return sl
}

// usable says that nobody else has anything of a place any more.
func (s *State) usable(q *query, n *node, sl *slot, t *trial) bool {
	v := s.view(n, t)
	if v.short(n, q) != nil {
		return false
	}
	v = s.with(n, v.clone(), []*slot{sl})
	return !slices.ContainsFunc(sl.devices, func(d device) bool {
		c := v.cardOf(d.id)
		return c != nil && c.over
	})
}

// Places that are kept can be in each other's way: two cards are kept for one, the
// card between them for another, and the scheduler, which gives the first that are
// free, would give either the other's. Each would wait for the other for good. So
// whoever was first does not wait for places that are kept for those after him, nor
// do those for whom others were asked to leave; who is in their way is given another
// place when he is looked at next.

// outranks is the rank from which on kept places are not in the way of a workload, 0
// if all are.
func (w *workload) outranks() int64 {
	switch {
	case w.kept > 0:
		return w.kept + 1
	case slices.ContainsFunc(w.slots, func(sl *slot) bool { return sl.awaited }):
		return 1
	}
	return 0
}

// displaceKept gives up the kept places, of some rank on, that are in the way of
// others, the last first.
func (s *State) displaceKept(placed []*slot, before int64) {
	for _, sl := range placed {
		n := s.nodes[sl.node]
		for n != nil {
			l := s.lineOf(n, &trial{})
			var last *slot
			for _, o := range l.awaited {
				if o.kept >= before && (last == nil || o.kept > last.kept) {
					last = o
				}
			}
			if last == nil || s.remains(n, sl) && s.safe(n, line{flight: slices.Concat(l.flight, l.promised), awaited: l.awaited}, nil) {
				break
			}
			s.setSlots(s.workloads[last.workload], nil)
		}
	}
}

// remains says that there is room for a slot beside all others of its node.
func (s *State) remains(n *node, sl *slot) bool {
	if len(sl.claims) == 0 {
		return true
	}
	results, err := s.allocate(sl.workload, n, s.compute(n, &trial{skip: sl}).state, sl.claims)
	return err == nil && results != nil
}

// stillKept says that a place would do as soon as those have gone who are on its
// cards.
func (s *State) stillKept(q *query, n *node, sl *slot, t *trial) bool {
	if len(sl.devices) == 0 {
		return true
	}
	v := s.view(n, t)
	state, promised := copyState(v), s.promises(n, t)
	for _, d := range sl.devices {
		c := v.cardOf(d.id)
		if c == nil {
			if n.has(d.key) {
				return false
			}
			continue
		}
		for _, c := range v.together(c) {
			copyDevice(&state, &promised, c.id)
		}
	}
	results, err := s.allocate(q.workload, n, state, q.claims)
	return err == nil && results != nil
}

// keepOne finds the node that needs to lose least for one pod. Places promised
// to others stay theirs.
func (s *State) keepOne(q *query, t *trial, full map[*node]string) *slot {
	var best *slot
	var least int64
	tried := 0
	for _, n := range slices.Backward(q.index.free) {
		if tried == keepTries {
			break
		}
		if q.fixed != "" && q.fixed != n.name || q.welcome(n) != nil || q.large(n) != nil || q.busyPlugin(n) != nil || !s.couldServe(q, n) {
			continue
		}
		if key, ok := full[n]; ok && key == q.key {
			continue
		}
		sl, lost := s.clear(q, n, t)
		if sl == nil {
			full[n] = q.key
			continue
		}
		if tried++; best == nil || lost < least {
			best, least = sl, lost
		}
	}
	return best
}

// couldServe says whether a node could serve a pod if nobody else were there. It is
// remembered until the node's devices change.
func (s *State) couldServe(q *query, n *node) bool {
	if len(q.claims) == 0 {
		return true
	}
	if could, known := n.could[q.key]; known && q.key != "" && len(s.shared) == 0 {
		return could
	}
	results, err := s.allocate(q.workload, n, newAllocated(), q.claims)
	could := err == nil && results != nil
	if errors.Is(err, errTooMany) {
		return false
	}
	if n.could == nil || len(n.could) >= mostKnown {
		n.could = map[string]bool{}
	}
	n.could[q.key] = could
	return could
}

// clear finds the fewest cards of a node that have to become empty for a pod to
// fit, the emptiest first, and how much is in use of them. Cards that draw from
// the same counters are one.
func (s *State) clear(q *query, n *node, t *trial) (*slot, int64) {
	v := s.view(n, t)
	promised := s.promises(n, t)
	type group struct {
		cards []*card
		inUse int64
	}
	var order []group
	seen := map[*card]bool{}
	for i := range v.cards {
		if seen[&v.cards[i]] {
			continue
		}
		g := group{cards: v.together(&v.cards[i])}
		touched := false
		for _, c := range g.cards {
			seen[c], touched = true, touched || c.touched
			if c.touched {
				g.inUse += max(0, c.memory) - c.freeMemory
			}
		}
		if touched {
			order = append(order, g)
		}
	}
	slices.SortStableFunc(order, func(a, b group) int { return cmp.Compare(a.inUse, b.inUse) })
	// As if so many of them held nothing but what is promised of them.
	without := func(k int) *slot {
		state := copyState(v)
		for _, g := range order[:k] {
			for _, c := range g.cards {
				copyDevice(&state, &promised, c.id)
			}
		}
		results, err := s.allocate(q.workload, n, state, q.claims)
		if err != nil || results == nil {
			return nil
		}
		return q.slotOn(n, results)
	}
	found := without(len(order))
	if found == nil {
		return nil, 0
	}
	need := sort.Search(len(order), func(k int) bool {
		sl := without(k)
		if sl != nil {
			found = sl
		}
		return sl != nil
	})
	lost := int64(0)
	for _, g := range order[:need] {
		lost += g.inUse
	}
	return found, lost
}

// together are the cards that draw from the counters that a card draws from, or
// the card alone.
func (v *view) together(c *card) []*card {
	if len(c.draws) == 0 {
		return []*card{c}
	}
	var all []*card
	for i := range v.cards {
		if o := &v.cards[i]; slices.ContainsFunc(o.draws, func(d draw) bool {
			return slices.ContainsFunc(c.draws, func(mine draw) bool { return mine.counter == d.counter })
		}) {
			all = append(all, o)
		}
	}
	return all
}

// copyState is what is taken of the cards of a view, to be changed by copyDevice.
func copyState(v *view) structured.AllocatedState {
	return structured.AllocatedState{
		AllocatedDevices:         maps.Clone(v.state.AllocatedDevices),
		AllocatedSharedDeviceIDs: maps.Clone(v.state.AllocatedSharedDeviceIDs),
		AggregatedCapacity:       maps.Clone(v.state.AggregatedCapacity),
	}
}

// promises is what is promised of the cards of a node, without what claims hold.
func (s *State) promises(n *node, t *trial) structured.AllocatedState {
	state := newAllocated()
	for i, list := range [][]*slot{n.slots, t.slots} {
		for _, sl := range list {
			if sl.node != n.name || i == 0 && !t.counts(sl) {
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
