package engine

// The algebra of quotas in a tree, for one resource of one flavor.
//
// A node's subtree quota is its nominal quota and what its children lend. What
// a child does not lend is guaranteed to it: its parent sees neither that quota
// nor the usage that it covers. So usage rises to the parent only as far as it
// exceeds the guaranteed part, and what is available to a child is the rest of
// its guarantee and as much of what is available to its parent as its borrowing
// limit lets it have.
//
// Each cell has two accounts. held is what is charged now, with workloads that
// are being evicted. planned is what will be charged when all evictions have
// ended: without the victims, with the workloads they make room for. A workload
// is admitted only if it fits both; an eviction is weighed on planned alone. So
// quota is neither given away before it is free nor promised twice.

// account selects one of a cell's two usages.
type account int

const (
	held account = iota
	planned
)

// cell is one resource of one flavor at one node.
type cell struct {
	FlavorResource
	node     *node
	parent   *cell
	children []*cell

	quota Quota
	// listed says that the node's own spec has this quota.
	listed bool
	// subtree is the quota of the node and all below it, less what they keep.
	subtree       Amount
	held, planned Amount
	// holders counts charges on a leaf's cell.
	holders int

	// What follows says whom a change may help; see watch.go. On a leaf's cell:
	watches    watchHeap
	claims     []claims
	roomClaims []watch
	byPriority []atPriority
	dirty      bool
	// on an inner cell:
	kids [kinds]needHeap
	// on all but a root's:
	needs needs
	// on a root's:
	dirtyTop bool
}

func (c *cell) usage(a account) *Amount {
	if a == held {
		return &c.held
	}
	return &c.planned
}

// guaranteed is the part of the subtree quota that others cannot use.
func (c *cell) guaranteed() Amount {
	if c.quota.Lend == nil || c.parent == nil {
		return 0
	}
	return max(0, c.subtree.Sub(*c.quota.Lend))
}

// lent is the part of a usage that the parent sees.
func (c *cell) lent(usage Amount) Amount { return max(0, usage.Sub(c.guaranteed())) }

// localAvailable is what is left of the guaranteed part.
func (c *cell) localAvailable(a account) Amount { return max(0, c.guaranteed().Sub(*c.usage(a))) }

// available is what the node can still take, below zero when more is used than
// there is.
func (c *cell) available(a account) Amount {
	if c.parent == nil {
		return c.subtree.Sub(*c.usage(a))
	}
	above := c.parent.available(a)
	if c.quota.Borrow != nil {
		guaranteed, usage := c.guaranteed(), *c.usage(a)
		own := c.subtree.Sub(guaranteed).Sub(max(0, usage.Sub(guaranteed)))
		above = min(above, own.Add(*c.quota.Borrow))
	}
	return c.localAvailable(a).Add(above)
}

// free is what fits now: in what is held and in what is planned.
func (c *cell) free() Amount { return min(c.available(held), c.available(planned)) }

// most is what would be available if nobody used anything.
func (c *cell) most() Amount {
	if c.parent == nil {
		return c.subtree
	}
	most := c.guaranteed().Add(c.parent.most())
	if c.quota.Borrow != nil {
		most = min(most, c.subtree.Add(*c.quota.Borrow))
	}
	return most
}

// borrowed is the part of the usage above the subtree quota.
func (c *cell) borrowed(a account) Amount { return max(0, (*c.usage(a)).Sub(c.subtree)) }

// exceeds says whether the node would borrow with this much more.
func (c *cell) exceeds(a account, more Amount) bool { return (*c.usage(a)).Add(more) > c.subtree }

// change adds to a usage, or takes away, and raises to the ancestors what they
// see of it.
func (c *cell) change(a account, delta Amount) {
	for ; c != nil && delta != 0; c = c.parent {
		usage := c.usage(a)
		before := c.lent(*usage)
		*usage = usage.Add(delta)
		after := c.lent(*usage)
		if after == before {
			return
		}
		delta = after.Sub(before)
	}
}

// distance is how far up the tree a request must borrow: the height of the
// smallest subtree whose quota holds it. beyond says that this subtree is not
// the whole tree, so that others outside it may have borrowed from it.
func (c *cell) distance(a account, ask Amount) (height int, beyond bool) {
	for {
		if !c.exceeds(a, ask) || c.parent == nil {
			return c.node.height, c.parent != nil
		}
		ask = ask.Sub(c.localAvailable(a))
		c = c.parent
	}
}

// top is the cell at the root: the same for all cells of one resource of one
// flavor in a tree.
func (c *cell) top() *cell {
	for c.parent != nil {
		c = c.parent
	}
	return c
}

// empty says that a cell is not worth showing.
func (c *cell) empty() bool { return c.subtree == 0 && c.held == 0 && c.planned == 0 }
