package engine

import "container/heap"

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
