package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// beyondError says that a pod is one more than its set was admitted with: its job
// was made larger while it runs. It waits until one of the others is gone.
type beyondError struct {
	set   string
	count int32
	// first says that the pod's user was not told yet, job the same of its job's.
	first, job bool
}

func (e *beyondError) Error() string {
	return fmt.Sprintf("%d pods of set %q were admitted and are there", e.count, e.set)
}

// beyond is the error of a pod that is not among those that were admitted; nil if
// it only has to wait for one that is on its way out.
func (c *core) beyond(id engine.WorkloadID, wl *kueue.Workload, set string, pod types.UID, count int32) *beyondError {
	stay := int32(0)
	for _, p := range c.podsOf[id] {
		if p.uid != pod && !p.ended && !p.deleting && !p.gated && p.set == set && p.belongs(wl) {
			stay++
		}
	}
	w := c.works[id]
	if w == nil || stay < count {
		return nil
	}
	if w.beyond == nil {
		w.beyond = map[types.UID]struct{}{}
	}
	_, told := w.beyond[pod]
	e := &beyondError{set: set, count: count, first: !told, job: !w.beyondTold}
	w.beyond[pod], w.beyondTold = struct{}{}, true
	return e
}

// surplus is the *beyondError of a pod that is one more than was admitted, nil for
// others: before its tickets are found to be too many, which says less.
func (r *podReconciler) surplus(pod *corev1.Pod, wl *kueue.Workload, a *kueue.Admission, set string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := workloadID(wl.Namespace, wl.Name)
	given := engineSet(r.kept(r.works[id], a), set)
	if given == nil || r.pods[pod.UID] == nil || r.entitled(id, wl, set, pod.UID, given.Count) {
		return nil
	}
	if e := r.beyond(id, wl, set, pod.UID, given.Count); e != nil {
		return e
	}
	return nil
}

// tellBeyond tells the pod, and once its job, of pods that were not admitted.
func (r *podReconciler) tellBeyond(pod *corev1.Pod, wl *kueue.Workload, e *beyondError) {
	if e.first {
		r.event(pod, corev1.EventTypeWarning, "NotAdmitted", "The gate stays closed: %s; it waits until one of them is gone", e)
	}
	if !e.job {
		return
	}
	for i := range wl.OwnerReferences[:min(1, len(wl.OwnerReferences))] {
		o := &wl.OwnerReferences[i]
		regarding := &corev1.ObjectReference{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: wl.Namespace, Name: o.Name, UID: o.UID}
		r.recorder.Eventf(regarding, wl, corev1.EventTypeWarning, "NotAdmitted", "Quota",
			"There are more pods than were admitted: %s; the others wait until one of them is gone. Suspend the job, or make it again, to have it admitted as it is now", e)
	}
}
