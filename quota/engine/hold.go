package engine

import "sort"

// What holds quota, and how it is charged and freed.

// charge adds a workload's hold to the accounts that its state says.
func (e *Engine) charge(w *work) {
	h := w.hold
	for _, c := range h.charges {
		c.cell.holders++
		if h.state != promised {
			c.cell.change(held, c.amount)
		}
		if h.state != leaving {
			c.cell.change(planned, c.amount)
			c.cell.addPriority(w.priority, c.amount)
		}
		e.changed(c.cell)
	}
	q := h.queue
	switch h.state {
	case promised:
		i := sort.Search(len(q.promises), func(i int) bool { return leavesBefore(w, q.promises[i]) })
		q.promises = append(q.promises, nil)
		copy(q.promises[i+1:], q.promises[i:])
		q.promises[i] = w
		if t := q.tree(); t != nil {
			t.promised = append(t.promised, w)
			e.touch(t)
		}
		return
	case leaving:
		q.leaving++
		e.leaving++
		if t := q.tree(); t != nil {
			t.inFlight++
		}
	}
	q.addHolder(w)
}

// uncharge takes a workload's hold off again. The hold stays in w.hold.
func (e *Engine) uncharge(w *work) {
	h := w.hold
	for _, c := range h.charges {
		c.cell.holders--
		if h.state != promised {
			e.discharge(c, held)
		}
		if h.state != leaving {
			e.discharge(c, planned)
			c.cell.addPriority(w.priority, -c.amount)
		}
		e.changed(c.cell)
	}
	q := h.queue
	switch h.state {
	case promised:
		q.promises = without(q.promises, w)
		if t := q.tree(); t != nil {
			t.promised = without(t.promised, w)
		}
		// A StrictFIFO queue stood still for it.
		e.wakeQueue(q)
		return
	case leaving:
		q.leaving--
		e.leaving--
		if t := q.tree(); t != nil {
			t.inFlight--
		}
	}
	q.removeHolder(w)
}

// discharge lowers a usage. A sum that was saturated says nothing about its
// parts, so its tree is then summed up anew.
func (e *Engine) discharge(c charge, a account) {
	for cell := c.cell; cell != nil; cell = cell.parent {
		if *cell.usage(a) == Unlimited {
			e.soil(c.cell.node)
		}
	}
	c.cell.change(a, -c.amount)
}

func without(all []*work, one *work) []*work {
	for i, w := range all {
		if w == one {
			return append(all[:i:i], all[i+1:]...)
		}
	}
	return all
}

// setState changes what a hold counts in.
func (e *Engine) setState(w *work, s holdState) {
	e.uncharge(w)
	w.hold.state = s
	e.charge(w)
}

// dropHold frees what a workload holds.
func (e *Engine) dropHold(w *work) {
	h := w.hold
	if h == nil {
		return
	}
	e.uncharge(w)
	w.hold = nil
	if h.state == leaving {
		e.victimGone(w, h)
	}
	e.forgetQueue(h.queue)
}

// victimGone strikes a victim from the list of the one it made room for.
func (e *Engine) victimGone(w *work, h *hold) {
	if p := e.works[h.forWork]; p != nil && p.hold != nil && p.hold.state == promised {
		p.hold.victims = without(p.hold.victims, w)
	}
}

// cancelPromise sends a promised workload back to wait; its victims leave all
// the same.
func (e *Engine) cancelPromise(w *work) {
	if w.hold == nil || w.hold.state != promised {
		return
	}
	h := w.hold
	e.uncharge(w)
	w.hold, w.said = nil, saying{}
	if h.placement != nil {
		e.drop(w)
	}
}

func (e *Engine) cancelPromises(q *queue) {
	for len(q.promises) > 0 {
		w := q.promises[len(q.promises)-1]
		e.cancelPromise(w)
		e.unseated = append(e.unseated, w)
	}
}

func (e *Engine) applyAdmitted(ev *Admitted) {
	w := e.works[ev.ID]
	if w == nil {
		w = &work{id: ev.ID, timer: -1}
		e.works[ev.ID] = w
	}
	e.leave(w)
	e.cancelPromise(w)
	e.stopTimer(w)
	q := e.queue(ev.Assignment.Queue)
	h := &hold{
		queue: q, state: holding, reserved: ev.Reserved, at: instantOf(ev.At),
		assignment: ev.Assignment.copy(), charges: chargesOf(q, &ev.Assignment),
	}
	if ev.Evicting {
		h.state = leaving
	}
	old := w.hold
	if old != nil {
		if old.state == leaving {
			h.state, h.reason, h.forWork = leaving, old.reason, old.forWork
		}
		e.uncharge(w)
	}
	w.hold = h
	e.charge(w)
	w.said = saying{}
	e.unkeep(w, true)
	e.suspect(w)
}

// chargesOf finds the cells of an assignment. Amounts below zero count as none.
func chargesOf(q *queue, a *Assignment) []charge {
	var out []charge
	for _, ps := range a.PodSets {
		for _, r := range sortedResources(ps.Usage) {
			f, ok := ps.Flavors[r]
			if amount := ps.Usage[r]; ok && amount > 0 {
				out = addCharge(out, q.node.cell(FlavorResource{f, r}), amount)
			}
		}
	}
	return out
}

func addCharge(charges []charge, c *cell, amount Amount) []charge {
	for i := range charges {
		if charges[i].cell == c {
			charges[i].amount = charges[i].amount.Add(amount)
			return charges
		}
	}
	return append(charges, charge{c, amount})
}

func (a Assignment) copy() Assignment {
	sets := make([]PodSetAssignment, len(a.PodSets))
	for i, ps := range a.PodSets {
		flavors := make(map[Resource]FlavorName, len(ps.Flavors))
		for r, f := range ps.Flavors {
			flavors[r] = f
		}
		ps.Flavors, ps.Usage = flavors, copyAmounts(ps.Usage)
		sets[i] = ps
	}
	a.PodSets = sets
	return a
}

func (e *Engine) admissionFailed(ev AdmissionFailed) {
	w := e.works[ev.ID]
	if w == nil || w.hold == nil || w.hold.state == promised {
		return
	}
	if w.hold.placement != nil {
		e.drop(w)
	}
	e.dropHold(w)
	w.notBefore = instantOf(ev.NotBefore)
	e.seat(w)
}

// startLeaving counts a holder as going.
func (e *Engine) startLeaving(w *work) {
	if w.hold == nil || w.hold.state != holding {
		return
	}
	e.setState(w, leaving)
}

func (e *Engine) evictionFailed(id WorkloadID) {
	w := e.works[id]
	if w == nil || w.hold == nil || w.hold.state != leaving {
		return
	}
	if p := e.works[w.hold.forWork]; p != nil && p.hold != nil && p.hold.state == promised {
		e.cancelPromise(p)
		e.seat(p)
	}
	e.newsOf(w)
	w.hold.forWork, w.hold.reason = "", ""
	e.setState(w, holding)
	e.suspect(w)
}

func (e *Engine) released(id WorkloadID) {
	w := e.works[id]
	if w == nil || w.hold == nil || w.hold.state == promised {
		return
	}
	e.dropHold(w)
	if !w.told {
		delete(e.works, id)
		return
	}
	e.seat(w)
}

// suspect has a holder looked at by the next Decide: it may have to go.
func (e *Engine) suspect(w *work) {
	if w.hold != nil && w.hold.state == holding {
		if _, must := e.mustLeave(w); must {
			e.suspects = append(e.suspects, w)
		}
	}
}

func (e *Engine) suspectAll(q *queue) {
	for _, w := range q.holders {
		e.suspect(w)
	}
}

// mustLeave says whether a holder is to be evicted whoever waits.
func (e *Engine) mustLeave(w *work) (EvictReason, bool) {
	if w.inactive {
		return Deactivated, true
	}
	if q := w.hold.queue; q.defined && stops(q.spec.Stop, w.hold.reserved) {
		return ClusterQueueStopped, true
	}
	if l := w.local; l != nil && l.defined && stops(l.spec.Stop, w.hold.reserved) {
		return LocalQueueStopped, true
	}
	return "", false
}

func stops(p StopPolicy, reserved bool) bool {
	return p == HoldAndDrain || p == Hold && reserved
}

// evictSuspects evicts the holders that must go.
func (e *Engine) evictSuspects() {
	if len(e.suspects) == 0 {
		return
	}
	suspects := e.suspects
	e.suspects = nil
	sort.Slice(suspects, func(i, j int) bool { return suspects[i].id < suspects[j].id })
	for _, w := range suspects {
		if w.hold == nil || w.hold.state != holding || e.works[w.id] != w {
			continue
		}
		reason, must := e.mustLeave(w)
		if !must {
			continue
		}
		w.hold.reason = reason
		e.startLeaving(w)
		e.out = append(e.out, Evict{Victim: w.id, Reason: reason, Message: e.stopMessage(w, reason)})
	}
}

func (e *Engine) stopMessage(w *work, reason EvictReason) string {
	switch reason {
	case ClusterQueueStopped:
		return "ClusterQueue " + string(w.hold.queue.name) + " is stopped (stopPolicy " + string(w.hold.queue.spec.Stop) + ")"
	case LocalQueueStopped:
		return "LocalQueue " + w.local.name.String() + " is stopped (stopPolicy " + string(w.local.spec.Stop) + ")"
	}
	return "the workload was deactivated (spec.active is false)"
}
