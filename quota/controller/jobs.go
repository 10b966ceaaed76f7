package controller

import (
	"context"
	"errors"

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

// jobReconciler holds jobs of all kinds back until they are admitted, starts them
// with what their flavors need, and stops and restores them when they are
// evicted.
type jobReconciler struct {
	*sources
	// live reads past the caches: what is written must be whole.
	live client.Reader
}

// errNoQueue says why a job is held that no queue governs.
var errNoQueue = errors.New("it names no queue, and here every job has to: label it with the name of one")

// Reconcile implements reconcile.TypedReconciler.
func (r *jobReconciler) Reconcile(ctx context.Context, req jobRequest) (ctrl.Result, error) {
	// What is remembered answers for the many jobs that no budget governs.
	fact, nested, held := r.jobNamed(req)
	if fact == nil || nested {
		return ctrl.Result{}, nil
	}
	key := types.NamespacedName{Namespace: req.name.Namespace, Name: workloadName(req.kind.Kind, req.name.Name, fact.uid)}
	old := r.existing(ctx, key)
	if fact.queue == "" && old == nil && !held && !fact.ours {
		return ctrl.Result{}, nil
	}
	job := &unstructured.Unstructured{}
	job.SetGroupVersionKind(req.kind.GroupVersionKind())
	if err := r.live.Get(ctx, req.name, job); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if job.GetDeletionTimestamp() != nil || job.GetUID() != fact.uid {
		return ctrl.Result{}, nil
	}
	if old == nil && r.doubly(job) {
		r.event(job, corev1.EventTypeWarning, "NotGoverned", "Not admitted: %s", errDoubly)
		return ctrl.Result{}, nil
	}
	if old == nil {
		if coming, err := r.parentComing(ctx, job); coming || err != nil {
			return ctrl.Result{RequeueAfter: recheck}, err
		}
	}
	queue := r.queueOf(req.kind, job)
	if queue == "" && req.kind.Made != nil {
		queue = fact.queue
	}
	if old != nil && old.Status.Admission != nil {
		// Whatever the job looks like by now, it stays in the queue that admitted
		// it, and it can be stopped.
		queue = string(old.Spec.QueueName)
		done, _, _ := req.kind.Done(job)
		if _, run := admitted(old); !run && !done && req.kind.CanSuspend() && !req.kind.Suspended(job) {
			if left, err := r.notice(ctx, old); left > 0 || err != nil {
				return ctrl.Result{RequeueAfter: left}, err
			}
			return ctrl.Result{}, ignoreConflict(r.stop(ctx, req.kind, job, old))
		}
	}
	if queue == "" {
		return r.withdraw(ctx, req.kind, job, old, held)
	}
	if err := req.kind.Check(job); err != nil {
		return ctrl.Result{}, r.hold(ctx, req.kind, job, old, err)
	}
	wl, err := r.workloadOf(ctx, req.kind, job, queue)
	if errors.Is(err, jobs.ErrNotMade) {
		if old == nil {
			return ctrl.Result{}, r.unmade(ctx, req.kind, job)
		}
		wl, err = old, nil
	}
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return ctrl.Result{RequeueAfter: recheck}, nil
	case apierrors.IsInvalid(err):
		return ctrl.Result{}, r.hold(ctx, req.kind, job, old, err)
	case err != nil:
		return ctrl.Result{}, err
	}
	if done, ok, message := req.kind.Done(job); done {
		return ctrl.Result{}, r.end(ctx, wl, ok, message)
	}
	return r.follow(ctx, req.kind, job, wl)
}

// follow makes a job do what its Workload says.
func (r *jobReconciler) follow(ctx context.Context, kind *jobs.Kind, job *unstructured.Unstructured, wl *kueue.Workload) (ctrl.Result, error) {
	a, run := admitted(wl)
	if !kind.CanSuspend() {
		// Its pods wait at their gates, and go on eviction.
		if run {
			r.noteLast(wl, kind, job)
		}
		return ctrl.Result{}, nil
	}
	r.heed(wl)
	suspended := kind.Suspended(job)
	switch {
	case run && suspended && (r.isHalted() || !r.counted(wl)):
		return ctrl.Result{RequeueAfter: recheck}, nil
	case run && suspended:
		sets, err := r.setsOf(ctx, kind, job)
		if errors.Is(err, jobs.ErrNotMade) {
			return ctrl.Result{}, nil
		}
		if err != nil {
			return ctrl.Result{}, err
		}
		why := r.outgrows(sets, wl, a)
		if why != "" {
			return ctrl.Result{}, ignoreConflict(r.again(ctx, job, wl, why))
		}
		// What was known of it may be of an earlier run.
		if err := r.lookForLast(ctx, kind, job, wl); err != nil {
			return ctrl.Result{}, err
		}
		return ctrl.Result{}, ignoreConflict(r.start(ctx, kind, job, sets, wl, a))
	case !run && !suspended:
		if left, err := r.notice(ctx, wl); left > 0 || err != nil {
			return ctrl.Result{RequeueAfter: left}, err
		}
		return ctrl.Result{}, ignoreConflict(r.stop(ctx, kind, job, wl))
	case !run && jobs.Started(job):
		return r.restore(ctx, kind, job)
	case run:
		if err := r.lookForLast(ctx, kind, job, wl); err != nil {
			return ctrl.Result{}, err
		}
		again, err := r.reclaim(ctx, kind, job, wl)
		if again {
			return ctrl.Result{RequeueAfter: recheck}, err
		}
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, nil
}

// restore makes the templates of a suspended job what they were before it was
// started.
func (r *jobReconciler) restore(ctx context.Context, kind *jobs.Kind, job *unstructured.Unstructured) (ctrl.Result, error) {
	// The API lets templates be changed once no pod is left.
	if kind.ActivePods(job) > 0 {
		return ctrl.Result{RequeueAfter: recheck}, nil
	}
	if kind.Nested {
		if wait, err := r.restoreNested(ctx, kind, job); err != nil || wait {
			return ctrl.Result{RequeueAfter: recheck}, ignoreConflict(err)
		}
	}
	if err := kind.Restore(job); err != nil {
		return ctrl.Result{}, err
	}
	err := r.client.Update(ctx, job, client.FieldOwner(FieldOwner))
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		return ctrl.Result{RequeueAfter: recheck}, nil
	}
	return ctrl.Result{}, ignoreConflict(err)
}

// restoreNested takes what an admission added out of the jobs that were made of a
// job. Their controller merges templates: what another flavor does not overwrite
// would stay in them. wait says that some of them have pods yet.
func (r *jobReconciler) restoreNested(ctx context.Context, kind *jobs.Kind, job *unstructured.Unstructured) (wait bool, err error) {
	added, err := kind.Added(job)
	if err != nil {
		return false, err
	}
	for _, child := range r.nestedIn(kind, job.GetUID()) {
		below := &unstructured.Unstructured{}
		below.SetGroupVersionKind(child.kind.GroupVersionKind())
		if err := r.live.Get(ctx, child.name, below); err != nil {
			if apierrors.IsNotFound(err) {
				continue
			}
			return false, err
		}
		if o := metav1.GetControllerOf(below); o == nil || o.UID != child.parent || below.GetDeletionTimestamp() != nil {
			continue
		}
		if done, _, _ := child.kind.Done(below); done {
			continue
		}
		changed, err := child.kind.TakeOut(below, PodSetLabel, added)
		if err != nil {
			return false, err
		}
		if !changed {
			continue
		}
		if !child.kind.Suspended(below) || child.kind.ActivePods(below) > 0 {
			return true, nil
		}
		if err := r.client.Update(ctx, below, client.FieldOwner(FieldOwner)); apierrors.IsInvalid(err) {
			return true, nil
		} else if err != nil {
			return false, err
		}
	}
	return false, nil
}

// existing is a Workload by name, nil if there is none.
func (s *sources) existing(ctx context.Context, key types.NamespacedName, how ...client.GetOption) *kueue.Workload {
	wl := &kueue.Workload{}
	if s.client.Get(ctx, key, wl, how...) != nil {
		return nil
	}
	return wl
}

// queueOf is the LocalQueue of a job: by a label on it, or on the first of its
// pod templates that has one.
func (c *core) queueOf(k *jobs.Kind, job *unstructured.Unstructured) string {
	label := c.queueLabel()
	if q := job.GetLabels()[label]; q != "" {
		return q
	}
	return k.TemplateLabel(job, label)
}

func (r *jobReconciler) workloadOf(ctx context.Context, kind *jobs.Kind, job *unstructured.Unstructured, queue string) (*kueue.Workload, error) {
	sets, err := r.setsOf(ctx, kind, job)
	if err != nil {
		return nil, err
	}
	w := wanted{owner: job, gvk: kind.GroupVersionKind(), queue: queue, class: kind.Priority(job)}
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

// hold keeps a job from running that no Workload can be made of, and says why.
func (r *jobReconciler) hold(ctx context.Context, kind *jobs.Kind, job *unstructured.Unstructured, wl *kueue.Workload, why error) error {
	r.event(job, corev1.EventTypeWarning, "NotGoverned", "Not admitted: %s", why)
	if _, run := admitted(wl); run || !kind.CanSuspend() || kind.Suspended(job) {
		return nil
	}
	return ignoreConflict(r.suspend(ctx, kind, job))
}

// suspend holds a job back.
func (r *jobReconciler) suspend(ctx context.Context, kind *jobs.Kind, job *unstructured.Unstructured) error {
	if err := kind.Hold(job); err != nil {
		return err
	}
	return r.client.Update(ctx, job, client.FieldOwner(FieldOwner))
}

// outgrows says why the job may not start on what was admitted: its templates,
// or the claim templates that they name, ask for more now. "" if it may.
func (r *jobReconciler) outgrows(sets []jobs.PodSet, wl *kueue.Workload, a *kueue.Admission) string {
	for i := range sets {
		if why := r.outgrown(wl, a, sets[i].Name, sets[i].Count, &sets[i].Template); why != "" {
			return why
		}
	}
	return ""
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
func (r *jobReconciler) start(ctx context.Context, kind *jobs.Kind, job *unstructured.Unstructured, sets []jobs.PodSet, wl *kueue.Workload, a *kueue.Admission) error {
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
	err := error(nil)
	if kind.Made != nil {
		err = kind.StartMade(job, sets, add, r.now())
	} else {
		err = kind.Start(job, add)
	}
	if err != nil {
		return err
	}
	if err := r.client.Update(ctx, job, client.FieldOwner(FieldOwner)); err != nil {
		return err
	}
	r.event(job, corev1.EventTypeNormal, "Started", "Started: admitted by ClusterQueue %s", a.ClusterQueue)
	return nil
}

// stop suspends the job: its controller deletes the pods.
func (r *jobReconciler) stop(ctx context.Context, kind *jobs.Kind, job *unstructured.Unstructured, wl *kueue.Workload) error {
	if err := r.suspend(ctx, kind, job); err != nil {
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
