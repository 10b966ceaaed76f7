package engine

// State is where a workload stands.
type State string

const (
	// Unknown workloads were never told to the engine.
	Unknown State = "Unknown"
	// Pending workloads wait for quota or room.
	Pending State = "Pending"
	// Promised workloads wait for the workloads evicted for them to end.
	Promised State = "Promised"
	// Holding workloads have quota.
	Holding State = "Holding"
	// Leaving workloads have quota and are being evicted.
	Leaving State = "Leaving"
)

// Reason is a class of reasons. Where the API has a reason for QuotaReserved
// being False, the value is the same.
type Reason string

// The reasons to wait.
const (
	// NotYetTried: nothing has been decided since it came.
	NotYetTried Reason = "PendingEvaluation"
	// NoMatchingFlavor: the pods can run on no flavor of the queue.
	NoMatchingFlavor Reason = "NoMatchingFlavor"
	// NotCovered: the queue has no quota for a resource that is asked for.
	NotCovered Reason = "ResourceNotCovered"
	// ExceedsMaxQuota: asks for more than could ever be available here.
	ExceedsMaxQuota Reason = "ExceedsMaxQuota"
	// WaitingForQuota: it is in use by others.
	WaitingForQuota Reason = "WaitingForQuota"
	// WaitingForPreempted: evictions are in flight.
	WaitingForPreempted Reason = "WaitingForPreemptedWorkloads"
	// WaitingForRoom: the budget fits, no card has room.
	WaitingForRoom Reason = "NoRoom"
	// BehindHead: a StrictFIFO queue waits for an earlier one.
	BehindHead Reason = "BehindHead"
	// BackingOff: waits for Workload.NotBefore.
	BackingOff Reason = "BackingOff"
	// OnHold: Workload.Hold.
	OnHold Reason = "OnHold"
	// Misconfigured: Workload.Refused, or an amount that is negative or
	// overflows.
	Misconfigured Reason = "Misconfigured"
	// InactiveWorkload: Workload.Inactive.
	InactiveWorkload Reason = "Inactive"
	// QueueMissing: the LocalQueue or its ClusterQueue does not exist.
	QueueMissing Reason = "QueueNotFound"
	// QueueInactive: the ClusterQueue is inactive; Detail says why.
	QueueInactive Reason = "QueueInactive"
	// QueueStopped: a stopPolicy.
	QueueStopped Reason = "QueueStopped"
	// NamespaceMismatch: the queue does not serve the namespace.
	NamespaceMismatch Reason = "NamespaceMismatch"
)

// Why is the answer to the question why a workload does not run. It is a value:
// every number in its sentence is a field.
type Why struct {
	ID WorkloadID
	// State is where it stands.
	State State
	// Reason is "" for workloads that hold quota.
	Reason Reason
	// Queue is the ClusterQueue, where it is known.
	Queue QueueName
	// Position counts from 1 in the order of the queue; 0 if it is not in the
	// queue, and in a Wait.
	Position int
	// Never says that nothing could admit it while the configuration stays as
	// it is.
	Never bool

	// Gated says that it could get its quota by evicting others, were it not for
	// Workload.PreemptionGated.
	Gated bool

	// PodSet is the one for which something falls short, of quota or room.
	PodSet string
	// Resource is what falls short.
	Resource Resource
	// Flavor is where it does: of several, the one that comes closest.
	Flavor FlavorName
	// Asked is what the pod set and those before it need of it, Free what the queue has left of its
	// own, Borrowable what it could take from others beyond that, now. Most is
	// what could be available to it if nobody used anything.
	Asked, Free, Borrowable, Most Amount
	// Holders are the queues that hold what falls short, those that borrow it
	// first, then the largest first, at most three.
	Holders []Holder
	// Flavors are the flavors that were tried and why each was not taken, in
	// order.
	Flavors []FlavorWhy
	// Room is what Fit said.
	Room *NoRoom
	// Awaits are the workloads being evicted whose quota it was promised.
	Awaits []WorkloadID
	// Head is the workload in front, for BehindHead.
	Head WorkloadID
	// Detail is a phrase that the caller gave, or that describes the
	// configuration at fault.
	Detail string
}

// Holder is a queue that uses a resource which somebody else waits for.
type Holder struct {
	Queue QueueName
	// Used is all its usage, Borrowed the part above its nominal quota.
	Used, Borrowed Amount
}

// FlavorWhy is why one flavor was not taken.
type FlavorWhy struct {
	PodSet string
	Flavor FlavorName
	// Phrase is the reason.
	Phrase string
}
