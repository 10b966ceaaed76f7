package engine

import (
	"container/heap"
	"sort"
)

// Decide admits and evicts until nothing more can be done, and returns what it
// did, assumed already. A nil fit means that room is not in question. The result
// is empty when nothing has changed since the last call.
//
// Each tree of budgets is taken for itself. The head of every queue that may have
// a chance is tried; of those that can go the first is taken (less borrowing,
// higher priority, older; or by share, in fair sharing), then the queue's next
// head takes its place, until no head can go. So nobody is admitted who would be
// evicted again for a workload that waited already.
func (e *Engine) Decide(fit Fit) []Decision {
	e.settle()
	e.out = nil
	e.fit = fit
	for _, id := range e.drops {
		// Whoever was seen to hold quota since then needs the place.
		if w := e.works[id]; fit != nil && (w == nil || w.hold == nil) {
			fit.Drop(id)
		}
	}
	e.drops = e.drops[:0]
	e.evictSuspects()
	e.keepHoles(fit)
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
	e.fit = nil
	return e.out
}

// drop gives up a reserved place, at once or when the next Decide brings a Fit.
func (e *Engine) drop(w *work) {
	if e.fit != nil {
		e.fit.Drop(w.id)
		return
	}
	e.drops = append(e.drops, w.id)
}

// run decides for one tree.
func (e *Engine) run(t *tree, fit Fit) {
	e.keepPromises(t, fit)
	var order lineup = &e.byBorrowing
	if e.opts.fair && !t.root.isQueue() {
		order = &e.byShare
	}
	for e.enlist(t, order); ; e.enlist(t, order) {
		n := order.next(t)
		if n != nil && len(t.tops) > 0 && e.wakeOwn(n.q) {
			order.add(n)
			continue
		}
		if len(t.tops) > 0 && (n == nil || n.borrow > 0) {
			// Now it is the turn of those who would borrow.
			if n != nil {
				order.add(n)
			}
			e.wakeLater(t)
			continue
		}
		if n == nil {
			break
		}
		n.q.entry = nil
		if e.process(n, fit) {
			e.spares = append(e.spares, n)
		} else {
			n.q.entry = n
			order.add(n)
		}
		e.wakeQueue(n.q)
	}
	order.end(t)
}

// lineup is an order in which nominations are taken.
type lineup interface {
	add(n *nomination)
	remove(n *nomination)
	// next takes the first out, nil if there is none.
	next(t *tree) *nomination
	end(t *tree)
}

// enlist nominates the heads of the queues that may have a chance. A queue has
// one nomination at most, of its present head.
func (e *Engine) enlist(t *tree, order lineup) {
	e.wakeChanged(t)
	for len(t.ready) > 0 {
		ready := t.ready
		t.ready = e.readySpare[:0]
		for _, q := range ready {
			q.inReady = false
			if old := q.entry; old != nil {
				if e.head(q) == old.w {
					continue
				}
				order.remove(old)
				q.entry = nil
				e.spares = append(e.spares, old)
			}
			n := e.spareNomination()
			if !e.nominateHead(n, q) {
				e.spares = append(e.spares, n)
				continue
			}
			q.entry = n
			order.add(n)
		}
		e.readySpare = ready
	}
}

func (e *Engine) spareNomination() *nomination {
	if last := len(e.spares) - 1; last >= 0 {
		n := e.spares[last]
		e.spares = e.spares[:last]
		return n
	}
	return &nomination{}
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

// byBorrowing is the order without fair sharing: less borrowing, higher
// priority, older.
type byBorrowing struct{ entries []*nomination }

func (o *byBorrowing) Len() int { return len(o.entries) }
func (o *byBorrowing) Less(i, j int) bool {
	a, b := o.entries[i], o.entries[j]
	if a.borrow != b.borrow {
		return a.borrow < b.borrow
	}
	return goesBefore(a.w, b.w)
}
func (o *byBorrowing) Swap(i, j int) {
	o.entries[i], o.entries[j] = o.entries[j], o.entries[i]
	o.entries[i].place, o.entries[j].place = i, j
}
func (o *byBorrowing) Push(x any) {
	n := x.(*nomination)
	n.place = len(o.entries)
	o.entries = append(o.entries, n)
}
func (o *byBorrowing) Pop() any {
	last := len(o.entries) - 1
	n := o.entries[last]
	o.entries[last] = nil
	o.entries = o.entries[:last]
	return n
}

func (o *byBorrowing) add(n *nomination)    { heap.Push(o, n) }
func (o *byBorrowing) remove(n *nomination) { heap.Remove(o, n.place) }
func (o *byBorrowing) end(*tree)            {}
func (o *byBorrowing) next(*tree) *nomination {
	if len(o.entries) == 0 {
		return nil
	}
	return heap.Pop(o).(*nomination)
}

// process acts on a nomination. If others have since taken what it counted on,
// it is made anew; false says that it must wait its turn again, since it now
// borrows from farther.
func (e *Engine) process(n *nomination, fit Fit) bool {
	if n.version != e.version {
		before := n.borrow
		e.nominate(n, n.q, n.w, n.p, nil)
		if n.mode.viable() && n.borrow > before && !e.opts.fair {
			return false
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
	h := w.hold
	e.unkeep(w, h.placement != nil)
	w.said = saying{}
	if fit != nil && h.placement != nil {
		fit.Take(w.id, *h.placement)
	}
	e.chargeUsage(w)
	e.out = append(e.out, Admit{ID: w.id, Assignment: h.assignment, Placement: h.placement})
}

// refuse sets the class of a nomination aside until something changes, and says
// why to its head.
func (e *Engine) refuse(n *nomination) {
	c := n.w.class
	c.room = n.room
	if n.room != nil {
		e.waitForRoom(n)
		e.keepStill(n, e.fit)
	} else {
		e.unkeepFor(n.w)
	}
	e.park(c)
	e.setWatches(c, !n.w.gated && n.q.mayPreempt())
	if t := n.q.tree(); len(t.evictions) > 0 {
		t.heldBack = append(t.heldBack, watch{class: c, round: c.round})
	}
	e.say(n.w)
}

func (q *queue) mayPreempt() bool {
	p := q.spec.Preemption
	return p.WithinQueue != Never && p.WithinQueue != "" || p.Reclaim != Never && p.Reclaim != ""
}

// say gives a Wait if the reason is new.
func (e *Engine) say(w *work) {
	why := e.explain(w)
	s := saying{why.Reason, why.Resource, why.Flavor, why.Never}
	if w.said == s {
		return
	}
	w.said = s
	e.addHolders(&why)
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
	if fit != nil {
		p, no := fit.Place(w.workload(), h.assignment, nil)
		switch {
		case no == nil:
			h.placement = &p
		case e.elastic(h.assignment):
			// What it was promised is not there any more, and is not awaited.
			if h.placement != nil {
				e.drop(w)
			}
			h.placement = nil
		default:
			if e.leaving == 0 {
				e.cancelPromise(w)
				e.seat(w)
			}
			return
		}
	}
	e.uncharge(w)
	h.state, h.at, h.victims = holding, e.now, nil
	e.charge(w)
	e.admitted(w, fit)
}
