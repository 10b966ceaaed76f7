package engine

import (
	"slices"
	"sort"
)

// Room on real cards, which is asked for only when the budget admits.

// tryRoom admits a nomination that fits, if there is room for it: on the flavors
// it was given, or on others that it may have. If there is not, it may evict for
// room as it may evict for quota.
func (e *Engine) tryRoom(n *nomination, fit Fit) {
	a := n.assignment()
	if fit == nil {
		e.admit(n.w, n.q, a, n.charges, nil, fit)
		return
	}
	first := a
	var firstNo *NoRoom
	for {
		p, no := fit.Place(n.w.workload(), a, nil)
		if no == nil {
			e.admit(n.w, n.q, a, n.charges, &p, fit)
			return
		}
		if e.elastic(a) {
			e.admit(n.w, n.q, a, n.charges, nil, fit)
			return
		}
		if firstNo == nil {
			firstNo = no
		}
		if !n.exclude(no) {
			break
		}
		if e.renominate(n, nil); n.mode != fits {
			break
		}
		a = n.assignment()
	}
	if len(n.excluded) > 0 {
		// Back to the flavors that the queue prefers.
		n.excluded = n.excluded[:0]
		e.renominate(n, nil)
	}
	n.room = firstNo
	if e.takeOver(n, fit) {
		e.tryRoom(n, fit)
		return
	}
	if n.w.gated || !n.q.mayPreempt() || firstNo.Never {
		e.refuse(n)
		return
	}
	if e.leaving > 0 {
		if p, no := fit.Place(n.w.workload(), first, e.goneWith(nil)); no == nil {
			e.promise(n, first, &p, fit)
			return
		}
	}
	e.evictForRoom(n, first, firstNo, fit)
}

// elastic says that room need not be awaited for an assignment.
func (e *Engine) elastic(a Assignment) bool {
	for _, ps := range a.PodSets {
		grows := len(ps.Flavors) == 0
		for _, f := range ps.Flavors {
			grows = grows || e.flavors[f].Elastic
		}
		if !grows {
			return false
		}
	}
	return true
}

// exclude keeps the flavors without room out of further trials, and says
// whether another may be left.
func (n *nomination) exclude(no *NoRoom) bool {
	before := len(n.excluded)
	for _, p := range n.picks {
		options := n.p.sets[p.set].groups[p.group].options
		if len(options) > 1 && no.about(options[p.option].flavor) {
			n.excluded = append(n.excluded, p)
		}
	}
	return len(n.excluded) > before
}

// about says whether a flavor may be one that lacks room.
func (n *NoRoom) about(f FlavorName) bool {
	if len(n.Flavors) == 0 {
		return true
	}
	for _, g := range n.Flavors {
		if f == g {
			return true
		}
	}
	return false
}

// evictForRoom finds victims that leave a hole large enough, and evicts them.
// They are candidates as for quota, whether or not their quota is needed, and
// none of them could stay.
func (e *Engine) evictForRoom(n *nomination, a Assignment, no *NoRoom, fit Fit) {
	n.room = no
	victims := append([]victim(nil), n.victims...)
	n.contested = n.contested[:0]
	for _, c := range n.charges {
		if no.about(c.cell.Flavor) {
			n.contested = append(n.contested, c.cell)
		}
	}
	chosen := map[*work]bool{}
	for _, v := range victims {
		e.imagineGone(v.w)
		chosen[v.w] = true
	}
	budget := len(victims)
	c := &e.found
	c.collect(n)
	c.rewind()
	for w, t := c.next(n.borrow > 0); w != nil; w, t = c.next(n.borrow > 0) {
		if !chosen[w] {
			e.imagineGone(w)
			victims = append(victims, victim{w, c.reason(w, t)})
		}
	}
	view := n.w.workload()
	var placement Placement
	placed := func(v []victim) bool {
		p, no := fit.Place(view, a, e.goneWith(v))
		if no == nil {
			placement = p
		}
		return no == nil
	}
	if len(victims) == budget || !placed(victims) {
		e.restore(victims)
		n.victims = n.victims[:0]
		e.refuse(n)
		return
	}
	// The fewest of them, in order, then only those that are needed.
	need := budget + sort.Search(len(victims)-budget, func(k int) bool { return placed(victims[:budget+k]) })
	e.restore(victims[need:])
	victims = victims[:need]
	victims = e.onlyDisplaced(n, victims, budget, &placement, placed)
	for i := len(victims) - 1; i >= 0; i-- {
		e.imagineBack(victims[i].w)
		fewer := append(append([]victim(nil), victims[:i]...), victims[i+1:]...)
		if n.fitsPlanned(true) && placed(fewer) {
			victims = fewer
		} else {
			e.imagineGone(victims[i].w)
		}
	}
	placed(victims)
	e.restore(victims)
	n.victims = append(n.victims[:0], victims...)
	e.promise(n, a, &placement, fit)
}

// onlyDisplaced lets those go back at once that have nothing where the workload
// goes, if it can go there all the same. The first victims, who go for quota,
// stay among them.
func (e *Engine) onlyDisplaced(n *nomination, victims []victim, budget int, p *Placement, placed func([]victim) bool) []victim {
	if p.Displaces == nil {
		return victims
	}
	there := map[WorkloadID]bool{}
	for _, id := range p.Displaces {
		there[id] = true
	}
	rest := append([]victim(nil), victims[:budget]...)
	var elsewhere []victim
	for _, v := range victims[budget:] {
		if there[v.w.id] {
			rest = append(rest, v)
		} else {
			elsewhere = append(elsewhere, v)
		}
	}
	if len(elsewhere) == 0 || !placed(rest) {
		return victims
	}
	e.restore(elsewhere)
	if n.fitsPlanned(true) {
		return rest
	}
	for _, v := range elsewhere {
		e.imagineGone(v.w)
	}
	return victims
}

// waitForRoom lists a class among those to try when room changes.
func (e *Engine) waitForRoom(n *nomination) {
	c := n.w.class
	e.roomWaiters[c] = struct{}{}
	c.roomFlavors = n.room.Flavors
	if e.opts.holeAfter > 0 && !n.w.inRoomLine {
		if n.w.roomSince == 0 {
			n.w.roomSince = e.now
		}
		n.w.inRoomLine = true
		e.roomLine = append(e.roomLine, n.w)
	}
}

// roomChanged wakes those that wait for room in one of the flavors, and those
// promised room.
func (e *Engine) roomChanged(flavors []FlavorName) {
	for t := range e.trees {
		if len(t.promised) > 0 {
			e.touch(t)
		}
	}
	for c := range e.roomWaiters {
		if len(flavors) == 0 || len(c.roomFlavors) == 0 || overlaps(flavors, c.roomFlavors) {
			delete(e.roomWaiters, c)
			if c.size() > 0 {
				e.unpark(c)
			}
		}
	}
}

func overlaps(a, b []FlavorName) bool {
	for _, x := range a {
		for _, y := range b {
			if x == y {
				return true
			}
		}
	}
	return false
}

// keepHoles reserves a place for those that have waited for room too long, one in
// each queue: a place kept is room that nobody uses. It is for whom the queue would
// serve first: one of a lower priority leaves it.
func (e *Engine) keepHoles(fit Fit) {
	if fit == nil || len(e.roomLine) == 0 {
		return
	}
	line := e.roomLine[:0]
	for _, w := range e.roomLine {
		if !w.awaitsRoom(e) {
			w.inRoomLine = false
			continue
		}
		line = append(line, w)
		if w.keptBy != nil || w.class.room.Keep == nil || w.roomSince+instant(e.opts.holeAfter) > e.now {
			continue
		}
		var lower *work
		if len(w.class.queue.keeps) > 0 {
			if lower = e.keptBelow(w); lower == nil {
				continue
			}
		}
		e.keep(w, lower, fit)
	}
	clear(e.roomLine[len(line):])
	e.roomLine = line
}

// keep reserves a place for a workload that waits for room, if there is one: maybe
// that of a lower one, nil for none, which loses it then.
func (e *Engine) keep(w, lower *work, fit Fit) {
	var without []WorkloadID
	if lower != nil {
		without = append(without, lower.id)
	}
	p, ok := w.class.room.Keep(w.id, without...)
	if !ok {
		return
	}
	if lower != nil {
		e.unkeepFor(lower)
	}
	w.keptBy = w.class.queue
	w.keptBy.keeps = append(w.keptBy.keeps, w)
	fit.Take(w.id, p)
}

// keptBelow is the workload of the same queue and a lower priority for which a place
// is kept, nil if there is none.
func (e *Engine) keptBelow(w *work) *work {
	for _, o := range w.class.queue.keeps {
		if o.priority < w.priority && o.awaitsRoom(e) && o.class.room.Keep != nil {
			return o
		}
	}
	return nil
}

// takeOver has the place that is kept for one be kept for another that is like him and
// goes before him: he was evicted, and is older. Nobody else of them is tried, so the
// place would be kept for ever from those whom it would do for. False means that there
// is none.
func (e *Engine) takeOver(n *nomination, fit Fit) bool {
	if n.w.keptBy != nil || n.room.Keep == nil {
		return false
	}
	i := slices.IndexFunc(n.q.keeps, func(o *work) bool { return o.class == n.w.class })
	if i < 0 {
		return false
	}
	o := n.q.keeps[i]
	p, ok := n.room.Keep(n.w.id, o.id)
	if !ok {
		return false
	}
	n.w.roomSince = o.roomSince
	e.unkeepFor(o)
	n.w.keptBy = n.q
	n.q.keeps = append(n.q.keeps, n.w)
	fit.Take(n.w.id, p)
	return true
}

// keepStill moves a kept place that would not do any more.
func (e *Engine) keepStill(n *nomination, fit Fit) {
	if n.w.keptBy == nil || fit == nil || n.room == nil || n.room.Keep == nil {
		return
	}
	if p, ok := n.room.Keep(n.w.id); ok {
		fit.Take(n.w.id, p)
	}
}

// awaitsRoom says that a workload still waits for nothing but room.
func (w *work) awaitsRoom(e *Engine) bool {
	return e.works[w.id] == w && w.roomSince != 0 && w.class != nil && w.class.room != nil
}

// unkeep gives up a place that was kept; taken says that another one takes its
// place.
func (e *Engine) unkeep(w *work, taken bool) {
	if w.keptBy != nil && !taken {
		e.drop(w)
	}
	if w.keptBy != nil {
		w.keptBy.keeps = slices.DeleteFunc(w.keptBy.keeps, func(o *work) bool { return o == w })
	}
	w.keptBy, w.roomSince = nil, 0
}

// unkeepFor gives up the place that is kept for a workload which waits for
// something else by now. How long it has waited is not forgotten.
func (e *Engine) unkeepFor(w *work) {
	if w.keptBy != nil {
		since := w.roomSince
		e.unkeep(w, false)
		w.roomSince = since
	}
}

func (e *Engine) nextRoomTick() instant {
	next := instant(0)
	for _, w := range e.roomLine {
		due := w.roomSince + instant(e.opts.holeAfter)
		may := w.awaitsRoom(e) && w.keptBy == nil && (len(w.class.queue.keeps) == 0 || due > e.now && e.keptBelow(w) != nil)
		if may && (next == 0 || due < next) {
			next = due
		}
	}
	return next
}
