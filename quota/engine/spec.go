package engine

// Quota is what a node of the tree has of one resource of one flavor.
type Quota struct {
	// Nominal is the node's own. For a cohort it is in addition to what its
	// members have.
	Nominal Amount
	// Borrow bounds how much more than the node's whole subtree quota may be
	// used by it; nil is no bound. Only meaningful under a cohort.
	Borrow *Amount
	// Lend bounds how much of the node's subtree quota others may use; the rest
	// is guaranteed to it. nil is no bound. Only meaningful under a cohort.
	Lend *Amount
}

// FlavorQuotas is one flavor of a resource group.
type FlavorQuotas struct {
	Flavor FlavorName
	// Quotas has one entry for each resource of the group, in its order.
	Quotas []Quota
}

// ResourceGroup ties resources together: a pod set gets one flavor for all of
// them. Flavors are tried in their order.
type ResourceGroup struct {
	Resources []Resource
	Flavors   []FlavorQuotas
}

// Strategy is how a queue treats a head that does not fit.
type Strategy string

const (
	// BestEffortFIFO lets those behind go on. It is the default ("").
	BestEffortFIFO Strategy = "BestEffortFIFO"
	// StrictFIFO keeps the order: nobody passes the head.
	StrictFIFO Strategy = "StrictFIFO"
)

// StopPolicy stops a ClusterQueue or LocalQueue.
type StopPolicy string

const (
	// StopNone lets it run. It is the default ("").
	StopNone StopPolicy = "None"
	// Hold admits nothing new and takes back reservations that are not yet
	// admitted; what is admitted runs on.
	Hold StopPolicy = "Hold"
	// HoldAndDrain also evicts what is admitted.
	HoldAndDrain StopPolicy = "HoldAndDrain"
)

// PreemptionPolicy says whom a workload may evict.
type PreemptionPolicy string

const (
	// Never evicts nobody. It is the default ("") everywhere.
	Never PreemptionPolicy = "Never"
	// LowerPriority evicts those of lower priority.
	LowerPriority PreemptionPolicy = "LowerPriority"
	// LowerOrNewerEqualPriority also evicts those of equal priority that were
	// queued later. Only within a queue.
	LowerOrNewerEqualPriority PreemptionPolicy = "LowerOrNewerEqualPriority"
	// AnyPriority evicts regardless of priority ("Any" in the API). Only for
	// reclaiming within a cohort.
	AnyPriority PreemptionPolicy = "Any"
)

// Preemption is whom the workloads of a queue may evict.
type Preemption struct {
	// WithinQueue rules victims of the same queue (withinClusterQueue).
	WithinQueue PreemptionPolicy
	// Reclaim rules victims in queues that borrow (reclaimWithinCohort).
	Reclaim PreemptionPolicy
	// BorrowWithin is Never or LowerPriority: whether a workload may evict
	// others' workloads although it will itself borrow (borrowWithinCohort).
	// Classical preemption only.
	BorrowWithin PreemptionPolicy
	// BorrowThreshold bounds the priority of victims of BorrowWithin: victims
	// must be at or below it. nil is no bound beyond being lower.
	BorrowThreshold *int32
}

// FungibilityPolicy says whether to go on to the next flavor.
type FungibilityPolicy string

const (
	// MayStopSearch takes this flavor.
	MayStopSearch FungibilityPolicy = "MayStopSearch"
	// TryNextFlavor looks whether a later one is better.
	TryNextFlavor FungibilityPolicy = "TryNextFlavor"
)

// FungibilityPreference ranks flavors that need borrowing against flavors that
// need preemption.
type FungibilityPreference string

const (
	// BorrowingOverPreemption compares first by who must be evicted, then by how
	// far is borrowed. It is the default ("").
	BorrowingOverPreemption FungibilityPreference = "BorrowingOverPreemption"
	// PreemptionOverBorrowing compares first by how far is borrowed. It has
	// effect only where both policies are TryNextFlavor.
	PreemptionOverBorrowing FungibilityPreference = "PreemptionOverBorrowing"
)

// Fungibility is how a queue chooses between flavors (flavorFungibility).
type Fungibility struct {
	// WhenCanBorrow defaults to MayStopSearch.
	WhenCanBorrow FungibilityPolicy
	// WhenCanPreempt defaults to TryNextFlavor.
	WhenCanPreempt FungibilityPolicy
	Preference     FungibilityPreference
}

// ClusterQueue is a leaf of the tree: a budget with a queue before it.
type ClusterQueue struct {
	Name QueueName
	// Cohort is its parent, "" for none.
	Cohort CohortName
	// Groups are its quotas. A resource and a flavor are in one group at most;
	// otherwise, or if an amount is negative, the queue is inactive.
	Groups []ResourceGroup
	// Strategy is queueingStrategy.
	Strategy Strategy
	// Namespaces are those that it serves (namespaceSelector).
	Namespaces Selector
	// Stop is stopPolicy.
	Stop StopPolicy
	// Fungibility is how it chooses between flavors.
	Fungibility Fungibility
	// Preemption is whom its workloads may evict.
	Preemption Preemption
	// Weight is its weight in fair sharing; nil is 1, 0 means that it may be
	// evicted from first whenever it borrows.
	Weight *Weight
	// UsageBased orders its queue by the decayed usage of LocalQueues
	// (admissionScope UsageBasedAdmissionFairSharing).
	UsageBased bool
	// Inactive, if not empty, is the caller's reason why the queue must admit
	// nothing: an unknown admission check, a feature that is not supported.
	Inactive string
}

// Cohort is an inner node of the tree.
type Cohort struct {
	Name CohortName
	// Parent is "" for a root.
	Parent CohortName
	// Groups are quotas in addition to the members'.
	Groups []ResourceGroup
	// Weight is as in ClusterQueue.
	Weight *Weight
}

// LocalQueue is the door of a namespace to a ClusterQueue.
type LocalQueue struct {
	Name LocalQueueName
	// Queue is the ClusterQueue that it leads to.
	Queue QueueName
	// Stop is stopPolicy.
	Stop StopPolicy
	// Weight divides its usage in admission fair sharing; nil is 1, and 0 or
	// less puts it behind all others.
	Weight *Weight
}

// FlavorSpec is a ResourceFlavor as far as the engine needs it. Whether a pod
// set can run on it is told by the pod set ([PodSet.Unfit]).
type FlavorSpec struct {
	Name FlavorName
	// Elastic flavors grow on demand (an autoscaler): the budget alone admits,
	// and room on cards is not awaited.
	Elastic bool
}
