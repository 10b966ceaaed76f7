package engine

// QueueStatus is the state of a ClusterQueue for its status, metrics and CLIs.
type QueueStatus struct {
	Name   QueueName
	Cohort CohortName
	// Active says whether the queue admits; Inactive is the reason if not, and
	// Code its class.
	Active   bool
	Inactive string
	Code     InactiveCode
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
	Nominal Amount
	Used    Amount
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
	Name   CohortName
	Parent CohortName
	// Cycle says that its ancestors form a cycle.
	Cycle bool
	// Usage entries: Nominal is the subtree quota, Used what its members use of
	// what they share.
	Usage []UsageStatus
	Share Amount
}

// PendingItem is one line of a queue's waiting list.
type PendingItem struct {
	ID         WorkloadID
	LocalQueue LocalQueueName
	Priority   int32
	// Position counts from 1 in the ClusterQueue; InLocalQueue in the
	// LocalQueue.
	Position, InLocalQueue int
}
