package engine

import "container/heap"

// Fair sharing (KEP-1714). Queues are compared by their dominant resource share,
// level by level from the root: cohorts against their siblings, then within the
// one chosen. The lowest share is admitted first; from the highest is evicted.

// The tournament of admission: of all nominations of a round, the next one.

// entrant is what a node brings to the comparison with its siblings.
type entrant struct {
	n *nomination
	// borrows says that the node would borrow what the nomination asks for.
	borrows bool
	share   share
}

// contest is the state of a node in a tournament. It costs a node one comparison
// with its siblings, on a heap, when something changes in it or below.
type contest struct {
	in   bool
	best entrant
	// heap has the children with nominations below them, the best on top; place
	// is the node's own place in its parent's heap, counted from 1, and key what
	// it stands there for.
	heap  []*node
	place int
	key   entrant
	// stale says that best is out of date, and that the parent knows.
	stale     bool
	staleKids []*node
}

// byShare is the order of fair sharing.
type byShare struct {
	// nodes took part.
	nodes []*node
}

func (o *byShare) add(n *nomination) {
	for at := n.q.node; at != nil && !at.contest.in; at = at.parent {
		at.contest.in = true
		o.nodes = append(o.nodes, at)
	}
	n.q.node.contest.best = entrant{n: n}
	n.q.node.outdate()
}

func (o *byShare) remove(n *nomination) {
	n.q.node.contest.best = entrant{}
	n.q.node.outdate()
}

// outdate has a node and its ancestors compared anew.
func (n *node) outdate() {
	for ; n.contest.in && !n.contest.stale && n.parent != nil; n = n.parent {
		n.contest.stale = true
		n.parent.contest.staleKids = append(n.parent.contest.staleKids, n)
	}
}

func (o *byShare) next(t *tree) *nomination {
	t.root.compare()
	n := t.root.contest.best.n
	if n != nil {
		o.remove(n)
	}
	return n
}

func (o *byShare) end(*tree) {
	for _, at := range o.nodes {
		clear(at.contest.heap)
		at.contest = contest{heap: at.contest.heap[:0], staleKids: at.contest.staleKids[:0]}
	}
	o.nodes = o.nodes[:0]
}

// compare brings the best nomination below a node up to date, with the node's
// own standing if it were admitted.
func (n *node) compare() {
	c := &n.contest
	c.stale = false
	if !n.isQueue() {
		for _, kid := range c.staleKids {
			kid.compare()
			n.place(kid)
		}
		c.staleKids = c.staleKids[:0]
		c.best = entrant{}
		if len(c.heap) > 0 {
			c.best.n = c.heap[0].contest.key.n
		}
	}
	if best := c.best.n; best != nil && n.parent != nil {
		best.imagineIn()
		c.best.share = n.share(planned)
		c.best.borrows = best.borrowsAt(n)
		best.imagineOut()
	}
}

// place puts a child where it belongs in the heap.
func (n *node) place(kid *node) {
	h := (*contestHeap)(&n.contest.heap)
	at := kid.contest.place - 1
	switch {
	case kid.contest.best.n == nil && at >= 0:
		heap.Remove(h, at)
	case kid.contest.best.n == nil:
	case at >= 0:
		kid.contest.key = kid.contest.best
		heap.Fix(h, at)
	default:
		kid.contest.key = kid.contest.best
		heap.Push(h, kid)
	}
}

// contestHeap has the node with the best entrant on top.
type contestHeap []*node

func (h contestHeap) Len() int           { return len(h) }
func (h contestHeap) Less(i, j int) bool { return h[i].contest.key.before(h[j].contest.key) }
func (h contestHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].contest.place, h[j].contest.place = i+1, j+1
}
func (h *contestHeap) Push(x any) {
	n := x.(*node)
	*h = append(*h, n)
	n.contest.place = len(*h)
}
func (h *contestHeap) Pop() any {
	old := *h
	n := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	n.contest.place = 0
	return n
}

func (a entrant) before(b entrant) bool {
	if a.borrows != b.borrows {
		return b.borrows
	}
	if c := a.share.compare(b.share); c != 0 {
		return c < 0
	}
	return goesBefore(a.n.w, b.n.w)
}

func (n *nomination) imagineIn() {
	for _, c := range n.charges {
		c.cell.change(planned, c.amount)
	}
}

func (n *nomination) imagineOut() {
	for _, c := range n.charges {
		c.cell.change(planned, -c.amount)
	}
}

// borrowsAt says whether an ancestor uses more than its quota of what the
// nomination asks for.
func (n *nomination) borrowsAt(at *node) bool {
	for _, ch := range n.charges {
		c := ch.cell
		for c != nil && c.node != at {
			c = c.parent
		}
		if c != nil && c.planned > c.subtree {
			return true
		}
	}
	return false
}

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
	next  int
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
