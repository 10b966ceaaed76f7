package engine

import "sort"

// Trees computed anew when their shape or quotas change.

// settle computes anew the trees that were marked: roots, heights, subtree
// quotas and usage, from what the leaves hold.
func (e *Engine) settle() {
	for len(e.soiled) > 0 {
		seen := map[*node]bool{}
		var tops, loops []*node
		for n := range e.soiled {
			top, cyclic := n.top(len(e.cohorts) + 1)
			if seen[top] {
				continue
			}
			seen[top] = true
			if cyclic {
				loops = append(loops, n)
			} else {
				tops = append(tops, top)
			}
		}
		e.soiled = map[*node]struct{}{}
		byName := func(nodes []*node) {
			sort.Slice(nodes, func(i, j int) bool { return nodes[i].before(nodes[j]) })
		}
		byName(tops)
		byName(loops)
		// Promises lean on the old shape of the trees, so they go first.
		for _, n := range loops {
			below := map[*node]bool{}
			for m := n; !below[m]; m = m.parent {
				e.cancelBelow(m, below)
			}
		}
		for _, top := range tops {
			e.cancelBelow(top, nil)
		}
		for _, n := range loops {
			e.settleLoop(n, map[*node]bool{})
		}
		for _, top := range tops {
			t := top.tree
			if t == nil {
				t = &tree{root: top}
				top.tree = t
				e.trees[t] = struct{}{}
			}
			t.ready = t.ready[:0]
			t.promised, t.queues = nil, nil
			t.changes, t.tops, t.restless, t.deep = nil, nil, nil, nil
			t.evictions, t.heldBack = nil, nil
			t.inFlight = 0
			e.settleTree(top, t, nil, 0)
			e.touch(t)
		}
		for _, q := range e.unsettled {
			e.reseatQueue(q)
		}
		e.unsettled = e.unsettled[:0]
		for _, w := range e.unseated {
			if e.works[w.id] == w {
				e.seat(w)
			}
		}
		e.unseated = e.unseated[:0]
	}
}

// cancelBelow gives up the promises in a node and below it; seen keeps it from
// going round in circles.
func (e *Engine) cancelBelow(n *node, seen map[*node]bool) {
	if seen[n] {
		return
	}
	if seen != nil {
		seen[n] = true
	}
	if n.queue != nil {
		e.cancelPromises(n.queue)
	}
	for _, c := range n.children {
		e.cancelBelow(c, seen)
	}
}

// top is the root above a node, or, if the ancestors go round in a circle,
// some node of the circle.
func (n *node) top(limit int) (*node, bool) {
	top := n
	for i := 0; top.parent != nil; i++ {
		if i > limit {
			return top.leastOfLoop(), true
		}
		top = top.parent
	}
	return top, false
}

// leastOfLoop picks the same node of a circle wherever it is entered.
func (n *node) leastOfLoop() *node {
	least := n
	for m := n.parent; m != n; m = m.parent {
		if m.name < least.name {
			least = m
		}
	}
	return least
}

// settleLoop marks a circle and all that hangs on it: every node for itself.
func (e *Engine) settleLoop(n *node, seen map[*node]bool) {
	for ; !seen[n]; n = n.parent {
		e.settleBelowLoop(n, seen)
	}
}

func (e *Engine) settleBelowLoop(n *node, seen map[*node]bool) {
	if seen[n] {
		return
	}
	seen[n] = true
	e.leaveTree(n)
	n.cyclic, n.root, n.up, n.depth, n.height = true, nil, nil, 0, 0
	if n.queue != nil {
		e.unsettled = append(e.unsettled, n.queue)
	}
	n.compute(nil)
	for _, c := range n.children {
		e.settleBelowLoop(c, seen)
	}
}

func (e *Engine) leaveTree(n *node) {
	if n.tree != nil {
		delete(e.trees, n.tree)
		n.tree = nil
	}
}

func (e *Engine) settleTree(n *node, t *tree, parent *node, depth int) {
	if n != t.root {
		e.leaveTree(n)
	}
	n.cyclic, n.root, n.up, n.depth, n.height = false, t.root, parent, depth, 0
	for _, c := range n.children {
		e.settleTree(c, t, n, depth+1)
		n.height = max(n.height, c.height+1)
	}
	if !n.isQueue() && n.height == 0 {
		n.height = 1
	}
	n.compute(parent)
	if n.queue != nil {
		t.inFlight += n.queue.leaving
		t.queues = append(t.queues, n.queue)
		e.unsettled = append(e.unsettled, n.queue)
	}
}

// compute sets the quota and usage of all cells of a node whose children are
// computed.
func (n *node) compute(parent *node) {
	n.shares = nil
	for _, c := range n.order {
		c.quota = Quota{}
		c.listed = false
		c.subtree, c.held, c.planned = 0, 0, 0
		c.parent, c.children = nil, nil
		c.forgetWatches()
	}
	for _, q := range n.quotas {
		c := n.cell(q.FlavorResource)
		c.listed = true
		c.quota = q.Quota
		c.subtree = q.Nominal
	}
	if !n.cyclic {
		for _, child := range n.children {
			for _, cc := range child.order {
				c := n.cell(cc.FlavorResource)
				cc.parent = c
				c.children = append(c.children, cc)
				c.subtree = c.subtree.Add(cc.subtree.Sub(cc.guaranteed()))
				c.held = c.held.Add(cc.lent(cc.held))
				c.planned = c.planned.Add(cc.lent(cc.planned))
			}
		}
	}
	if n.queue != nil {
		n.queue.sumUsage()
	}
	n.prune()
	if parent == nil {
		return
	}
	for _, c := range n.order {
		c.parent = parent.cell(c.FlavorResource)
	}
}

// prune drops cells that nothing refers to any more.
func (n *node) prune() {
	kept := n.order[:0]
	for _, c := range n.order {
		if c.listed || c.holders > 0 || n.childHas(c.FlavorResource) {
			kept = append(kept, c)
		} else {
			delete(n.cells, c.FlavorResource)
		}
	}
	for i := len(kept); i < len(n.order); i++ {
		n.order[i] = nil
	}
	n.order = kept
}

func (n *node) childHas(fr FlavorResource) bool {
	for _, c := range n.children {
		if _, ok := c.cells[fr]; ok {
			return true
		}
	}
	return false
}
