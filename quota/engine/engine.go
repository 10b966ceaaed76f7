package engine

import (
	"sort"
	"time"
)

// Engine holds the budgets, the queues and who uses what. Make it with [New].
type Engine struct {
	opts options
	now  instant

	flavors    map[FlavorName]FlavorSpec
	namespaces map[string]map[string]string
	cohorts    map[CohortName]*node
	queues     map[QueueName]*queue
	locals     map[LocalQueueName]*local
	works      map[WorkloadID]*work
	shapes     map[string]*shape

	// trees are the roots; soiled nodes stand for trees to compute anew;
	// unsettled and unseated follow from that.
	trees     map[*tree]struct{}
	soiled    map[*node]struct{}
	unsettled []*queue
	unseated  []*work

	timers      timerHeap
	roomWaiters map[*class]struct{}
	// roomLine are those that began to wait for room, in that order.
	roomLine []*work
	// usageDue is when LocalQueue usage is sampled next.
	usageDue instant
	suspects []*work
	// leaving counts evictions in flight.
	leaving int
	drops   []WorkloadID
	// fit is the one of the present Decide.
	fit Fit

	// touchedTrees are those for which Decide may find something to do.
	touchedTrees []*tree
	// version counts what changes usage within Decide.
	version uint64
	out     []Decision

	// Scratch space, kept to spare the collector: the nominations of a round,
	// a trial on one cell with the victims found for it, candidates.
	trial        nomination
	weighed      []victim
	found        candidates
	fairFound    fairSearch
	stamp        uint64
	keyBuffer    []byte
	byBorrowing  byBorrowing
	byShare      byShare
	spares       []*nomination
	readySpare   []*queue
	blockers     []charge
	changesSpare []*cell
}

// New makes an empty engine.
func New(opts ...Option) *Engine {
	e := &Engine{
		flavors:     map[FlavorName]FlavorSpec{},
		namespaces:  map[string]map[string]string{},
		cohorts:     map[CohortName]*node{},
		queues:      map[QueueName]*queue{},
		locals:      map[LocalQueueName]*local{},
		works:       map[WorkloadID]*work{},
		shapes:      map[string]*shape{},
		trees:       map[*tree]struct{}{},
		soiled:      map[*node]struct{}{},
		roomWaiters: map[*class]struct{}{},
	}
	for _, o := range opts {
		o(&e.opts)
	}
	return e
}

// Holding returns what a workload is charged, and whether it holds quota. A
// workload that is being evicted does.
func (e *Engine) Holding(id WorkloadID) (Assignment, bool) {
	w, ok := e.works[id]
	if !ok || w.hold == nil || w.hold.state == promised {
		return Assignment{}, false
	}
	return w.hold.assignment.copy(), true
}

// NextTick is the earliest time at which a [Tick] may change a decision, and
// whether there is one.
func (e *Engine) NextTick() (time.Time, bool) {
	next := instant(0)
	earlier := func(i instant) {
		if i != 0 && (next == 0 || i < next) {
			next = i
		}
	}
	if len(e.timers) > 0 {
		earlier(e.timers[0].notBefore)
	}
	earlier(e.nextUsageTick())
	earlier(e.nextRoomTick())
	return next.time(), next != 0
}

// Waiting lists a queue in its order, from offset, at most limit entries (all
// for limit 0).
func (e *Engine) Waiting(name QueueName, offset, limit int) []PendingItem {
	q, ok := e.queues[name]
	if !ok {
		return nil
	}
	e.settle()
	all := e.waiting(q)
	inLocal := map[*local]int{}
	var out []PendingItem
	for i, w := range all {
		inLocal[w.local]++
		if i < offset {
			continue
		}
		if limit > 0 && len(out) == limit {
			break
		}
		out = append(out, PendingItem{
			ID: w.id, LocalQueue: w.local.name, Priority: w.priority,
			Position: i + 1, InLocalQueue: inLocal[w.local],
		})
	}
	return out
}

// waiting is a queue in its order.
func (e *Engine) waiting(q *queue) []*work {
	all := make([]*work, 0, q.pending)
	for _, c := range q.classes {
		all = append(all, c.members[c.skip:]...)
	}
	sort.Slice(all, func(i, j int) bool { return e.queueBefore(all[i], all[j]) })
	return all
}

// queueBefore is the order of a queue, usage of LocalQueues first where that
// counts.
func (e *Engine) queueBefore(a, b *work) bool {
	la, lb := a.class.key.lane.local, b.class.key.lane.local
	if la != nil && lb != nil && la != lb {
		if c := e.compareUsage(la, lb); c != 0 {
			return c < 0
		}
	}
	return goesBefore(a, b)
}

// position counts those that go before a waiting workload.
func (e *Engine) position(w *work) int {
	q, n := w.class.queue, 1
	for _, c := range q.classes {
		live := c.members[c.skip:]
		n += sort.Search(len(live), func(i int) bool { return !e.queueBefore(live[i], w) })
	}
	return n
}
