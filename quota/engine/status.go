package engine

// QueueStatus is the state of a ClusterQueue for its status, metrics and CLIs.
type QueueStatus struct {
	Name QueueName
	// Cohort is its parent, "" for none.
	Cohort CohortName
	// Active says whether the queue admits.
	Active bool
	// Inactive is the reason if it does not.
	Inactive string
	// Code is the class of that reason.
	Code InactiveCode
	// Pending counts those that wait in the queue and could be tried, Parked
	// those among them that will be tried again only when something changes.
	// Reserving counts those that hold quota, Leaving those among them that are
	// being evicted.
	Pending, Parked, Reserving, Leaving int
	// Usage has one entry for each flavor and resource with a quota or usage, in
	// the order of the spec.
	Usage []UsageStatus
	// Share is the dominant resource share in thousandths, rounded up, as
	// status.fairSharing.weightedShare; Unlimited for weight 0 while borrowing.
	Share Amount
}

// UsageStatus is one flavor and resource of a node.
type UsageStatus struct {
	FlavorResource
	// Nominal is the node's quota.
	Nominal Amount
	// Used is what is charged, with workloads that are being evicted.
	Used Amount
	// Borrowed is the part above Nominal (of a cohort: above its subtree quota).
	Borrowed Amount
	// Available is what could be taken now without evicting.
	Available Amount
}

// InactiveCode classes why a queue is inactive; values as in the API's Active
// condition where it has them.
type InactiveCode string

// Reasons for a queue to be inactive.
const (
	CodeReady          InactiveCode = "Ready"
	CodeStopped        InactiveCode = "Stopped"
	CodeFlavorNotFound InactiveCode = "FlavorNotFound"
	CodeCohortCycle    InactiveCode = "CohortCycle"
	CodeMisconfigured  InactiveCode = "Misconfigured"
	CodeExternal       InactiveCode = "Unsupported"
	CodeMissing        InactiveCode = "NotFound"
)

// CohortStatus is the state of a Cohort.
type CohortStatus struct {
	Name CohortName
	// Parent is "" for a root.
	Parent CohortName
	// Cycle says that its ancestors form a cycle.
	Cycle bool
	// Usage entries: Nominal is the subtree quota, Used what its members use of
	// what they share.
	Usage []UsageStatus
	// Share is as in QueueStatus.
	Share Amount
}

// PendingItem is one line of a queue's waiting list.
type PendingItem struct {
	ID WorkloadID
	// LocalQueue is where it was sent.
	LocalQueue LocalQueueName
	// Priority is the effective one.
	Priority int32
	// Position counts from 1 in the ClusterQueue; InLocalQueue in the
	// LocalQueue.
	Position, InLocalQueue int
}

// QueueStatus reports on a ClusterQueue, and whether it exists.
func (e *Engine) QueueStatus(name QueueName) (QueueStatus, bool) {
	q, ok := e.queues[name]
	if !ok || !q.defined {
		return QueueStatus{}, false
	}
	e.settle()
	s := QueueStatus{
		Name: name, Cohort: q.spec.Cohort, Active: q.code == CodeReady, Code: q.code, Inactive: q.reason,
		Pending: q.pending, Reserving: len(q.holders), Leaving: q.leaving,
		Usage: q.node.usageStatus(), Share: e.weightedShare(q.node),
	}
	for _, c := range q.classes {
		if c.parked {
			s.Parked += c.size()
		}
	}
	s.Pending += len(q.promises)
	return s, true
}

// CohortStatus reports on a Cohort, described or implicit, and whether there is
// one of that name.
func (e *Engine) CohortStatus(name CohortName) (CohortStatus, bool) {
	n, ok := e.cohorts[name]
	if !ok {
		return CohortStatus{}, false
	}
	e.settle()
	s := CohortStatus{Name: name, Cycle: n.cyclic, Usage: n.usageStatus(), Share: e.weightedShare(n)}
	if n.parent != nil {
		s.Parent = CohortName(n.parent.name)
	}
	return s, true
}

// usageStatus lists the cells in the order of the spec, then the others by
// name.
func (n *node) usageStatus() []UsageStatus {
	out := make([]UsageStatus, 0, len(n.order))
	for _, q := range n.quotas {
		out = append(out, n.cells[q.FlavorResource].status())
	}
	for _, c := range n.order {
		if !c.listed && !c.empty() {
			out = append(out, c.status())
		}
	}
	return out
}

func (c *cell) status() UsageStatus {
	s := UsageStatus{FlavorResource: c.FlavorResource, Nominal: c.quota.Nominal, Used: c.held, Available: c.free()}
	if !c.node.isQueue() {
		s.Nominal = c.subtree
	}
	s.Borrowed = c.borrowed(held)
	return s
}
