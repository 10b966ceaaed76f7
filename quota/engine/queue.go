package engine

import (
	"container/heap"
	"sort"
)

// queue is a ClusterQueue: a leaf of the tree with workloads before and in it.
type queue struct {
	name QueueName
	node *node
	// defined is false for a queue that is only named, by a LocalQueue or by an
	// admission.
	defined bool
	spec    ClusterQueue
	// groupOf is the index of the resource group that covers a resource.
	groupOf       map[Resource]int
	coversDevices bool
	fault         string

	code   InactiveCode
	reason string

	// lanes are what the order is made within: one for all, or one for each
	// LocalQueue where usage orders them.
	lanes  map[LocalQueueName]*lane
	sorted []*lane
	// classes holds all that waits; plans are shared between them.
	classes map[classKey]*class
	plans   map[*shape]*plan
	pending int
	// inReady says that the tree has it among the queues to try.
	inReady bool
	// entry is its head's nomination in the present Decide.
	entry *nomination

	// holders have quota, promises wait for theirs, both in the order of eviction.
	holders  []*work
	promises []*work
	leaving  int
	// keeps are its workloads for which a place is kept free.
	keeps []*work
	// respec says that the plans of its classes are out of date.
	respec bool
	// locals send workloads here.
	locals map[LocalQueueName]*local
}

// local is a LocalQueue.
type local struct {
	name    LocalQueueName
	defined bool
	spec    LocalQueue
	queue   *queue
	works   []*work
	// usage is for admission fair sharing.
	usage localUsage
}

// lane is an order of classes within a queue.
type lane struct {
	local *local // nil for the common lane
	name  LocalQueueName
	// heap has the classes that can be tried; in a StrictFIFO queue all, since
	// the first blocks the others.
	heap    classHeap
	classes int
}

// classKey tells workloads apart for which a trial could end differently.
type classKey struct {
	lane     *lane
	shape    *shape
	priority int32
	gated    bool
	roomKey  string
}

// class is a set of waiting workloads that are alike but for their age, so that
// when its first member cannot go, none can.
type class struct {
	key   classKey
	queue *queue
	plan  *plan
	// members are in order, from skip on.
	members []*work
	skip    int
	// place in the lane's heap, -1 if not there.
	place int
	// parked classes were tried in vain and wait for a change.
	parked bool
	// round counts how often it was parked or woken: watches of another round
	// are void.
	round uint32
	// room is what Fit said last; roomFlavors are the flavors that it was about.
	room        *NoRoom
	roomFlavors []FlavorName
}

func (c *class) first() *work { return c.members[c.skip] }
func (c *class) size() int    { return len(c.members) - c.skip }

// find is the place of a workload among the members, or where it would go.
func (c *class) find(w *work) int {
	live := c.members[c.skip:]
	return c.skip + sort.Search(len(live), func(i int) bool { return !cameBefore(live[i], w) })
}

func (c *class) insert(w *work) {
	if n := len(c.members); n > c.skip && cameBefore(c.members[n-1], w) {
		c.members = append(c.members, w)
		return
	}
	i := c.find(w)
	if i == c.skip && c.skip > 0 {
		c.skip--
		c.members[c.skip] = w
		return
	}
	c.members = append(c.members, nil)
	copy(c.members[i+1:], c.members[i:])
	c.members[i] = w
}

func (c *class) remove(w *work) {
	i := c.find(w)
	if i == c.skip {
		c.members[i] = nil
		c.skip++
		if c.skip > 64 && c.skip > len(c.members)/2 {
			c.members = append([]*work(nil), c.members[c.skip:]...)
			c.skip = 0
		}
		return
	}
	copy(c.members[i:], c.members[i+1:])
	c.members[len(c.members)-1] = nil
	c.members = c.members[:len(c.members)-1]
}

func (q *queue) strict() bool { return q.spec.Strategy == StrictFIFO }

// enter puts a workload into the queue.
func (e *Engine) enter(q *queue, w *work) {
	l := q.laneOf(w)
	key := classKey{l, w.shape, w.priority, w.gated, w.roomKey}
	c, ok := q.classes[key]
	if !ok {
		c = &class{key: key, queue: q, place: -1, plan: e.planOf(q, w.shape)}
		q.classes[key] = c
		l.classes++
	}
	c.insert(w)
	w.class = c
	q.pending++
	if c.first() == w {
		if c.parked && w.mayPreemptNewer(q) {
			e.unpark(c)
		}
		q.replace(c)
	}
	e.wakeQueue(q)
}

// mayPreemptNewer says that its age counts in preemption.
func (w *work) mayPreemptNewer(q *queue) bool {
	return q.spec.Preemption.WithinQueue == LowerOrNewerEqualPriority && !w.gated
}

// leave takes a workload out of its queue.
func (e *Engine) leave(w *work) {
	c := w.class
	if c == nil {
		return
	}
	q := c.queue
	wasFirst := c.first() == w
	if wasFirst && c.place >= 0 {
		heap.Remove(&c.key.lane.heap, c.place)
	}
	c.remove(w)
	w.class = nil
	q.pending--
	if c.size() == 0 {
		c.round++
		delete(q.classes, c.key)
		q.dropPlan(c.key.shape)
		delete(e.roomWaiters, c)
		c.key.lane.classes--
		q.dropLane(c.key.lane)
	} else if wasFirst {
		q.replace(c)
	}
	e.wakeQueue(q)
}

// replace puts a class at its place in the lane's heap.
func (q *queue) replace(c *class) {
	h := &c.key.lane.heap
	belongs := !c.parked || q.strict()
	switch {
	case belongs && c.place >= 0:
		heap.Fix(h, c.place)
	case belongs:
		heap.Push(h, c)
	case c.place >= 0:
		heap.Remove(h, c.place)
	}
}

// park sets a class aside until something changes.
func (e *Engine) park(c *class) {
	c.parked = true
	c.queue.replace(c)
}

// unpark makes a class be tried again.
func (e *Engine) unpark(c *class) {
	if !c.parked {
		return
	}
	c.parked = false
	c.round++
	c.queue.replace(c)
	e.wakeQueue(c.queue)
}

// wakeQueue lists a queue among those to try, if it has whom to try.
func (e *Engine) wakeQueue(q *queue) {
	t := q.tree()
	if t == nil || q.inReady || e.head(q) == nil {
		return
	}
	q.inReady = true
	t.ready = append(t.ready, q)
	e.touch(t)
}

func (q *queue) tree() *tree {
	if q.node.root == nil {
		return nil
	}
	return q.node.root.tree
}

// head is the workload to try next, nil if there is none.
func (e *Engine) head(q *queue) *work {
	if q.code != CodeReady || q.strict() && len(q.promises) > 0 {
		return nil
	}
	var best *lane
	for _, l := range q.sorted {
		if len(l.heap) > 0 && (best == nil || e.laneBefore(l, best)) {
			best = l
		}
	}
	if best == nil || best.heap[0].parked {
		return nil
	}
	return best.heap[0].first()
}

// laneBefore orders lanes: less usage first, then the one whose head goes
// before.
func (e *Engine) laneBefore(a, b *lane) bool {
	if a.local != nil && b.local != nil {
		if c := e.compareUsage(a.local, b.local); c != 0 {
			return c < 0
		}
	}
	return goesBefore(a.heap[0].first(), b.heap[0].first())
}

func (q *queue) laneOf(w *work) *lane {
	var name LocalQueueName
	if q.spec.UsageBased {
		name = w.local.name
	}
	l, ok := q.lanes[name]
	if !ok {
		l = &lane{name: name}
		if q.spec.UsageBased {
			l.local = w.local
		}
		q.lanes[name] = l
		i := sort.Search(len(q.sorted), func(i int) bool { return !q.sorted[i].name.before(name) })
		q.sorted = append(q.sorted, nil)
		copy(q.sorted[i+1:], q.sorted[i:])
		q.sorted[i] = l
	}
	return l
}

func (n LocalQueueName) before(o LocalQueueName) bool {
	if n.Namespace != o.Namespace {
		return n.Namespace < o.Namespace
	}
	return n.Name < o.Name
}

// dropLane forgets a lane in which nobody waits.
func (q *queue) dropLane(l *lane) {
	if l.classes > 0 {
		return
	}
	delete(q.lanes, l.name)
	for i, o := range q.sorted {
		if o == l {
			q.sorted = append(q.sorted[:i:i], q.sorted[i+1:]...)
			return
		}
	}
}

// addHolder and removeHolder keep the order of eviction.
func (q *queue) addHolder(w *work) {
	i := sort.Search(len(q.holders), func(i int) bool { return !leavesBefore(q.holders[i], w) })
	q.holders = append(q.holders, nil)
	copy(q.holders[i+1:], q.holders[i:])
	q.holders[i] = w
}

func (q *queue) removeHolder(w *work) {
	i := sort.Search(len(q.holders), func(i int) bool { return !leavesBefore(q.holders[i], w) })
	copy(q.holders[i:], q.holders[i+1:])
	q.holders[len(q.holders)-1] = nil
	q.holders = q.holders[:len(q.holders)-1]
}

// sumUsage computes the usage of the leaf's cells from what is held.
func (q *queue) sumUsage() {
	for _, w := range q.holders {
		for _, c := range w.hold.charges {
			c.cell.held = c.cell.held.Add(c.amount)
			if w.hold.state == holding {
				c.cell.addPriority(w.priority, c.amount)
				c.cell.planned = c.cell.planned.Add(c.amount)
			}
		}
	}
}
