package engine

import "container/heap"

// Who is tried again, and when. A class that was refused is not tried again until
// something happens that could help it. What that is, is written down when it is
// parked:
//
//   - For one group of its plan no flavor will do. For each flavor there is a cell
//     of which more is asked than there is. The class watches those cells: it is
//     woken when one of them has as much available as is asked.
//   - If it may evict, it is also woken when enough of the cell may be evicted.
//   - If no such cell can be named (it fails only in combination, or for want of
//     victims that a bound cannot foresee), it is restless: any change in its tree
//     wakes it.
//
// So that a change need not ask a thousand queues, every cell keeps its children
// in heaps by need: how much must be available to the parent for somebody below
// to be woken. A change updates the needs on its own way to the root; then the
// heaps tell from the top who can be woken, or that nobody can.
//
// Those who would not borrow are woken first and the others only when nobody of
// the first is left to try, since they would come after them anyhow.

// kinds of need: of those who would stay within their queue's own quota, and of
// those who would borrow.
const (
	within = iota
	borrowing
	kinds
)

// watch is a class that waits for an amount of a cell. It is void once the class
// was woken, that is, once its round differs.
type watch struct {
	asked Amount
	class *class
	round uint32
}

func (w watch) void() bool { return w.class.round != w.round }

// watchHeap has the smallest amount on top.
type watchHeap []watch

func (h watchHeap) Len() int           { return len(h) }
func (h watchHeap) Less(i, j int) bool { return h[i].asked < h[j].asked }
func (h watchHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *watchHeap) Push(x any)        { *h = append(*h, x.(watch)) }
func (h *watchHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1] = watch{}
	*h = old[:len(old)-1]
	return w
}

// add puts a watch in, and now and then throws the void ones out.
func (h *watchHeap) add(w watch) {
	if len(*h) >= 16 && len(*h) == cap(*h) {
		live := (*h)[:0]
		for _, x := range *h {
			if !x.void() {
				live = append(live, x)
			}
		}
		clear((*h)[len(live):])
		*h = live
		heap.Init(h)
	}
	heap.Push(h, w)
}

// least is the smallest amount that is waited for.
func (h *watchHeap) least() (Amount, bool) {
	for len(*h) > 0 && (*h)[0].void() {
		heap.Pop(h)
	}
	if len(*h) == 0 {
		return 0, false
	}
	return (*h)[0].asked, true
}

// claims are the watches of those who may evict, by priority.
type claims struct {
	priority int32
	heap     watchHeap
}

// changed notes that the usage of a leaf's cell changed, for better or worse.
func (e *Engine) changed(c *cell) {
	c.node.outdate()
	t := c.node.queue.tree()
	if t == nil {
		return
	}
	t.version++
	if !c.dirty {
		c.dirty = true
		t.changes = append(t.changes, c)
	}
	e.touch(t)
}

// wakeChanged wakes whom the changes since the last call may help, and says
// whether there was anything to look at.
func (e *Engine) wakeChanged(t *tree) {
	if len(t.changes) == 0 {
		return
	}
	changes := t.changes
	t.changes = e.changesSpare[:0]
	for _, c := range changes {
		c.dirty = false
		c.refreshNeeds()
		e.wakeClaims(c)
		if top := c.top(); !top.dirtyTop {
			top.dirtyTop = true
			t.tops = append(t.tops, top)
		}
	}
	e.changesSpare = changes[:0]
	for _, top := range t.tops {
		e.wakeBelow(top, within)
		if e.opts.fair && t.root.height > 1 {
			// Shares of cohorts, not of queues, may decide.
			e.wakeBelow(top, borrowing)
		}
	}
	if len(t.restless) > 0 {
		restless := t.restless
		t.restless = nil
		for _, w := range restless {
			if !w.void() {
				e.unpark(w.class)
			}
		}
	}
	if len(t.deep) > 0 {
		e.wakeDeep(t)
	}
}

// wakeLater wakes those who would borrow.
func (e *Engine) wakeLater(t *tree) {
	tops := t.tops
	t.tops = t.tops[:0]
	for _, top := range tops {
		top.dirtyTop = false
		e.wakeBelow(top, borrowing)
	}
}

// wakeOwn wakes all of one queue that a change may help, and says whether there
// were any: whoever borrows comes after others of other queues, but keeps its
// place in its own.
func (e *Engine) wakeOwn(q *queue) bool {
	woken := false
	for _, c := range q.node.order {
		if least, w := c.leastWatched(); w != nil && least <= c.available(planned) && c.top().dirtyTop {
			e.wakeLeaf(c)
			c.refreshNeeds()
			woken = true
		}
	}
	return woken
}

// wakeBelow wakes those below a cell whose need is met.
func (e *Engine) wakeBelow(c *cell, kind int) {
	if c.node.isQueue() {
		e.wakeLeaf(c)
		return
	}
	above := c.available(planned)
	h := &c.kids[kind]
	for len(h.cells) > 0 && h.cells[0].needs.amount[kind] <= above {
		child := h.cells[0]
		before := child.needs.amount[kind]
		e.wakeBelow(child, kind)
		for k := range kinds {
			c.kids[k].kind = k
			c.kids[k].update(child, child.need(k))
		}
		if len(h.cells) > 0 && h.cells[0] == child && child.needs.amount[kind] == before {
			return
		}
	}
}

// wakeLeaf wakes those whose amount is available to a queue.
func (e *Engine) wakeLeaf(c *cell) {
	available := c.available(planned)
	for {
		least, waits := c.leastWatched()
		if waits == nil || least > available {
			return
		}
		e.unpark(waits)
	}
}

// leastWatched is the least that has to be available of a queue's cell for somebody to
// be woken, and who that is; nil if nobody waits. What one may evict in his own queue
// need not be available, and that changes while he waits.
func (c *cell) leastWatched() (Amount, *class) {
	var waits *class
	least, ok := c.watches.least()
	if ok {
		waits = c.watches[0].class
	}
	for i := range c.claims {
		cl := &c.claims[i]
		if asked, ok := cl.heap.least(); ok {
			asked = max(0, asked.Sub(c.evictable(c.node.queue.spec.Preemption.WithinQueue, cl.priority)))
			if waits == nil || asked < least {
				least, waits = asked, cl.heap[0].class
			}
		}
	}
	return least, waits
}

// wakeClaims wakes those of a queue who may now evict enough.
func (e *Engine) wakeClaims(c *cell) {
	for i := range c.claims {
		cl := &c.claims[i]
		for {
			least, ok := cl.heap.least()
			if !ok || !e.mayClaim(c, least, cl.heap[0].class.first(), cl.heap[0].class.queue) {
				break
			}
			e.unpark(cl.heap[0].class)
		}
	}
	if len(c.roomClaims) > 0 {
		waiting := c.roomClaims
		c.roomClaims = nil
		for _, w := range waiting {
			if !w.void() {
				e.unpark(w.class)
			}
		}
	}
}

// wakeDeep looks at the claims that a change elsewhere may help: in a deep tree
// what a cohort has a right to depends on the usage of all below it, and in fair
// sharing everything depends on the shares of others.
func (e *Engine) wakeDeep(t *tree) {
	kept := t.deep[:0]
	for _, d := range t.deep {
		switch {
		case d.void():
		case d.asked <= d.cell.available(planned): // its watch will tell
			kept = append(kept, d)
		case e.mayClaim(d.cell, d.asked, d.class.first(), d.class.queue):
			e.unpark(d.class)
		default:
			kept = append(kept, d)
		}
	}
	clear(t.deep[len(kept):])
	t.deep = kept
}

// deepClaim is a watch of a cell.
type deepClaim struct {
	watch
	cell *cell
}

// setWatches writes down what may help a class that was refused.
func (e *Engine) setWatches(c *class, mayEvict bool) {
	c.round++
	if c.room != nil {
		e.watchRoom(c, mayEvict)
		return
	}
	for s := range c.plan.sets {
		set := &c.plan.sets[s]
		count := set.spec.Count
		if set.spec.MinCount > 0 {
			count = set.spec.MinCount
		}
		for g := range set.groups {
			if e.watchGroup(c, set.groups[g].options, count, mayEvict) {
				return
			}
		}
	}
	e.watchAll(c)
}

// watchAll makes a class restless.
func (e *Engine) watchAll(c *class) {
	if t := c.queue.tree(); t != nil && c.plan.refused == nil {
		t.restless = append(t.restless, watch{class: c, round: c.round})
	}
}

// watchRoom watches for victims in the class's own queue, and for the flavors
// that were out of quota; the rest is told by RoomChanged.
func (e *Engine) watchRoom(c *class, mayEvict bool) {
	for s := range c.plan.sets {
		set := &c.plan.sets[s]
		for _, g := range set.groups {
			for _, o := range g.options {
				for _, a := range o.asks {
					asked := a.amount(set.spec.Count)
					if asked > a.cell.available(planned) && !(mayEvict && e.mayClaim(a.cell, asked, c.first(), c.queue)) {
						e.watchCell(c, a.cell, asked, mayEvict)
					} else if mayEvict && asked > 0 {
						a.cell.roomClaims = append(a.cell.roomClaims, watch{class: c, round: c.round})
					}
				}
			}
		}
	}
}

// watchGroup watches the cells that stand in the way of every flavor of a group,
// if there is one for each.
func (e *Engine) watchGroup(c *class, options []option, count int32, mayEvict bool) bool {
	w := c.first()
	e.blockers = e.blockers[:0]
	for i := range options {
		if options[i].unfit != "" {
			continue
		}
		found := false
		for _, a := range options[i].asks {
			asked := a.amount(count)
			if asked == 0 {
				continue
			}
			if asked > a.cell.most() {
				found = true // only a change of quotas helps, and that wakes all
				break
			}
			if asked > a.cell.available(planned) && !(mayEvict && e.mayClaim(a.cell, asked, w, c.queue)) {
				e.blockers = append(e.blockers, charge{a.cell, asked})
				found = true
				break
			}
		}
		if !found {
			return false
		}
	}
	for _, b := range e.blockers {
		e.watchCell(c, b.cell, b.amount, mayEvict)
	}
	return true
}

func (e *Engine) watchCell(c *class, cell *cell, asked Amount, mayEvict bool) {
	w := watch{asked: asked, class: c, round: c.round}
	fit := w
	if mayEvict {
		// What it may evict in its own queue need not become free.
		fit.asked = max(0, asked.Sub(cell.evictable(c.queue.spec.Preemption.WithinQueue, c.key.priority)))
	}
	cell.watches.add(fit)
	cell.refreshNeeds()
	if !mayEvict {
		return
	}
	claim := cell.claim(c.key.priority)
	claim.heap.add(w)
	t := c.queue.tree()
	if p := c.queue.spec.Preemption.Reclaim; (t.root.height > 1 || e.opts.fair) && p != Never && p != "" {
		t.deep = append(t.deep, deepClaim{w, cell})
	}
}

func (c *cell) claim(priority int32) *claims {
	for i := range c.claims {
		if c.claims[i].priority == priority {
			return &c.claims[i]
		}
	}
	c.claims = append(c.claims, claims{priority: priority})
	return &c.claims[len(c.claims)-1]
}

// forgetWatches clears what hangs on a cell, before its tree is computed anew.
func (c *cell) forgetWatches() {
	c.watches, c.claims, c.roomClaims = nil, nil, nil
	c.kids = [kinds]needHeap{}
	c.needs = needs{amount: [kinds]Amount{Unlimited, Unlimited}}
	c.dirty, c.dirtyTop = false, false
	c.byPriority = c.byPriority[:0]
}
