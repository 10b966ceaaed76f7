package engine

// Classical preemption. A workload may evict, in this order:
//
//  1. workloads of queues that have borrowed what a subtree of the tree that
//     holds this queue has a right to: the request fits the subtree's quota, the
//     borrower is outside it (hierarchical advantage);
//  2. other workloads of queues that borrow, if their priority allows it;
//  3. workloads of its own queue.
//
// To reclaim from others, short of borrowWithinCohort, the request must not borrow
// itself; for who evicts in his own queue alone it may.
//
// A queue is only ever reclaimed from while it, and every cohort between it and
// the common ancestor, uses more than its quota of a contested resource: what is
// within quota is safe.

// tier is where a candidate stands in that order.
type tier uint8

const (
	advantage tier = iota
	byPriority
	sameQueue
	tiers
)

// source is a queue to take candidates from, in its order.
type source struct {
	queue *queue
	tier  tier
	// below is the common ancestor: nodes under it must use more than their
	// quota.
	below *node
	// promises and holders are how far each list was gone through.
	promises, holders int
	current           *work
}

// candidates goes through the candidates of all sources in order.
type candidates struct {
	n       *nomination
	tree    *tree
	sources []source
	heaps   [tiers][]int
	others  bool
	hier    bool
}

// classicalVictims finds the victims of a nomination, see victims.
func (e *Engine) classicalVictims(n *nomination, into []victim) []victim {
	c := &e.found
	c.collect(n)
	if len(c.sources) == 0 {
		return into
	}
	p := n.q.spec.Preemption
	mayBorrowWithin := p.BorrowWithin == LowerPriority
	var attempts []bool
	switch {
	case !c.others || !mayBorrowWithin && !n.underNominal():
		attempts = withBorrowing
	case !mayBorrowWithin && !c.hier:
		attempts = bothBorrowingLast
	default:
		attempts = bothBorrowingFirst
	}
	start := len(into)
	for i, borrow := range attempts {
		c.rewind()
		for w, t := c.next(borrow); w != nil; w, t = c.next(borrow) {
			e.imagineGone(w)
			into = append(into, victim{w, c.reason(w, t)})
			if n.fitsPlanned(borrow) {
				into = e.spare(n, into, start, borrow)
				if i == 0 && !borrow && n.ownAlone(into[start:]) {
					break
				}
				e.restore(into[start:])
				return into
			}
		}
		e.restore(into[start:])
		into = into[:start]
	}
	return into
}

// ownAlone says that all victims are of the nomination's own queue. Not to borrow is
// what it takes to reclaim from others: if none of them has to go after all, fewer
// may do.
func (n *nomination) ownAlone(victims []victim) bool {
	for _, v := range victims {
		if v.w.hold.queue != n.q {
			return false
		}
	}
	return true
}

var (
	withBorrowing      = []bool{true}
	bothBorrowingFirst = []bool{true, false}
	bothBorrowingLast  = []bool{false, true}
)

// underNominal says that the queue uses less than its own quota of everything
// contested.
func (n *nomination) underNominal() bool {
	for _, c := range n.contested {
		if c.quota.Nominal <= c.planned {
			return false
		}
	}
	return true
}

func (c *candidates) reason(w *work, t tier) EvictReason {
	switch {
	case t == sameQueue:
		return InClusterQueue
	case t == byPriority && c.n.whileBorrowing(w):
		return InCohortReclaimWhileBorrowing
	}
	return InCohortReclamation
}

// whileBorrowing says that a workload of another queue may be evicted even if
// the nomination will borrow.
func (n *nomination) whileBorrowing(w *work) bool {
	p := n.q.spec.Preemption
	return p.BorrowWithin == LowerPriority && w.priority < n.w.priority &&
		(p.BorrowThreshold == nil || w.priority <= *p.BorrowThreshold)
}

// collect finds the queues to take candidates from.
func (c *candidates) collect(n *nomination) {
	c.n, c.tree = n, n.q.tree()
	c.sources = c.sources[:0]
	c.others, c.hier = false, false
	p := n.q.spec.Preemption
	if p.Reclaim != Never && p.Reclaim != "" {
		for _, cell := range n.contested {
			c.climb(cell)
		}
	}
	if p.WithinQueue != Never && p.WithinQueue != "" {
		c.offer(n.q, sameQueue, nil)
	}
}

// climb goes from a leaf's cell to the root and looks, at each ancestor, at the
// other branches. From the first node on whose quota the request fits, its
// workloads have the advantage over borrowers outside.
func (c *candidates) climb(leaf *cell) {
	ask := c.n.amountOf(leaf)
	fits := !leaf.exceeds(planned, ask)
	ask = max(0, ask.Sub(leaf.localAvailable(planned)))
	for from, at := leaf, leaf.parent; at != nil; from, at = at, at.parent {
		t := byPriority
		if fits {
			t = advantage
		}
		for _, child := range at.children {
			if child != from {
				c.descend(child, t, at.node)
			}
		}
		fits = fits || !at.exceeds(planned, ask)
		ask = max(0, ask.Sub(at.localAvailable(planned)))
	}
}

func (c *candidates) descend(cell *cell, t tier, below *node) {
	if cell.planned <= cell.subtree {
		return
	}
	if q := cell.node.queue; q != nil {
		c.offer(q, t, below)
		return
	}
	for _, child := range cell.children {
		c.descend(child, t, below)
	}
}

func (n *nomination) amountOf(leaf *cell) Amount {
	for _, ch := range n.charges {
		if ch.cell == leaf {
			return ch.amount
		}
	}
	return 0
}

// offer adds a queue if it has a candidate.
func (c *candidates) offer(q *queue, t tier, below *node) {
	for i := range c.sources {
		if s := &c.sources[i]; s.queue == q {
			s.tier = min(s.tier, t)
			c.hier = c.hier || t == advantage
			return
		}
	}
	s := source{queue: q, tier: t, below: below}
	if !c.advance(&s) {
		return
	}
	c.sources = append(c.sources, s)
	if t != sameQueue {
		c.others = true
		c.hier = c.hier || t == advantage
	}
}

// advance moves a source to its next candidate.
func (c *candidates) advance(s *source) bool {
	policy := c.n.q.spec.Preemption.Reclaim
	if s.tier == sameQueue {
		policy = c.n.q.spec.Preemption.WithinQueue
	}
	for ; s.promises < len(s.queue.promises); s.promises++ {
		w := s.queue.promises[s.promises]
		if policy.permits(c.n.w, w) && c.n.uses(w) && !c.tree.circular(c.n.w, w) {
			s.promises++
			s.current = w
			return true
		}
	}
	for ; s.holders < len(s.queue.holders); s.holders++ {
		w := s.queue.holders[s.holders]
		if policy.beyond(c.n.w, w.priority) {
			break
		}
		if w.hold.state == holding && policy.permits(c.n.w, w) && c.n.uses(w) && !c.tree.circular(c.n.w, w) {
			s.holders++
			s.current = w
			return true
		}
	}
	s.current = nil
	return false
}

// rewind starts from the first candidates again.
func (c *candidates) rewind() {
	for t := range c.heaps {
		c.heaps[t] = c.heaps[t][:0]
	}
	for i := range c.sources {
		s := &c.sources[i]
		s.promises, s.holders = 0, 0
		if c.advance(s) {
			c.push(s.tier, i)
		}
	}
}

func (c *candidates) less(i, j int) bool {
	return goesFirst(c.sources[i].current, c.sources[j].current)
}

// push and pop keep, for each tier, a heap of sources by their next candidate.
func (c *candidates) push(t tier, i int) {
	h := append(c.heaps[t], i)
	for k := len(h) - 1; k > 0; {
		parent := (k - 1) / 2
		if !c.less(h[k], h[parent]) {
			break
		}
		h[k], h[parent] = h[parent], h[k]
		k = parent
	}
	c.heaps[t] = h
}

func (c *candidates) pop(t tier) int {
	h := c.heaps[t]
	top := h[0]
	last := len(h) - 1
	h[0] = h[last]
	h = h[:last]
	for k := 0; ; {
		child := 2*k + 1
		if child >= last {
			break
		}
		if child+1 < last && c.less(h[child+1], h[child]) {
			child++
		}
		if !c.less(h[child], h[k]) {
			break
		}
		h[k], h[child] = h[child], h[k]
		k = child
	}
	c.heaps[t] = h
	return top
}

// next is the next candidate that is still valid, as victims chosen so far may
// have brought its queue within quota.
func (c *candidates) next(borrow bool) (*work, tier) {
	for t := advantage; t < tiers; t++ {
		for len(c.heaps[t]) > 0 {
			i := c.pop(t)
			s := &c.sources[i]
			w := s.current
			valid := c.valid(s, w)
			if !valid && c.exhausted(s) {
				continue // nor will the rest of it be
			}
			ok := valid && (t != byPriority || !borrow || c.n.whileBorrowing(w))
			if c.advance(s) {
				c.push(t, i)
			}
			if ok {
				return w, t
			}
		}
	}
	return nil, 0
}

// valid says that a candidate holds something contested of which its queue, and
// all cohorts below the common ancestor, use more than their quota.
func (c *candidates) valid(s *source, w *work) bool {
	if s.tier == sameQueue {
		return true
	}
	for _, ch := range w.hold.charges {
		if c.n.contests(ch.cell) && overQuota(ch.cell, s.below) {
			return true
		}
	}
	return false
}

// exhausted says that no contested cell of a source is over quota any more.
func (c *candidates) exhausted(s *source) bool {
	for _, x := range c.n.contested {
		if cell, ok := s.queue.node.cells[x.FlavorResource]; ok && overQuota(cell, s.below) {
			return false
		}
	}
	return true
}

func (n *nomination) contests(c *cell) bool {
	top := c.top()
	for _, x := range n.contested {
		if x.top() == top {
			return true
		}
	}
	return false
}

func overQuota(c *cell, below *node) bool {
	for ; c != nil && c.node != below; c = c.parent {
		if c.planned <= c.subtree {
			return false
		}
	}
	return true
}
