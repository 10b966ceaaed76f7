package engine

// Needs: how much must be available to a parent for somebody below a cell to be
// woken, kept in heaps; see watch.go.

// needs are what a cell waits for from its parent, and where it stands in the
// parent's heaps.
type needs struct {
	amount [kinds]Amount
	place  [kinds]int32
}

// needHeap has the cell with the least need on top. It is a heap of its own kind:
// it is on the path of every change.
type needHeap struct {
	cells []*cell
	kind  int
}

func (h *needHeap) less(a, b *cell) bool { return a.needs.amount[h.kind] < b.needs.amount[h.kind] }

func (h *needHeap) set(i int, c *cell) {
	h.cells[i] = c
	c.needs.place[h.kind] = int32(i) + 1
}

func (h *needHeap) up(i int) {
	c := h.cells[i]
	for i > 0 {
		p := (i - 1) / 2
		if !h.less(c, h.cells[p]) {
			break
		}
		h.set(i, h.cells[p])
		i = p
	}
	h.set(i, c)
}

func (h *needHeap) down(i int) {
	c := h.cells[i]
	for {
		k := 2*i + 1
		if k >= len(h.cells) {
			break
		}
		if k+1 < len(h.cells) && h.less(h.cells[k+1], h.cells[k]) {
			k++
		}
		if !h.less(h.cells[k], c) {
			break
		}
		h.set(i, h.cells[k])
		i = k
	}
	h.set(i, c)
}

// update gives a cell a new need; Unlimited takes it out.
func (h *needHeap) update(c *cell, need Amount) {
	i := int(c.needs.place[h.kind]) - 1
	old := c.needs.amount[h.kind]
	c.needs.amount[h.kind] = need
	switch {
	case i < 0 && need == Unlimited:
	case i < 0:
		h.cells = append(h.cells, c)
		h.up(len(h.cells) - 1)
	case need == Unlimited:
		last := len(h.cells) - 1
		c.needs.place[h.kind] = 0
		moved := h.cells[last]
		h.cells[last] = nil
		h.cells = h.cells[:last]
		if moved != c {
			h.set(i, moved)
			h.down(i)
			h.up(int(moved.needs.place[h.kind]) - 1)
		}
	case need < old:
		h.up(i)
	case need > old:
		h.down(i)
	}
}

// need works out what a cell waits for.
func (c *cell) need(kind int) Amount {
	var asked Amount
	if c.node.isQueue() {
		least, waits := c.leastWatched()
		if waits == nil || (least > c.subtree.Sub(c.planned)) != (kind == borrowing) {
			return Unlimited
		}
		asked = least
	} else {
		h := &c.kids[kind]
		if len(h.cells) == 0 {
			return Unlimited
		}
		asked = h.cells[0].needs.amount[kind]
	}
	need := asked.Sub(c.localAvailable(planned))
	if c.quota.Borrow != nil {
		guaranteed := c.guaranteed()
		own := c.subtree.Sub(guaranteed).Sub(max(0, c.planned.Sub(guaranteed)))
		if need > own.Add(*c.quota.Borrow) {
			return Unlimited // its own limit is in the way
		}
	}
	return need
}

// refreshNeeds brings the needs from a cell up to the root up to date.
func (c *cell) refreshNeeds() {
	for ; c.parent != nil; c = c.parent {
		for kind := range kinds {
			c.parent.kids[kind].kind = kind
			c.parent.kids[kind].update(c, c.need(kind))
		}
	}
}
