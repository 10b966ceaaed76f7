package engine

import "math"

// Bounds on what may be evicted, so that those who may evict are not tried in
// vain; see watch.go.

// mayClaim is a bound: false if no eviction that the queue's policies allow can
// make an amount of a cell available.
func (e *Engine) mayClaim(c *cell, asked Amount, w *work, q *queue) bool {
	p := q.spec.Preemption
	own := c.evictable(p.WithinQueue, w.priority)
	if asked <= c.available(planned).Add(own) {
		return true
	}
	if p.Reclaim == Never || p.Reclaim == "" || c.parent == nil {
		return false
	}
	if e.opts.fair {
		return own > 0 || c.mayClaimByShare(asked)
	}
	if p.BorrowWithin == LowerPriority {
		return true
	}
	// Others are reclaimed from only if the request fits the quota of the queue
	// or of a cohort above it, short of the root.
	for n := c; n.parent != nil; n = n.parent {
		if n.planned.Sub(own).Add(asked) <= n.subtree {
			return true
		}
		asked = asked.Sub(n.localAvailable(planned).Add(own))
	}
	return false
}

// evictable bounds what a workload of some priority may evict within its queue.
func (c *cell) evictable(p PreemptionPolicy, priority int32) Amount {
	switch {
	case p == LowerPriority:
		return c.plannedBelow(priority)
	case p == LowerOrNewerEqualPriority && priority < math.MaxInt32:
		return c.plannedBelow(priority + 1)
	case p == LowerOrNewerEqualPriority:
		return c.planned
	}
	return 0
}

// mayClaimByShare is the bound of fair sharing: others are evicted from if the
// request is within the queue's quota, or if at some level the share that the
// queue's branch would have is no more than that of another branch.
func (c *cell) mayClaimByShare(asked Amount) bool {
	if !c.exceeds(planned, asked) {
		return true
	}
	for n := c.node; n.parent != nil; n = n.parent {
		n.parent.largestShare(n) // as it is, without the request
	}
	c.change(planned, asked)
	defer c.change(planned, -asked)
	for n := c.node; n.parent != nil; n = n.parent {
		if most := n.parent.largestShare(n); most.borrowed > 0 && n.share(planned).compare(most) <= 0 {
			return true
		}
	}
	return false
}

// largestShare is the largest share of a node's children but one. It is kept
// until something changes in the tree.
func (n *node) largestShare(but *node) share {
	l := &n.largest
	if l.tree != n.root.tree || l.version != n.root.tree.version {
		*l = largest{tree: n.root.tree, version: n.root.tree.version}
		for _, c := range n.children {
			switch s := c.share(planned); {
			case l.first == nil || s.compare(l.most) > 0:
				l.first, l.second, l.most = c, l.most, s
			case s.compare(l.second) > 0:
				l.second = s
			}
		}
	}
	if l.first == but {
		return l.second
	}
	return l.most
}

// largest are the two largest shares among a node's children, and whose the
// first is.
type largest struct {
	tree         *tree
	version      uint64
	first        *node
	most, second share
}

// addPriority keeps, for a leaf's cell, how much is planned at each priority.
func (c *cell) addPriority(priority int32, amount Amount) {
	lo := 0
	for lo < len(c.byPriority) && c.byPriority[lo].priority < priority {
		lo++
	}
	if lo == len(c.byPriority) || c.byPriority[lo].priority != priority {
		c.byPriority = append(c.byPriority, atPriority{})
		copy(c.byPriority[lo+1:], c.byPriority[lo:])
		c.byPriority[lo] = atPriority{priority: priority}
	}
	c.byPriority[lo].amount = c.byPriority[lo].amount.Add(amount)
	if c.byPriority[lo].amount <= 0 {
		c.byPriority = append(c.byPriority[:lo], c.byPriority[lo+1:]...)
	}
}

type atPriority struct {
	priority int32
	amount   Amount
}

// plannedBelow is what is planned below a priority.
func (c *cell) plannedBelow(priority int32) Amount {
	var sum Amount
	for _, p := range c.byPriority {
		if p.priority >= priority {
			break
		}
		sum = sum.Add(p.amount)
	}
	return sum
}
