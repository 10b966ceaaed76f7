package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/lifecycle"
)

// This file writes what package lifecycle says of Workloads: of those that hold
// quota, and of those that wait.

// tend looks after a Workload that holds quota and is not evicted.
func (r *workloads) tend(ctx context.Context, wl *kueue.Workload, v view) (ctrl.Result, error) {
	now := r.now()
	if target := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadDeactivationTarget); target != nil && target.Status == metav1.ConditionTrue {
		// Noted before, and cut short.
		return ctrl.Result{}, r.deactivate(ctx, wl)
	}
	if !conditionTrue(wl, kueue.WorkloadAdmitted) {
		return ctrl.Result{}, r.check(ctx, wl.DeepCopy(), now)
	}
	changed := false
	if r.rules.PodsReady != nil {
		wl = wl.DeepCopy()
		changed = lifecycle.Ready(wl, v.ready, now)
	}
	verdict, again := lifecycle.Due(wl, r.rules, now)
	if verdict != nil {
		return ctrl.Result{}, r.condemn(ctx, wl, *verdict)
	}
	if changed {
		if err := r.write(ctx, wl); err != nil {
			return ctrl.Result{}, err
		}
		if v.ready {
			r.metrics.ready(wl, now)
		}
	}
	return ctrl.Result{RequeueAfter: again}, r.correct(ctx, wl)
}

// check looks at the admission checks of a Workload that holds quota and is not
// admitted yet.
func (r *workloads) check(ctx context.Context, wl *kueue.Workload, now time.Time) error {
	r.mu.Lock()
	checks := r.checksOf(wl.Status.Admission)
	r.mu.Unlock()
	changed := lifecycle.Expect(wl, checks, now)
	admitted, verdict := lifecycle.Checked(wl, now)
	if verdict != nil {
		return r.condemn(ctx, wl, *verdict)
	}
	if !admitted && !changed {
		return nil
	}
	if err := r.write(ctx, wl); err != nil {
		return err
	}
	if admitted {
		r.metrics.admitted(wl, now)
		r.event(wl, corev1.EventTypeNormal, "Admitted", "All admission checks are ready: admitted by ClusterQueue "+string(wl.Status.Admission.ClusterQueue))
	}
	return nil
}

// condemn carries a verdict out.
func (r *workloads) condemn(ctx context.Context, wl *kueue.Workload, v lifecycle.Verdict) error {
	if !v.Deactivate {
		return r.evict(ctx, wl, v)
	}
	wl = wl.DeepCopy()
	lifecycle.Deactivate(wl, v, r.now())
	if err := r.write(ctx, wl); err != nil {
		return err
	}
	return r.deactivate(ctx, wl)
}

// deactivate takes a Workload out of its queue for the reason noted in its
// status. What it holds is taken back as for every Workload that is not active.
func (r *workloads) deactivate(ctx context.Context, wl *kueue.Workload) error {
	if !ptr.Deref(wl.Spec.Active, true) {
		return nil
	}
	wl = wl.DeepCopy()
	wl.Spec.Active = ptr.To(false)
	if err := r.client.Update(ctx, wl, client.FieldOwner(FieldOwner)); err != nil {
		return err
	}
	r.saw(wl.DeepCopy())
	if c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadDeactivationTarget); c != nil {
		r.event(wl, corev1.EventTypeWarning, c.Reason, c.Message+"; "+afterwards(wl))
	}
	return nil
}

// afterwards says what becomes of a workload that is deactivated.
func afterwards(wl *kueue.Workload) string {
	owner := metav1.GetControllerOf(wl)
	pods := owner == nil && len(wl.OwnerReferences) > 0 || owner != nil && owner.Kind == "Pod"
	if pods && conditionTrue(wl, kueue.WorkloadAdmitted) {
		return "its pods are stopped and deleted, and nothing makes them again: to run it once more, make new ones"
	}
	return "it is deactivated, and waits until spec.active of Workload " + wl.Name + " is true again"
}

// verdictOf is the engine's decision to evict.
func verdictOf(wl *kueue.Workload, d *engine.Evict) lifecycle.Verdict {
	v := lifecycle.Verdict{Reason: string(d.Reason), Message: d.Message}
	switch d.Reason {
	case engine.InClusterQueue, engine.InCohortReclamation, engine.InCohortFairSharing, engine.InCohortReclaimWhileBorrowing:
		v.Preempted, v.Reason = v.Reason, kueue.WorkloadEvictedByPreemption
	case engine.Deactivated:
		if c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadDeactivationTarget); c != nil {
			v.Message = c.Message
		}
	}
	return v
}

// evict begins an eviction: pods are told to go by the object that owns them.
func (r *workloads) evict(ctx context.Context, wl *kueue.Workload, v lifecycle.Verdict) error {
	wl = wl.DeepCopy()
	queue := string(wl.Status.Admission.ClusterQueue)
	cause := ""
	if c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadDeactivationTarget); c != nil {
		cause = c.Reason
	}
	lifecycle.Evict(wl, v, r.now())
	if err := r.write(ctx, wl); err != nil {
		return err
	}
	id := workloadID(wl.Namespace, wl.Name)
	r.mu.Lock()
	r.engine.Apply(engine.Evicting{ID: id})
	if w := r.works[id]; w != nil {
		w.evict = nil
	}
	r.wake()
	r.mu.Unlock()
	r.metrics.evicted(queue, v, cause)
	reason := v.Reason
	if v.Preempted == "" {
		reason = "EvictedDueTo" + reason
	}
	r.event(wl, corev1.EventTypeWarning, reason, v.Message)
	return nil
}

// wait keeps the status of a Workload that holds nothing up to date.
func (r *workloads) wait(ctx context.Context, wl *kueue.Workload, id engine.WorkloadID) (ctrl.Result, error) {
	now := r.now()
	wl = copyStatus(wl)
	changed, again := lifecycle.Waiting(wl, now)
	if changed {
		return ctrl.Result{}, r.write(ctx, wl)
	}
	if c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadDeactivationTarget); c != nil && c.Status == metav1.ConditionTrue {
		// Its eviction was over before it could be taken out of its queue.
		return ctrl.Result{}, r.deactivate(ctx, wl)
	}
	r.reasons.soon(id)
	return ctrl.Result{RequeueAfter: again}, nil
}

// checksOf names the admission checks that a queue wants for what was given.
func (c *core) checksOf(a *kueue.Admission) []kueue.AdmissionCheckReference {
	q := c.queues[string(a.ClusterQueue)]
	if q == nil || q.Spec.AdmissionChecksStrategy == nil {
		return nil
	}
	flavors := map[kueue.ResourceFlavorReference]bool{}
	for i := range a.PodSetAssignments {
		for _, f := range a.PodSetAssignments[i].Flavors {
			flavors[f] = true
		}
	}
	var names []kueue.AdmissionCheckReference
	for _, rule := range q.Spec.AdmissionChecksStrategy.AdmissionChecks {
		wanted := len(rule.OnFlavors) == 0
		for _, f := range rule.OnFlavors {
			wanted = wanted || flavors[f]
		}
		if wanted {
			names = append(names, rule.Name)
		}
	}
	return names
}

// podsReady says whether all pods that were admitted are ready, or have done
// their work.
func (c *core) podsReady(wl *kueue.Workload) bool {
	if wl.Status.Admission == nil {
		return false
	}
	if owner := metav1.GetControllerOf(wl); owner != nil && owner.Kind == "ResourceClaim" {
		claim := c.claims[types.NamespacedName{Namespace: wl.Namespace, Name: owner.Name}]
		return claim != nil && claim.UID == owner.UID && claim.Status.Allocation != nil
	}
	ready := map[string]int32{}
	for _, p := range c.podsOf[workloadID(wl.Namespace, wl.Name)] {
		if p.ready && p.belongs(wl) {
			ready[p.set]++
		}
	}
	for i := range wl.Status.Admission.PodSetAssignments {
		given := &wl.Status.Admission.PodSetAssignments[i]
		if ready[string(given.Name)] < ptr.Deref(given.Count, 0) {
			return false
		}
	}
	return true
}

// isReady says whether a pod counts as ready.
func isReady(p *corev1.Pod) bool {
	if p.Status.Phase == corev1.PodSucceeded {
		return true
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// notice gives the pods of a preempted workload the time that it asked for, and
// says how much of it is left; 0 is that they may be stopped.
func (s *sources) notice(ctx context.Context, wl *kueue.Workload) (time.Duration, error) {
	at := lifecycle.StopsAt(wl, s.rules)
	left := at.Sub(s.now())
	if left <= 0 {
		return 0, nil
	}
	for uid, name := range s.untold(wl) {
		// The next pod of that name is not the one that is meant.
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, uid, lifecycle.PreemptedAnnotation, at.UTC().Format(time.RFC3339))
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
		err := s.client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldOwner))
		switch {
		case err == nil:
			s.saw(pod)
		case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsInvalid(err):
			return left, err
		}
	}
	return left, nil
}

// untold lists the running pods of a workload that do not know yet.
func (c *core) untold(wl *kueue.Workload) map[types.UID]types.NamespacedName {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := map[types.UID]types.NamespacedName{}
	for _, p := range c.podsOf[workloadID(wl.Namespace, wl.Name)] {
		if !p.gated && !p.ended && !p.deleting && !p.told && p.belongs(wl) {
			names[p.uid] = p.name
		}
	}
	return names
}
