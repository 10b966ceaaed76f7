package engine

import "time"

// Workload is what asks for quota: a job, a pod, a group of pods, or a shared
// claim.
type Workload struct {
	ID WorkloadID
	// LocalQueue it was sent to; its Namespace is the workload's own.
	LocalQueue LocalQueueName
	// Priority is the effective one: higher goes first.
	Priority int32
	// QueuedAt orders equals: creation, or a later eviction where the
	// configuration says so. Earlier goes first.
	QueuedAt time.Time
	// PodSets is what it asks for: all of it, or nothing (a gang), but for
	// MinCount.
	PodSets []PodSet
	// RoomKey stands for whatever [Fit] looks at beyond PodSets: selectors of
	// claims, node affinity, tolerations. When one workload finds no room, others
	// of the same queue with equal priority, PodSets and RoomKey are not tried
	// until room changes.
	RoomKey string

	// Inactive workloads (spec.active false) are not admitted, and evicted if
	// they hold quota.
	Inactive bool
	// Hold, if not empty, keeps it out of the queue; it is the reason to show,
	// such as an admission gate.
	Hold string
	// Refused, if not empty, says why it can never be admitted as it is: a price
	// that cannot be found, a claim that no card can serve. It holds no place in
	// the queue until a WorkloadChanged takes the reason back.
	Refused string
	// NotBefore is the end of a back-off; the zero time is none.
	NotBefore time.Time
	// RoomSince is since when it has waited for room, where that began before a
	// restart; the zero time is none. It counts when the workload is new or has
	// changed (see [HoleReserveAfter]).
	RoomSince time.Time
	// PreemptionGated workloads may be admitted but may not evict.
	PreemptionGated bool
}

// PodSet is a number of like pods.
type PodSet struct {
	Name string
	// Count is how many pods there are.
	Count int32
	// MinCount, if not 0, lets the workload be admitted with fewer pods of this
	// set. At most one set of a workload has it.
	MinCount int32
	// Requests is what one pod asks for, in every dimension.
	Requests Amounts
	// Once is what the set asks for however many pods it has: a claim that they
	// share.
	Once Amounts
	// ByFlavor overrides single entries of Requests where the price depends on
	// the flavor: a whole card of 80Gi costs more memory than one of 24Gi.
	ByFlavor map[FlavorName]Amounts
	// Unfit names the flavors on which the pods cannot run, with the reason as a
	// phrase: `taint nvidia.com/gpu is not tolerated`, `node label
	// gpu-type=a100 is not selected`. Flavors not named can be used.
	Unfit map[FlavorName]string
}

// Assignment is where a workload's quota comes from.
type Assignment struct {
	// Queue is charged.
	Queue QueueName
	// PodSets are in the order of the workload's.
	PodSets []PodSetAssignment
	// Borrow is how far up the tree the assignment borrows: 0 is within the
	// queue's own quota, otherwise the height of the smallest subtree whose
	// quota holds it.
	Borrow int
}

// PodSetAssignment is the part of one pod set.
type PodSetAssignment struct {
	Name string
	// Count is how many pods are admitted: less than asked in partial
	// admission.
	Count int32
	// Flavors is the flavor of each resource.
	Flavors map[Resource]FlavorName
	// Usage is what the whole set is charged.
	Usage Amounts
}
