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
