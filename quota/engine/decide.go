package engine

import "sort"

// Decide admits and evicts until nothing more can be done, and returns what it
// did, assumed already. A nil fit means that room is not in question. The result
// is empty when nothing has changed since the last call.
//
// Each tree of budgets is taken for itself. In a round the head of every queue
// that may have a chance is tried; those that can go are taken in order (less
// borrowing, higher priority, older; or by share, in fair sharing), each against
// what the ones before it left. Rounds go on until no head can go.
func (e *Engine) Decide(fit Fit) []Decision {
	e.settle()
	e.out = nil
	if fit != nil {
		for _, id := range e.drops {
			fit.Drop(id)
		}
	}
	e.drops = e.drops[:0]
	e.evictSuspects()
	for len(e.touchedTrees) > 0 {
		trees := e.touchedTrees
		e.touchedTrees = nil
		sort.Slice(trees, func(i, j int) bool { return trees[i].root.before(trees[j].root) })
		for _, t := range trees {
			t.touched = false
			if t.root.tree == t {
				e.run(t, fit)
			}
		}
	}
	return e.out
}

// run decides for one tree.
func (e *Engine) run(t *tree, fit Fit) {
	e.keepPromises(t, fit)
	for len(t.ready) > 0 {
		batch := t.ready
		t.ready = nil
		count := 0
		for _, q := range batch {
			q.inReady = false
			if count == len(e.round) {
				e.round = append(e.round, &nomination{})
			}
			if e.nominateHead(e.round[count], q) {
				count++
			}
		}
		e.processRound(t, e.round[:count], fit)
		for _, q := range batch {
			e.wakeQueue(q)
		}
	}
}

// nominateHead tries the heads of a queue until one can go; those that cannot
// are set aside.
func (e *Engine) nominateHead(n *nomination, q *queue) bool {
	for {
		w := e.head(q)
		if w == nil {
			return false
		}
		e.nominate(n, q, w, w.class.plan, nil)
		if n.mode.viable() {
			return true
		}
		e.refuse(n)
	}
}

func (e *Engine) processRound(t *tree, round []*nomination, fit Fit) {
	if e.opts.fair {
		e.tournament(t, round, fit)
		return
	}
	sort.Slice(round, func(i, j int) bool {
		a, b := round[i], round[j]
		if a.borrow != b.borrow {
			return a.borrow < b.borrow
		}
		return goesBefore(a.w, b.w)
	})
	for _, n := range round {
		e.process(n, fit)
	}
}

// process acts on a nomination. If others have since taken what it counted on,
// it is made anew, and left for the next round if it now borrows from farther.
func (e *Engine) process(n *nomination, fit Fit) {
	if n.version != e.version && !(n.mode == fits && n.stillFits()) {
		before := n.borrow
		e.nominate(n, n.q, n.w, n.p, nil)
		if n.mode.viable() && n.borrow > before {
			return
		}
	}
	switch {
	case n.mode == fits:
		e.tryRoom(n, fit)
	case n.mode.viable():
		e.evictFor(n, fit)
	default:
		e.refuse(n)
	}
}

func (n *nomination) stillFits() bool {
	for _, c := range n.charges {
		if c.amount > c.cell.free() {
			return false
		}
	}
	return true
}

// admit gives a workload its quota.
func (e *Engine) admit(w *work, q *queue, a Assignment, charges []charge, p *Placement, fit Fit) {
	e.leave(w)
	w.hold = &hold{
		queue: q, state: holding, at: e.now, assignment: a,
		charges: append([]charge(nil), charges...), placement: p,
	}
	e.charge(w)
	e.admitted(w, fit)
}

// admitted tells of a new hold.
func (e *Engine) admitted(w *work, fit Fit) {
	e.version++
	e.unkeep(w)
	w.said, w.roomSince = saying{}, 0
	h := w.hold
	if fit != nil && h.placement != nil {
		fit.Take(w.id, *h.placement)
	}
	e.chargeUsage(w)
	e.holderChanged(h.queue)
	e.out = append(e.out, Admit{ID: w.id, Assignment: h.assignment, Placement: h.placement})
}

// refuse sets the class of a nomination aside until something changes, and says
// why to its head.
func (e *Engine) refuse(n *nomination) {
	c := n.w.class
	c.room = n.room
	if n.room != nil {
		e.waitForRoom(n)
	}
	c.preempts = !n.w.gated && n.q.mayPreempt()
	e.park(c)
	e.say(n.w)
}

func (q *queue) mayPreempt() bool {
	p := q.spec.Preemption
	return p.WithinQueue != Never && p.WithinQueue != "" || p.Reclaim != Never && p.Reclaim != ""
}

// say gives a Wait if the reason is new.
func (e *Engine) say(w *work) {
	why := e.Why(w.id)
	s := saying{why.Reason, why.Resource, why.Flavor, why.Never}
	if w.said == s {
		return
	}
	w.said = s
	e.out = append(e.out, Wait{ID: w.id, Why: why})
}

// saying is what makes a reason new.
type saying struct {
	reason   Reason
	resource Resource
	flavor   FlavorName
	never    bool
}

// keepPromises admits the promised whose quota is free by now.
func (e *Engine) keepPromises(t *tree, fit Fit) {
	if len(t.promised) == 0 {
		return
	}
	waiting := append([]*work(nil), t.promised...)
	sort.Slice(waiting, func(i, j int) bool { return goesBefore(waiting[i], waiting[j]) })
	for _, w := range waiting {
		e.keepPromise(t, w, fit)
	}
}

func (e *Engine) keepPromise(t *tree, w *work, fit Fit) {
	h := w.hold
	for _, c := range h.charges {
		if c.amount > c.cell.available(held) || c.cell.available(planned) < 0 {
			if t.inFlight == 0 {
				e.cancelPromise(w)
				e.seat(w)
			}
			return
		}
	}
	if fit != nil && !e.elastic(h) {
		p, no := fit.Place(w.workload(), h.assignment, nil)
		if no != nil {
			if t.inFlight == 0 || len(h.victims) == 0 {
				e.cancelPromise(w)
				e.seat(w)
			}
			return
		}
		h.placement = &p
	}
	e.uncharge(w)
	h.state, h.at, h.victims = holding, e.now, nil
	e.charge(w)
	e.admitted(w, fit)
}

// elastic says that room need not be awaited for an assignment.
func (e *Engine) elastic(h *hold) bool {
	for _, ps := range h.assignment.PodSets {
		grows := false
		for _, f := range ps.Flavors {
			grows = grows || e.flavors[f].Elastic
		}
		if !grows {
			return false
		}
	}
	return len(h.assignment.PodSets) > 0
}

// wakeTree has everybody in a tree tried again.
func (e *Engine) wakeTree(t *tree) {
	e.touch(t)
	for _, q := range t.queues {
		for _, c := range q.classes {
			e.unpark(c)
		}
	}
}

// wakePreemptors has those tried again who found nobody to evict.
func (e *Engine) wakePreemptors(t *tree) {
	for _, q := range t.queues {
		for _, c := range q.classes {
			if c.preempts {
				e.unpark(c)
			}
		}
	}
}
