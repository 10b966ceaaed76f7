package engine

import "time"

// Event is a fact for [Engine.Apply]. Facts may come in any order and may be
// repeated: a workload before its queue, an admission before its workload, a
// cohort before its parent. A Changed event replaces what was known before.
type Event interface{ isEvent() }

// QueueChanged creates or changes a ClusterQueue. A lower quota evicts nobody.
type QueueChanged struct{ Queue ClusterQueue }

// QueueRemoved takes a ClusterQueue away. Its workloads wait for it to come
// back; what holds quota goes on holding it.
type QueueRemoved struct{ Name QueueName }

// CohortChanged creates or changes a Cohort. While parents form a cycle, every
// queue below it is inactive.
type CohortChanged struct{ Cohort Cohort }

// CohortRemoved makes a Cohort implicit again.
type CohortRemoved struct{ Name CohortName }

// FlavorChanged creates or changes a ResourceFlavor. A queue that names a
// flavor that does not exist is inactive.
type FlavorChanged struct{ Flavor FlavorSpec }

// FlavorRemoved takes a ResourceFlavor away.
type FlavorRemoved struct{ Name FlavorName }

// LocalQueueChanged creates or changes a LocalQueue.
type LocalQueueChanged struct{ LocalQueue LocalQueue }

// LocalQueueRemoved takes a LocalQueue away. Its workloads wait.
type LocalQueueRemoved struct{ Name LocalQueueName }

// NamespaceChanged tells a namespace's labels; an unknown namespace has none.
type NamespaceChanged struct {
	Name   string
	Labels map[string]string
}

// NamespaceRemoved forgets a namespace's labels.
type NamespaceRemoved struct{ Name string }

// WorkloadChanged creates or changes a workload that is not finished. Whether
// it holds quota is told by [Admitted] and [Released] alone; a change to what it
// asks for takes effect when it next waits.
type WorkloadChanged struct{ Workload Workload }

// WorkloadRemoved forgets a workload with its place in the queue and its quota.
// Apply it for a finished or deleted workload once nothing is held by it; while
// pods still hold devices, apply [Evicting] instead.
type WorkloadRemoved struct{ ID WorkloadID }

// Admitted says that the API shows a quota reservation. It confirms an [Admit],
// or tells one from before a restart. Applied again it replaces the charge:
// pods that are done (reclaimablePods) and prices corrected after allocation
// lower it so.
type Admitted struct {
	ID WorkloadID
	// Assignment is what is charged. Its Queue need not exist, or be the one
	// that the workload would be sent to today.
	Assignment Assignment
	// At is when quota was reserved. Among equals the latest is evicted first.
	At time.Time
	// Reserved says that admission checks are still awaited: quota is held, but
	// stopPolicy Hold takes it back.
	Reserved bool
	// Evicting says that the eviction has begun already, as [Evicting] does; for
	// callers that rebuild from a list.
	Evicting bool
}

// AdmissionFailed takes back an [Admit] that could not be written. The workload
// waits again, with NotBefore as a back-off if it is set.
type AdmissionFailed struct {
	ID        WorkloadID
	NotBefore time.Time
}

// Evicting says that the API shows an eviction of a workload that holds quota,
// whoever asked for it. The quota stays charged, but is expected to be free
// soon: others wait for it instead of evicting more.
type Evicting struct{ ID WorkloadID }

// EvictionFailed takes back an [Evict] that could not be written. The victim
// counts as running again.
type EvictionFailed struct{ ID WorkloadID }

// Released says that a workload holds no device any more: its quota is free
// and it waits again, if it is not Inactive, Held or Refused.
type Released struct{ ID WorkloadID }

// RoomChanged says that cards may have room where there was none: pods ended,
// nodes or slices came or changed. Workloads that wait for room in one of the
// flavors are tried again; no flavors means all.
type RoomChanged struct{ Flavors []FlavorName }

// LocalUsageRecalled tells the usage of a LocalQueue that was remembered at a
// time before a restart, as [Engine.LocalUsage] gave it.
type LocalUsageRecalled struct {
	Name     LocalQueueName
	Consumed float64
	At       time.Time
}

// Tick tells the time. It never goes back: an earlier time is ignored. Only
// back-offs, reservation of holes and admission fair sharing depend on it;
// [Engine.NextTick] says when the next one is due.
type Tick struct{ Now time.Time }

func (QueueChanged) isEvent()       {}
func (QueueRemoved) isEvent()       {}
func (CohortChanged) isEvent()      {}
func (CohortRemoved) isEvent()      {}
func (FlavorChanged) isEvent()      {}
func (FlavorRemoved) isEvent()      {}
func (LocalQueueChanged) isEvent()  {}
func (LocalQueueRemoved) isEvent()  {}
func (NamespaceChanged) isEvent()   {}
func (NamespaceRemoved) isEvent()   {}
func (WorkloadChanged) isEvent()    {}
func (WorkloadRemoved) isEvent()    {}
func (Admitted) isEvent()           {}
func (AdmissionFailed) isEvent()    {}
func (Evicting) isEvent()           {}
func (EvictionFailed) isEvent()     {}
func (Released) isEvent()           {}
func (RoomChanged) isEvent()        {}
func (LocalUsageRecalled) isEvent() {}
func (Tick) isEvent()               {}
