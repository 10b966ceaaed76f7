package engine

// Fair sharing (KEP-1714). Queues are compared by their dominant resource share,
// level by level from the root: cohorts against their siblings, then within the
// one chosen. The lowest share is admitted first; from the highest is evicted.

// The search for victims.

// fairSearch looks for the victims of one nomination.
type fairSearch struct {
	n *nomination
	// sources are the queues with candidates; those of other queues only while
	// they are over quota.
	sources []fairSource
	// within says that the nomination is within its queue's own quota: then what
	// others borrowed is taken back whatever the shares.
	within bool
	stamp  uint64
	fewer  []victim
}

type fairSource struct {
	source
	// initial is the share, before anybody is evicted, of the branch that is
	// compared with the preemptor's.
	initial share
	// later are candidates that the first strategy passed over.
	later []*work
}

// standing is the state of a node in a search.
type standing struct {
	stamp  uint64
	source int
	pruned bool
	fresh  bool
	share  share
}

// fairVictims finds the victims of a nomination, see victims.
func (e *Engine) fairVictims(n *nomination, into []victim) []victim {
	c := &e.found
	c.collect(n)
	if len(c.sources) == 0 {
		return into
	}
	e.stamp++
	f := &e.fairFound
	f.n, f.stamp = n, e.stamp
	f.sources = f.sources[:0]
	for _, s := range c.sources {
		s.promises, s.holders = 0, 0
		c.advance(&s)
		fs := fairSource{source: s}
		if s.tier != sameQueue {
			_, theirs := branches(n.q.node, s.queue.node)
			fs.initial = theirs.share(planned)
		}
		f.sources = append(f.sources, fs)
	}
	f.within = true
	for _, ch := range n.charges {
		if n.contests(ch.cell) && ch.cell.exceeds(planned, ch.amount) {
			f.within = false
		}
	}
	start := len(into)
	n.imagineIn()
	into, ok := e.fairPass(f, into, e.opts.strategies[0], len(e.opts.strategies) > 1)
	if !ok && len(e.opts.strategies) > 1 {
		e.stamp++
		f.stamp = e.stamp
		into, ok = e.fairSecondPass(f, into, e.opts.strategies[1])
	}
	if ok {
		for i := len(into) - 2; i >= start; i-- {
			spared := into[i]
			e.imagineBack(spared.w)
			if n.fitsWithin() {
				f.fewer = append(append(f.fewer[:0], into[start:i]...), into[i+1:]...)
				if f.fairTo(e, f.fewer) {
					into = append(into[:start], f.fewer...)
					continue
				}
			}
			e.imagineGone(spared.w)
		}
	}
	n.imagineOut()
	e.restore(into[start:])
	if !ok {
		into = into[:start]
	}
	return into
}

// fairTo says whether a strategy allows all these victims: one that was spared
// may have raised the share of the preemptor's branch again.
func (f *fairSearch) fairTo(e *Engine, victims []victim) bool {
	for _, v := range victims {
		if v.reason != InCohortFairSharing {
			continue
		}
		mine, theirs := branches(f.n.q.node, v.w.hold.queue.node)
		newShare, before := f.shareWithOwn(e, mine, victims), f.initial(v.w.hold.queue)
		ok := false
		for _, strategy := range e.opts.strategies {
			if strategy == LessThanInitialShare {
				ok = ok || newShare.compare(before) < 0
			} else {
				ok = ok || fairAfter(newShare, before, theirs.share(planned))
			}
		}
		if !ok {
			return false
		}
	}
	return true
}

func (f *fairSearch) initial(q *queue) share {
	return f.sources[q.node.standing.source].initial
}

// fitsWithin says that nothing is over what is available, the nomination being
// imagined in.
func (n *nomination) fitsWithin() bool {
	for _, c := range n.charges {
		if c.cell.available(planned) < 0 {
			return false
		}
	}
	return true
}

// fairPass takes victims, always from the queue with the highest share, as far
// as the strategy lets it.
func (e *Engine) fairPass(f *fairSearch, into []victim, strategy FairStrategy, keep bool) ([]victim, bool) {
	for {
		i := f.target(f.root())
		if i < 0 {
			return into, false
		}
		s := &f.sources[i]
		if s.tier == sameQueue {
			into = e.fairTake(f, s, s.current, InClusterQueue, into)
			e.found.advance(&s.source)
			if f.n.fitsWithin() {
				return into, true
			}
			continue
		}
		taken := false
		for s.current != nil && !taken {
			w := s.current
			e.found.advance(&s.source)
			if !e.found.valid(&s.source, w) {
				continue
			}
			if f.within {
				into, taken = e.fairTake(f, s, w, InCohortReclamation, into), true
			} else if f.allowed(e, s, w, into, strategy) {
				into, taken = e.fairTake(f, s, w, InCohortFairSharing, into), true
			} else if keep {
				s.later = append(s.later, w)
			}
		}
		if taken && f.n.fitsWithin() {
			return into, true
		}
	}
}

// fairSecondPass tries once for each queue, with the second strategy, what the
// first passed over.
func (e *Engine) fairSecondPass(f *fairSearch, into []victim, strategy FairStrategy) ([]victim, bool) {
	for i := range f.sources {
		s := &f.sources[i]
		s.current = nil
		if len(s.later) > 0 {
			s.current = s.later[0]
		}
	}
	for {
		i := f.target(f.root())
		if i < 0 {
			return into, false
		}
		s := &f.sources[i]
		w := s.current
		s.current = nil
		if !e.found.valid(&s.source, w) || !f.allowed(e, s, w, into, strategy) {
			continue
		}
		into = e.fairTake(f, s, w, InCohortFairSharing, into)
		if f.n.fitsWithin() {
			return into, true
		}
	}
}

func (e *Engine) fairTake(f *fairSearch, s *fairSource, w *work, reason EvictReason, into []victim) []victim {
	e.imagineGone(w)
	for at := s.queue.node; at != nil; at = at.parent {
		if at.standing.stamp == f.stamp {
			at.standing.fresh = false
		}
	}
	return append(into, victim{w, reason})
}

func (f *fairSearch) root() *node { return f.n.q.node.root }

// allowed asks the strategy, which compares the children of the common ancestor
// that hold the preemptor and the victim.
//
// In two things this is stricter than KEP-1714, or queues could evict each other
// for ever. Victims of the preemptor's own queue do not lower its share: they
// come back when there is room. And equal shares are no reason to evict somebody
// whose share that would not lower, as where another resource dominates it.
func (f *fairSearch) allowed(e *Engine, s *fairSource, w *work, victims []victim, strategy FairStrategy) bool {
	mine, theirs := branches(f.n.q.node, s.queue.node)
	newShare := f.shareWithOwn(e, mine, victims)
	before := theirs.share(planned)
	if strategy == LessThanInitialShare {
		return newShare.compare(before) < 0
	}
	e.imagineGone(w)
	after := theirs.share(planned)
	e.imagineBack(w)
	return fairAfter(newShare, before, after)
}

// fairAfter is LessThanOrEqualToFinalShare.
func fairAfter(newShare, before, after share) bool {
	c := newShare.compare(after)
	return c < 0 || c == 0 && after.compare(before) < 0
}

// shareWithOwn is the share of the preemptor's branch as if the victims of its
// own queue stayed.
func (f *fairSearch) shareWithOwn(e *Engine, mine *node, victims []victim) share {
	for _, v := range victims {
		if v.reason == InClusterQueue {
			e.imagineBack(v.w)
		}
	}
	s := mine.share(planned)
	for _, v := range victims {
		if v.reason == InClusterQueue {
			e.imagineGone(v.w)
		}
	}
	return s
}

// branches are the children of the common ancestor of two nodes that lead to
// them.
func branches(a, b *node) (*node, *node) {
	for a.depth > b.depth {
		a = a.parent
	}
	for b.depth > a.depth {
		b = b.parent
	}
	for a.parent != b.parent {
		a, b = a.parent, b.parent
	}
	return a, b
}

// enter sets up a node's state for this search.
func (f *fairSearch) enter(at *node) *standing {
	s := &at.standing
	if s.stamp != f.stamp {
		*s = standing{stamp: f.stamp, source: -1}
		if at.isQueue() {
			for i := range f.sources {
				if f.sources[i].queue == at.queue {
					s.source = i
				}
			}
		}
	}
	if !s.fresh {
		s.share, s.fresh = at.share(planned), true
	}
	return s
}

// target is the source to evict from next: the way down goes by the highest
// share, past nodes that borrow nothing or have no candidate left.
func (f *fairSearch) target(at *node) int {
	if at.isQueue() {
		return f.targetQueue(at)
	}
	for {
		var best *node
		for _, child := range at.children {
			s := f.enter(child)
			if s.pruned {
				continue
			}
			onPath := child == f.n.q.node || child.above(f.n.q.node)
			if s.share.borrowed == 0 && !onPath || child.isQueue() && f.targetQueue(child) < 0 {
				s.pruned = true
				continue
			}
			if best == nil || f.evictedBefore(child, best) {
				best = child
			}
		}
		if best == nil {
			return -1
		}
		if i := f.target(best); i >= 0 {
			return i
		}
		best.standing.pruned = true
	}
}

func (f *fairSearch) targetQueue(at *node) int {
	s := f.enter(at)
	if s.source < 0 || f.sources[s.source].current == nil {
		return -1
	}
	return s.source
}

// evictedBefore orders siblings: higher share, then cohorts, then by their next
// candidate.
func (f *fairSearch) evictedBefore(a, b *node) bool {
	if c := a.standing.share.compare(b.standing.share); c != 0 {
		return c > 0
	}
	if a.isQueue() != b.isQueue() {
		return !a.isQueue()
	}
	if a.isQueue() {
		return goesFirst(f.sources[a.standing.source].current, f.sources[b.standing.source].current)
	}
	return false
}

// above says whether a node is an ancestor of another.
func (n *node) above(m *node) bool {
	for m = m.parent; m != nil; m = m.parent {
		if m == n {
			return true
		}
	}
	return false
}
