package engine

import "math/bits"

// share is a dominant resource share: of the resource that a node borrows most
// of, the part of what its parent could lend, divided by the node's weight. It is
// kept as a fraction, so that equal shares are equal.
type share struct {
	borrowed, lendable Amount
	weight             Weight
}

// compare is negative, zero or positive as s is less than, equal to or more
// than o. Borrowing with weight 0 is more than any other share.
func (s share) compare(o share) int {
	switch {
	case s.borrowed == 0 || o.borrowed == 0:
		return sign(s.borrowed) - sign(o.borrowed)
	case s.weight == 0 && o.weight == 0:
		s.weight, o.weight = OneWeight, OneWeight
	}
	// A weight of 0 makes the other side 0, as it should.
	a := product(uint64(s.borrowed), uint64(o.lendable), uint64(o.weight))
	b := product(uint64(o.borrowed), uint64(s.lendable), uint64(s.weight))
	for i := range a {
		if a[i] != b[i] {
			if a[i] < b[i] {
				return -1
			}
			return 1
		}
	}
	return 0
}

func sign(a Amount) int {
	if a > 0 {
		return 1
	}
	return 0
}

// product is x*y*z, high word first.
func product(x, y, z uint64) [3]uint64 {
	h, l := bits.Mul64(x, y)
	lh, ll := bits.Mul64(l, z)
	hh, hl := bits.Mul64(h, z)
	mid, carry := bits.Add64(hl, lh, 0)
	return [3]uint64{hh + carry, mid, ll}
}

// thousandths is the share as the API shows it, rounded up.
func (s share) thousandths() Amount {
	if s.borrowed == 0 {
		return 0
	}
	if s.weight == 0 {
		return Unlimited
	}
	n := product(uint64(s.borrowed), 1000, uint64(OneWeight))
	d := product(uint64(s.lendable), uint64(s.weight), 1)
	// Shift both until they fit 128 by 64 bits; what is lost is far below a
	// thousandth.
	for d[1] != 0 || n[0] != 0 {
		n[2] = n[2]>>1 | n[1]<<63
		n[1] = n[1]>>1 | n[0]<<63
		n[0] >>= 1
		d[2] = d[2]>>1 | d[1]<<63
		d[1] >>= 1
	}
	if d[2] == 0 || n[1] >= d[2] {
		return Unlimited
	}
	q, r := bits.Div64(n[1], n[2], d[2])
	if r > 0 {
		q++
	}
	if q > uint64(Unlimited) {
		return Unlimited
	}
	return Amount(q)
}

// shared is one resource of a node with the cells of all its flavors.
type shared struct {
	cells    []*cell
	lendable Amount
}

// sharedResources groups the cells of a node by resource.
func (n *node) sharedResources() []shared {
	if n.shares != nil {
		return n.shares
	}
	out := make([]shared, 0, 4)
	if n.parent == nil || n.cyclic {
		n.shares = out
		return out
	}
	at := map[Resource]int{}
	for _, c := range n.order {
		i, ok := at[c.Resource]
		if !ok {
			i = len(out)
			at[c.Resource] = i
			out = append(out, shared{})
		}
		out[i].cells = append(out[i].cells, c)
	}
	// All flavors count that the parent could lend, from wherever in the tree.
	for _, c := range n.root.order {
		if i, ok := at[c.Resource]; ok {
			out[i].lendable = out[i].lendable.Add(max(0, n.parent.most(c)))
		}
	}
	n.shares = out
	return out
}

// most is what a node could have of a root's cell if nobody used anything. A node
// without a cell of its own has no limits either.
func (n *node) most(top *cell) Amount {
	for ; n != nil; n = n.parent {
		if c, ok := n.cells[top.FlavorResource]; ok {
			return c.most()
		}
	}
	return 0
}

// share is the dominant resource share of a node; a root has none.
func (n *node) share(a account) share {
	best := share{weight: n.weight}
	for _, r := range n.sharedResources() {
		var borrowed Amount
		for _, c := range r.cells {
			borrowed = borrowed.Add(c.borrowed(a))
		}
		if borrowed == 0 || r.lendable <= 0 {
			continue
		}
		if s := (share{borrowed, r.lendable, n.weight}); s.compare(best) > 0 {
			best = s
		}
	}
	return best
}

func (e *Engine) weightedShare(n *node) Amount { return n.share(held).thousandths() }
