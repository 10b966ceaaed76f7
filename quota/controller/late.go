package controller

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/lifecycle"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// This file is about admissions that nobody who leads has decided on. A leader
// that was killed may have one on its way: the API server carries it out after the
// next leader has read what is held and has given the same quota to others. No
// version of the Workload need have changed in between, so its precondition
// holds.
//
// It cannot be kept from landing without a write for every Workload that waits,
// or for every admission. But it can be told: from the moment at which a leader
// has read everything, every admission in the API is one that it decided on. What
// is not is late. It is charged to nobody, has no place, and nothing is opened or
// started by it; it is taken back at once and the Workload waits in its queue.
// Where there is quota for it, it is admitted again like any other.

// late says whether a version of a Workload shows an admission that was not
// decided here. Something that is in use, or that the engine charges already, is
// not: a Workload that was made again shows what it held before.
func (c *core) late(w *work, o *kueue.Workload) bool {
	if !c.decides || w.foreign || o.Status.Admission == nil || conditionTrue(o, kueue.WorkloadEvicted) || conditionTrue(o, kueue.WorkloadFinished) {
		return false
	}
	if held, holding := c.engine.Holding(w.id); holding {
		return w.admit != nil && !sameAssignment(held, o.Status.Admission)
	}
	return !c.inUse(w.id)
}

// sameAssignment says whether the API shows what was decided.
func sameAssignment(decided engine.Assignment, a *kueue.Admission) bool {
	return equality.Semantic.DeepEqual(translate.Assignment(translate.Admission(decided)), translate.Assignment(a))
}

// tookLate takes in a version of a Workload with a late admission. What was
// decided for it here, if anything, cannot be written any more.
func (c *core) tookLate(w *work) {
	w.late = true
	if w.admit != nil {
		w.admit = nil
		c.engine.Apply(engine.AdmissionFailed{ID: w.id})
	}
	c.dirty[w.id] = struct{}{}
}

// counted says whether what a Workload shows is what the engine charges for it,
// so that something may be started by it. The caches may show it before the core
// has looked at it.
func (c *core) counted(wl *kueue.Workload) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := workloadID(wl.Namespace, wl.Name)
	held, holding := c.engine.Holding(id)
	if w := c.works[id]; !holding || w == nil || w.late || w.foreign || wl.Status.Admission == nil {
		return false
	}
	shown := translate.Assignment(wl.Status.Admission)
	if shown.Queue != held.Queue || len(shown.PodSets) != len(held.PodSets) {
		return false
	}
	for i := range shown.PodSets {
		// Counts and usage are lowered while it runs.
		if shown.PodSets[i].Name != held.PodSets[i].Name || !maps.Equal(shown.PodSets[i].Flavors, held.PodSets[i].Flavors) {
			return false
		}
	}
	return true
}

// withdraw takes a late admission back. It is written on the version that shows
// it, so it takes back nothing else.
func (r *workloads) withdraw(ctx context.Context, wl *kueue.Workload) error {
	wl = wl.DeepCopy()
	queue := wl.Status.Admission.ClusterQueue
	lifecycle.Withdraw(wl, r.now())
	if err := r.write(ctx, wl); err != nil {
		return err
	}
	r.event(wl, corev1.EventTypeWarning, "Withdrawn", "An admission by ClusterQueue "+string(queue)+" came late, from a controller that does not lead any more: it was taken back before anything was started by it")
	return nil
}

// strayTickets takes back what a leader that was killed may have written late as
// well: tickets of a Workload that holds nothing. Devices that are in use stay.
func (r *workloads) strayTickets(ctx context.Context, wl *kueue.Workload) error {
	return r.takeUnused(ctx, r.live, wl)
}
