package engine

import (
	"fmt"
	"sort"
)

// Evictions: whom, in which order, and what follows. All of it is weighed on the
// planned account, on which victims of earlier decisions are gone and the
// workloads they make room for are in. So a victim is never counted twice.

// victim is a workload to evict, and why.
type victim struct {
	w      *work
	reason EvictReason
}

// weighEviction says what it would take to free an amount of one cell: the
// queue's own workloads, others', or that it cannot be done; and how far the
// workload would then borrow.
func (e *Engine) weighEviction(n *nomination, c *cell, amount Amount, borrow int) (mode, int) {
	t := &e.trial
	t.w, t.q = n.w, n.q
	t.charges = append(t.charges[:0], charge{c, amount})
	t.contested = append(t.contested[:0], c)
	e.weighed = e.victims(t, e.weighed[:0])
	if len(e.weighed) == 0 {
		return noCandidates, borrow
	}
	for _, v := range e.weighed {
		e.imagineGone(v.w)
	}
	after, _ := c.distance(planned, amount)
	for _, v := range e.weighed {
		e.imagineBack(v.w)
	}
	for _, v := range e.weighed {
		if v.w.hold.queue == n.q {
			return preempts, after
		}
	}
	return reclaims, after
}

// victims finds workloads whose eviction makes a nomination fit, none of which
// could stay. It appends nothing if there are none.
func (e *Engine) victims(n *nomination, into []victim) []victim {
	if t := &e.trial; n != t && n.w == t.w && len(n.charges) == 1 && len(t.charges) == 1 && n.charges[0] == t.charges[0] {
		// The flavor search has just found them.
		return append(into, e.weighed...)
	}
	if e.opts.fair {
		return e.fairVictims(n, into)
	}
	return e.classicalVictims(n, into)
}

// imagineGone and imagineBack are the steps of a what-if.
func (e *Engine) imagineGone(w *work) {
	for _, c := range w.hold.charges {
		c.cell.change(planned, -c.amount)
	}
}

func (e *Engine) imagineBack(w *work) {
	for _, c := range w.hold.charges {
		c.cell.change(planned, c.amount)
	}
}

// fitsPlanned says whether a nomination fits when all evictions have ended.
func (n *nomination) fitsPlanned(mayBorrow bool) bool {
	for _, c := range n.charges {
		if !mayBorrow && c.cell.exceeds(planned, c.amount) {
			return false
		}
		if c.amount > c.cell.available(planned) {
			return false
		}
	}
	return true
}

// spare puts back every victim that is not needed, the last chosen but one
// first, so that none of those left could stay.
func (e *Engine) spare(n *nomination, victims []victim, from int, mayBorrow bool) []victim {
	for i := len(victims) - 2; i >= from; i-- {
		e.imagineBack(victims[i].w)
		if n.fitsPlanned(mayBorrow) {
			victims = append(victims[:i], victims[i+1:]...)
		} else {
			e.imagineGone(victims[i].w)
		}
	}
	return victims
}

func (e *Engine) restore(victims []victim) {
	for _, v := range victims {
		e.imagineBack(v.w)
	}
}

// uses says whether a workload holds something of a contested cell.
func (n *nomination) uses(w *work) bool {
	for _, c := range w.hold.charges {
		top := c.cell.top()
		for _, x := range n.contested {
			if x.top() == top {
				return true
			}
		}
	}
	return false
}

// permits says whether a policy lets a workload evict another.
func (p PreemptionPolicy) permits(w, other *work) bool {
	switch p {
	case LowerPriority:
		return other.priority < w.priority
	case LowerOrNewerEqualPriority:
		return other.priority < w.priority || other.priority == w.priority && other.queuedAt > w.queuedAt
	case AnyPriority:
		return true
	}
	return false
}

// beyond says that no workload of this priority or higher is permitted.
func (p PreemptionPolicy) beyond(w *work, priority int32) bool {
	switch p {
	case LowerPriority:
		return priority >= w.priority
	case LowerOrNewerEqualPriority:
		return priority > w.priority
	}
	return p != AnyPriority
}

// goesFirst is the order of candidates: those that were only promised quota,
// then as leavesBefore.
func goesFirst(a, b *work) bool {
	pa, pb := a.hold.state == promised, b.hold.state == promised
	if pa != pb {
		return pa
	}
	return leavesBefore(a, b)
}

// evictFor evicts the victims of a nomination, once there will be room for it,
// and promises it what they leave.
func (e *Engine) evictFor(n *nomination, fit Fit) {
	a := n.assignment()
	var placement *Placement
	if fit != nil {
		p, no := fit.Place(n.w.workload(), a, e.goneWith(n.victims))
		switch {
		case no == nil:
			placement = &p
		case !e.elastic(a):
			e.evictForRoom(n, a, no, fit)
			return
		}
	}
	e.promise(n, a, placement, fit)
}

// goneWith lists all that are being evicted and these victims, by ID.
func (e *Engine) goneWith(victims []victim) []WorkloadID {
	var ids []WorkloadID
	for t := range e.trees {
		ids = append(ids, leavingIn(t)...)
	}
	for _, v := range victims {
		ids = append(ids, v.w.id)
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	return ids
}

// promise evicts the victims of a nomination and reserves their quota for it.
func (e *Engine) promise(n *nomination, a Assignment, p *Placement, fit Fit) {
	w, q := n.w, n.q
	h := &hold{
		queue: q, state: promised, assignment: a, placement: p,
		charges: append([]charge(nil), n.charges...),
	}
	e.leave(w)
	for _, v := range n.victims {
		q.tree().remember(w, v.w)
		if v.w.hold.state == promised {
			e.cancelPromise(v.w)
			e.seat(v.w)
			continue
		}
		v.w.hold.reason, v.w.hold.forWork = v.reason, w.id
		h.victims = append(h.victims, v.w)
		e.setState(v.w, leaving)
		e.out = append(e.out, Evict{Victim: v.w.id, Reason: v.reason, For: w.id, Message: e.evictMessage(v, w)})
	}
	w.hold = h
	e.charge(w)
	e.version++
	if fit != nil && p != nil {
		fit.Take(w.id, *p)
	}
	e.say(w)
}

func (e *Engine) evictMessage(v victim, w *work) string {
	victimQueue := v.w.hold.queue.name
	switch v.reason {
	case InClusterQueue:
		return fmt.Sprintf("makes room for %s (priority %d) in ClusterQueue %s", w.id, w.priority, victimQueue)
	case InCohortReclamation:
		return fmt.Sprintf("gives back quota that ClusterQueue %s had borrowed, to %s", victimQueue, w.id)
	case InCohortFairSharing:
		return fmt.Sprintf("makes shares even: ClusterQueue %s has more than its share, %s gets it", victimQueue, w.id)
	}
	return fmt.Sprintf("gives way to %s, which borrows and has the higher priority (%d)", w.id, w.priority)
}
