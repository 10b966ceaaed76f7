package engine

import (
	"sort"
	"strings"
)

// The tree of budgets. Queues are its leaves and cohorts its inner nodes; a
// queue without a cohort is a tree of its own. Every node has one cell for each
// resource of each flavor that it or a descendant has to do with, and every cell
// points to its parent's cell, so the algebra (quota.go) walks one chain and
// never looks anything up.

// node is a queue or a cohort.
type node struct {
	name string
	// queue is set for leaves.
	queue *queue
	// described says that a Cohort of this name was given, not only named.
	described bool
	weight    Weight
	// fault is what is wrong with a cohort's quotas.
	fault string

	parent   *node
	children []*node // cohorts before queues, each by name
	// up is the parent that the cells lean on: what parent was when the tree was
	// last computed, nil at a root and in a circle.
	up *node
	// root is the top of the tree, and cyclic says that there is none.
	root   *node
	cyclic bool
	// height is 0 for a queue and one more than the highest child for a cohort.
	height int
	depth  int

	quotas []cellQuota
	cells  map[FlavorResource]*cell
	order  []*cell // cells by flavor and resource
	shares []shared

	// scratch of fair sharing
	largest  largest
	contest  contest
	standing standing

	// tree holds what concerns a whole tree; set at its root.
	tree *tree
}

type cellQuota struct {
	FlavorResource
	Quota
}

// tree is what is common to all nodes below one root.
type tree struct {
	root *node
	// queues are its leaves, by name within each cohort.
	queues []*queue
	// ready are the queues whose heads are to be tried.
	ready []*queue
	// promised wait for evictions, in queue order.
	promised []*work
	// inFlight counts evictions that have not been released.
	inFlight int
	// touched says that decisions may have changed.
	touched bool
	// version counts the changes of usage.
	version uint64
	// changes are the leaves' cells whose usage changed, tops their roots;
	// restless and deep are woken by any change. See watch.go.
	changes  []*cell
	tops     []*cell
	restless []watch
	deep     []deepClaim
	// evictions since there was last anything new, and who may have been kept
	// from evicting by them. See cycle.go.
	evictions evictions
	heldBack  []watch
}

func (n *node) isQueue() bool { return n.queue != nil }

// before orders siblings.
func (n *node) before(m *node) bool {
	if n.isQueue() != m.isQueue() {
		return !n.isQueue()
	}
	return n.name < m.name
}

// cell returns the node's cell of a flavor and resource, made if need be
// together with those of its ancestors.
func (n *node) cell(fr FlavorResource) *cell {
	if c, ok := n.cells[fr]; ok {
		return c
	}
	c := &cell{node: n, FlavorResource: fr}
	c.forgetWatches()
	if n.cells == nil {
		n.cells = map[FlavorResource]*cell{}
	}
	n.cells[fr] = c
	n.insert(c)
	if n.up != nil {
		c.parent = n.up.cell(fr)
		c.parent.children = append(c.parent.children, c)
	}
	return c
}

func (n *node) insert(c *cell) {
	i := sort.Search(len(n.order), func(i int) bool { return c.FlavorResource.before(n.order[i].FlavorResource) })
	n.order = append(n.order, nil)
	copy(n.order[i+1:], n.order[i:])
	n.order[i] = c
	n.shares = nil
	for _, child := range n.children {
		child.shares = nil
	}
}

func (fr FlavorResource) before(o FlavorResource) bool {
	if fr.Flavor != o.Flavor {
		return fr.Flavor < o.Flavor
	}
	return fr.Resource < o.Resource
}

// link hangs a node below another (nil for none) and marks both trees dirty.
func (e *Engine) link(n, parent *node) {
	e.soil(n)
	if n.parent == parent {
		return
	}
	if old := n.parent; old != nil {
		e.soil(old)
		for i, c := range old.children {
			if c == n {
				old.children = append(old.children[:i:i], old.children[i+1:]...)
				break
			}
		}
		n.parent = nil
		e.forget(old)
	}
	n.parent = parent
	if parent != nil {
		e.soil(parent)
		i := sort.Search(len(parent.children), func(i int) bool { return n.before(parent.children[i]) })
		parent.children = append(parent.children, nil)
		copy(parent.children[i+1:], parent.children[i:])
		parent.children[i] = n
	}
}

// cohort returns the node of a cohort, made implicitly if need be.
func (e *Engine) cohort(name CohortName) *node {
	if name == "" {
		return nil
	}
	n, ok := e.cohorts[name]
	if !ok {
		n = &node{name: string(name), weight: OneWeight}
		e.cohorts[name] = n
		e.soil(n)
	}
	return n
}

// forget drops an implicit cohort that has no members.
func (e *Engine) forget(n *node) {
	if n.isQueue() || n.described || len(n.children) > 0 || n.parent != nil {
		return
	}
	delete(e.cohorts, CohortName(n.name))
	delete(e.soiled, n)
	e.leaveTree(n)
}

// soil marks the tree of a node to be computed anew.
func (e *Engine) soil(n *node) {
	e.soiled[n] = struct{}{}
}

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

// touch marks a tree for the next Decide.
func (e *Engine) touch(t *tree) {
	if t != nil && !t.touched {
		t.touched = true
		e.touchedTrees = append(e.touchedTrees, t)
	}
}

// validateGroups returns what is wrong with the quotas of a node, "" if nothing
// is.
func validateGroups(groups []ResourceGroup) string {
	resources, flavors := map[Resource]bool{}, map[FlavorName]bool{}
	for _, g := range groups {
		for _, r := range g.Resources {
			if resources[r] {
				return "resource " + string(r) + " is in two resource groups"
			}
			resources[r] = true
		}
		for _, f := range g.Flavors {
			if flavors[f.Flavor] {
				return "flavor " + string(f.Flavor) + " is listed twice"
			}
			flavors[f.Flavor] = true
			if len(f.Quotas) != len(g.Resources) {
				return "flavor " + string(f.Flavor) + " must have a quota for each of " + joinResources(g.Resources)
			}
			for i, q := range f.Quotas {
				if q.Nominal < 0 || q.Borrow != nil && *q.Borrow < 0 || q.Lend != nil && *q.Lend < 0 {
					return "quota of " + string(g.Resources[i]) + " in flavor " + string(f.Flavor) + " is negative"
				}
			}
		}
	}
	return ""
}

func joinResources(rs []Resource) string {
	names := make([]string, len(rs))
	for i, r := range rs {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}

func flatten(groups []ResourceGroup) []cellQuota {
	var quotas []cellQuota
	for _, g := range groups {
		for _, f := range g.Flavors {
			for i, q := range f.Quotas {
				if i < len(g.Resources) {
					quotas = append(quotas, cellQuota{FlavorResource{f.Flavor, g.Resources[i]}, q.copy()})
				}
			}
		}
	}
	return quotas
}

// copy keeps the engine apart from the caller's pointers.
func (q Quota) copy() Quota {
	q.Borrow, q.Lend = copyPtr(q.Borrow), copyPtr(q.Lend)
	return q
}

func copyPtr[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}
