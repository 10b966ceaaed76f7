package controller

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/hami"
	"github.com/sluice-gpu/sluice/quota/jobs"
)

// jobReconciler holds jobs of one kind back until they are admitted, starts them
// with what their flavors need, and stops and restores them when they are
// evicted.
type jobReconciler struct {
	*sources
	kind *jobs.Kind
	// live reads past the caches: what is written must be whole.
	live client.Reader
}

// Reconcile implements reconcile.Reconciler.
func (r *jobReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	// The cache answers for the many jobs that no budget governs.
	seen := &batchv1.Job{}
	if err := r.client.Get(ctx, req.NamespacedName, seen); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if seen.Labels[QueueLabel] == "" && seen.Spec.Template.Labels[QueueLabel] == "" {
		return ctrl.Result{}, nil
	}
	job := &unstructured.Unstructured{}
	job.SetGroupVersionKind(r.kind.GroupVersionKind)
	if err := r.live.Get(ctx, req.NamespacedName, job); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	queue := queueOf(r.kind, job)
	if job.GetDeletionTimestamp() != nil {
		return ctrl.Result{}, nil
	}
	if old := r.existing(ctx, job); old != nil && old.Status.Admission != nil {
		// Whatever the job looks like by now, it stays in the queue that admitted
		// it, and it can be stopped.
		queue = string(old.Spec.QueueName)
		done, _, _ := r.kind.Done(job)
		if _, run := admitted(old); !run && !done && !r.kind.Suspended(job) {
			return ctrl.Result{}, ignoreConflict(r.stop(ctx, job, old))
		}
	}
	if queue == "" {
		return ctrl.Result{}, nil
	}
	wl, err := r.workloadOf(ctx, job, queue)
	if err != nil {
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			return ctrl.Result{RequeueAfter: recheck}, nil
		}
		return ctrl.Result{}, err
	}
	if done, ok, message := r.kind.Done(job); done {
		return ctrl.Result{}, r.end(ctx, wl, ok, message)
	}
	a, run := admitted(wl)
	suspended := r.kind.Suspended(job)
	switch {
	case run && suspended:
		why, err := r.outgrows(job, wl, a)
		if err != nil {
			return ctrl.Result{}, err
		}
		if why != "" {
			return ctrl.Result{}, ignoreConflict(r.again(ctx, job, wl, why))
		}
		return ctrl.Result{}, ignoreConflict(r.start(ctx, job, wl, a))
	case !run && !suspended:
		return ctrl.Result{}, ignoreConflict(r.stop(ctx, job, wl))
	case !run && jobs.Started(job):
		// The API lets templates be changed once no pod is left.
		if r.kind.ActivePods(job) > 0 {
			return ctrl.Result{RequeueAfter: recheck}, nil
		}
		if err := r.kind.Restore(job); err != nil {
			return ctrl.Result{}, err
		}
		if err := r.client.Update(ctx, job, client.FieldOwner(FieldOwner)); apierrors.IsInvalid(err) {
			return ctrl.Result{RequeueAfter: recheck}, nil
		} else if err != nil {
			return ctrl.Result{}, ignoreConflict(err)
		}
	}
	return ctrl.Result{}, nil
}

// existing is the job's Workload, nil if there is none.
func (r *jobReconciler) existing(ctx context.Context, job *unstructured.Unstructured) *kueue.Workload {
	wl := &kueue.Workload{}
	key := types.NamespacedName{Namespace: job.GetNamespace(), Name: workloadName(r.kind.Kind, job.GetName(), job.GetUID())}
	if r.client.Get(ctx, key, wl) != nil {
		return nil
	}
	return wl
}

// queueOf is the LocalQueue of a job: by a label on it, or on its first pod
// template.
func queueOf(k *jobs.Kind, job *unstructured.Unstructured) string {
	if q := job.GetLabels()[QueueLabel]; q != "" {
		return q
	}
	sets, err := k.PodSets(job)
	if err != nil || len(sets) == 0 {
		return ""
	}
	return sets[0].Template.Labels[QueueLabel]
}

func (r *jobReconciler) workloadOf(ctx context.Context, job *unstructured.Unstructured, queue string) (*kueue.Workload, error) {
	sets, err := r.kind.PodSets(job)
	if err != nil {
		return nil, err
	}
	w := wanted{owner: job, gvk: r.kind.GroupVersionKind, queue: queue}
	for _, s := range sets {
		// The template's labels and most of its annotations play no part in a decision.
		template := corev1.PodTemplateSpec{Spec: s.Template.Spec}
		template.Annotations = hami.Annotations(s.Template.Annotations)
		w.sets = append(w.sets, kueue.PodSet{Name: kueue.PodSetReference(s.Name), Count: s.Count, Template: template})
		if w.class == "" {
			w.class = s.Template.Spec.PriorityClassName
		}
	}
	return r.workload(ctx, w)
}

// outgrows says why the job may not start on what was admitted: its templates,
// or the claim templates that they name, ask for more now. "" if it may.
func (r *jobReconciler) outgrows(job *unstructured.Unstructured, wl *kueue.Workload, a *kueue.Admission) (string, error) {
	sets, err := r.kind.PodSets(job)
	if err != nil {
		return "", err
	}
	for i := range sets {
		if why := r.outgrown(wl, a, sets[i].Name, sets[i].Count, &sets[i].Template); why != "" {
			return why, nil
		}
	}
	return "", nil
}

// again gives an admission back that the job has outgrown before it started: it
// is priced anew and waits in its queue.
func (r *jobReconciler) again(ctx context.Context, job *unstructured.Unstructured, wl *kueue.Workload, why string) error {
	wl = wl.DeepCopy()
	message := "The job was changed after it was admitted: " + why
	for kind, status := range map[string]metav1.ConditionStatus{kueue.WorkloadEvicted: metav1.ConditionTrue, kueue.WorkloadAdmitted: metav1.ConditionFalse} {
		meta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: "Outgrown", Message: message, ObservedGeneration: wl.Generation})
	}
	if err := r.client.Status().Update(ctx, wl, client.FieldOwner(FieldOwner)); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.saw(wl.DeepCopy())
	r.event(job, corev1.EventTypeWarning, "Outgrown", "Not started: %s; it waits for another admission", why)
	return nil
}

// start lets the job go: in one update its templates get the flavors' labels
// and tolerations, the gate and the name of the Workload, so that its pods are
// born gated even while no webhook runs.
func (r *jobReconciler) start(ctx context.Context, job *unstructured.Unstructured, wl *kueue.Workload, a *kueue.Admission) error {
	add := map[string]jobs.Injection{}
	for i := range a.PodSetAssignments {
		set := &a.PodSetAssignments[i]
		labels, tolerations, err := r.flavorPlacement(set)
		if err != nil {
			return err
		}
		add[string(set.Name)] = jobs.Injection{
			Labels:       map[string]string{WorkloadLabel: wl.Name, PodSetLabel: string(set.Name)},
			NodeSelector: labels,
			Tolerations:  tolerations,
			Gates:        []corev1.PodSchedulingGate{{Name: Gate}},
		}
	}
	if err := r.kind.Start(job, add); err != nil {
		return err
	}
	if err := r.client.Update(ctx, job, client.FieldOwner(FieldOwner)); err != nil {
		return err
	}
	r.event(job, corev1.EventTypeNormal, "Started", "Started: admitted by ClusterQueue %s", a.ClusterQueue)
	return nil
}

// stop suspends the job: its controller deletes the pods.
func (r *jobReconciler) stop(ctx context.Context, job *unstructured.Unstructured, wl *kueue.Workload) error {
	if err := r.kind.SetSuspended(job, true); err != nil {
		return err
	}
	if err := r.client.Update(ctx, job, client.FieldOwner(FieldOwner)); err != nil {
		return err
	}
	r.event(job, corev1.EventTypeNormal, "Suspended", "Suspended: Workload %s is not admitted", wl.Name)
	return nil
}

// ignoreConflict drops the error of a write that lost to another: the other's
// event brings the object here again.
func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}
