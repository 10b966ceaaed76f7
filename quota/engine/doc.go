// Package engine decides which workloads may run: it holds the budgets of
// ClusterQueues and Cohorts as a tree of quotas, the workloads that wait in
// queues, and the workloads that hold quota, and says whom to admit, whom to
// evict and why everybody else waits.
//
// It is a library in the manner of a consensus core. Facts go in as events
// ([Engine.Apply]), decisions come out ([Engine.Decide]). It has no clock (time
// comes in as a [Tick]), does no I/O, starts no goroutine, draws no random
// number, and never lets the order of a Go map reach a result: the same events
// give the same decisions, byte for byte. It knows nothing of Kubernetes; a
// translator at the edge turns objects into events. It is not safe for
// concurrent use: its one caller serializes.
//
// # How to drive it
//
//	e := engine.New()
//	e.Apply(engine.QueueChanged{Queue: ...})
//	e.Apply(engine.LocalQueueChanged{...})
//	e.Apply(engine.WorkloadChanged{Workload: ...})
//	for _, d := range e.Decide(fit) {
//		switch d := d.(type) {
//		case engine.Admit: // write it; then Apply(Admitted) or Apply(AdmissionFailed)
//		case engine.Evict: // begin it; Apply(Evicting) when seen, Apply(Released) when nothing is held
//		case engine.Wait:  // tell the user
//		}
//	}
//
// What Decide returns is assumed at once: an admitted workload holds its quota
// from that moment, so Decide may be called again before the first batch is
// written. The API confirms it with [Admitted] or the caller takes it back with
// [AdmissionFailed]. A victim of [Evict] keeps its quota until [Released]: its
// devices are not free while it terminates. Meanwhile it counts as in flight,
// and what it will free is promised to the workload it was evicted for, so no
// two preemptors spend one victim.
//
// After a restart the caller lists its objects and applies them in any order;
// the engine is then in the state in which the old one was.
//
// The meaning of every field is that of the Kueue API, kueue.x-k8s.io/v1beta2,
// unless its comment says otherwise.
package engine
