package engine

// Room on real cards, asked for only when the budget admits.

// tryRoom admits a nomination that fits, if there is room for it: on the
// flavors it was given, or on others that it may have.
func (e *Engine) tryRoom(n *nomination, fit Fit) {
	a := n.assignment()
	if fit == nil {
		e.admit(n.w, n.q, a, n.charges, nil, fit)
		return
	}
	for {
		p, no := fit.Place(n.w.workload(), a, nil)
		if no == nil {
			e.admit(n.w, n.q, a, n.charges, &p, fit)
			return
		}
		if e.elastic(&hold{assignment: a}) {
			e.admit(n.w, n.q, a, n.charges, nil, fit)
			return
		}
		if n.room == nil {
			n.room = no
		}
		if !n.exclude(no) {
			break
		}
		e.renominate(n, nil)
		if n.mode != fits {
			break
		}
		a = n.assignment()
	}
	e.refuse(n)
}

// exclude keeps the flavors without room out of further trials, and says
// whether another may be left.
func (n *nomination) exclude(no *NoRoom) bool {
	before := len(n.excluded)
	for _, p := range n.picks {
		options := n.p.sets[p.set].groups[p.group].options
		flavor := options[p.option].flavor
		if len(no.Flavors) > 0 && overlaps(no.Flavors, []FlavorName{flavor}) || len(no.Flavors) == 0 && len(options) > 1 {
			n.excluded = append(n.excluded, p)
		}
	}
	return len(n.excluded) > before
}

// waitForRoom lists a class among those to try when room changes.
func (e *Engine) waitForRoom(n *nomination) {
	c := n.w.class
	e.roomWaiters[c] = struct{}{}
	c.roomFlavors = n.room.Flavors
	if n.w.roomSince == 0 {
		n.w.roomSince = e.now
	}
}

// unkeep forgets that a hole is kept for a workload.
func (e *Engine) unkeep(w *work) {
	if w.kept {
		w.kept = false
	}
}

func (e *Engine) tickRoom() {}

func (e *Engine) nextRoomTick() instant { return 0 }
