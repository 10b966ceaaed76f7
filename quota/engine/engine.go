package engine

import "time"

// Engine holds the budgets, the queues and who uses what. Make it with [New].
type Engine struct {
	opts options
	now  instant
}

// New makes an empty engine.
func New(opts ...Option) *Engine {
	e := &Engine{opts: options{format: FormatAmount}}
	for _, o := range opts {
		o(&e.opts)
	}
	return e
}

// Apply takes in one fact. It decides nothing; its cost follows what the fact
// changes.
func (e *Engine) Apply(ev Event) {}

// Decide admits and evicts until nothing more can be done, and returns what it
// did, assumed already. A nil fit means that room is not in question. The result
// is empty when nothing has changed since the last call.
func (e *Engine) Decide(fit Fit) []Decision { return nil }

// Why explains where a workload stands. An id that is not known gives the state
// Unknown.
func (e *Engine) Why(id WorkloadID) Why { return Why{ID: id, State: Unknown} }

// Holding returns what a workload is charged, and whether it holds quota.
func (e *Engine) Holding(id WorkloadID) (Assignment, bool) { return Assignment{}, false }

// QueueStatus reports on a ClusterQueue, and whether it exists.
func (e *Engine) QueueStatus(name QueueName) (QueueStatus, bool) { return QueueStatus{}, false }

// CohortStatus reports on a Cohort, described or implicit, and whether there is
// one of that name.
func (e *Engine) CohortStatus(name CohortName) (CohortStatus, bool) { return CohortStatus{}, false }

// Waiting lists a queue in its order, from offset, at most limit entries (all
// for limit 0).
func (e *Engine) Waiting(name QueueName, offset, limit int) []PendingItem { return nil }

// NextTick is the earliest time at which a [Tick] may change a decision, and
// whether there is one.
func (e *Engine) NextTick() (time.Time, bool) { return time.Time{}, false }

// String draws the tree with its usage, and the queues.
func (e *Engine) String() string { return "" }

// String is the reason as one sentence.
func (w Why) String() string { return string(w.Reason) }

func (d Admit) String() string { return "admit " + string(d.ID) }

func (d Evict) String() string { return "evict " + string(d.Victim) }

func (d Wait) String() string { return "wait " + string(d.ID) }
