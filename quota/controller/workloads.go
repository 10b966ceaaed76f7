package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// recheck is how soon something that nothing announces is looked at again.
const recheck = time.Second

// workloads writes the engine's decisions to the status of Workloads, and
// releases quota when nothing is in use any more.
type workloads struct {
	*core
	client   client.Client
	live     client.Reader
	ledger   *ledger
	reasons  *reasons
	recorder events.EventRecorder
	metrics  *metrics
}

// view is what the reconciler needs to know, taken under the lock.
type view struct {
	object *kueue.Workload
	admit  *engine.Admit
	evict  *engine.Evict
	// generation is that of the spec which was decided on.
	generation int64
	why        engine.Why
	// lost is what the engine counts as held although the object shows nothing:
	// it was deleted by force and made again.
	lost  *engine.Assignment
	holds bool
	inUse bool
	known bool
}

func (r *workloads) view(id engine.WorkloadID) view {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.works[id]
	if w == nil {
		return view{}
	}
	v := view{known: true, object: w.object, admit: w.admit, evict: w.evict, holds: r.holds(id), generation: w.decided}
	v.inUse = r.inUse(id)
	if held, ok := r.engine.Holding(id); ok && w.admit == nil && w.object != nil && w.object.Status.Admission == nil {
		v.lost = &held
	}
	if w.told {
		v.why = r.engine.Why(id)
	}
	return v
}

// Reconcile implements reconcile.Reconciler.
func (r *workloads) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	id := workloadID(req.Namespace, req.Name)
	v := r.view(id)
	if !v.known || v.object == nil {
		return ctrl.Result{}, nil
	}
	wl := &kueue.Workload{}
	if err := r.client.Get(ctx, req.NamespacedName, wl); apierrors.IsNotFound(err) {
		return r.missing(ctx, id, v)
	} else if err != nil {
		return ctrl.Result{}, err
	}
	if version(wl) < version(v.object) {
		wl = v.object.DeepCopy()
	}

	switch reserved := wl.Status.Admission != nil; {
	case conditionTrue(wl, kueue.WorkloadFinished):
		return r.finish(ctx, wl, id, v)
	case reserved && conditionTrue(wl, kueue.WorkloadEvicted):
		return r.release(ctx, wl, id)
	case reserved && v.evict != nil:
		return ctrl.Result{}, r.evict(ctx, wl, v.evict)
	case reserved && wl.DeletionTimestamp != nil:
		return r.depart(ctx, wl, v)
	case reserved:
		if err := r.protect(ctx, wl); err != nil {
			return ctrl.Result{}, err
		}
		return ctrl.Result{}, r.correct(ctx, wl)
	case v.admit != nil && wl.Generation != v.generation:
		// The user changed the object meanwhile: what was decided is not what it
		// asks for now. The new spec is on its way here.
		r.failed(id, time.Time{})
		return ctrl.Result{}, nil
	case v.admit != nil:
		return ctrl.Result{}, r.admit(ctx, wl, v.admit)
	case v.lost != nil && v.inUse && wl.DeletionTimestamp == nil:
		return ctrl.Result{}, r.restore(ctx, wl, *v.lost)
	case v.lost != nil && v.holds:
		return ctrl.Result{RequeueAfter: recheck}, nil
	case v.lost != nil:
		r.mu.Lock()
		r.released(id)
		r.mu.Unlock()
		return ctrl.Result{}, nil
	case wl.DeletionTimestamp != nil:
		return ctrl.Result{}, r.unprotect(ctx, wl)
	}
	r.reasons.soon(id)
	return ctrl.Result{}, nil
}

// missing handles a Workload that is gone while the engine still counts it.
func (r *workloads) missing(ctx context.Context, id engine.WorkloadID, v view) (ctrl.Result, error) {
	if !v.holds {
		if charged, err := r.ledger.charged(ctx, v.object); err != nil || charged {
			return ctrl.Result{RequeueAfter: recheck}, err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		// Look again: a fact may have come in between.
		if w := r.works[id]; w != nil && w.object == v.object && !r.holds(id) {
			r.forget(id)
		}
		return ctrl.Result{}, nil
	}
	// The object that it belongs to makes it again, with the quota that is held.
	return ctrl.Result{RequeueAfter: recheck}, nil
}

func (r *workloads) finish(ctx context.Context, wl *kueue.Workload, id engine.WorkloadID, v view) (ctrl.Result, error) {
	if v.holds {
		return ctrl.Result{RequeueAfter: recheck}, nil
	}
	if charged, err := r.ledger.charged(ctx, wl); err != nil || charged {
		return ctrl.Result{RequeueAfter: recheck}, err
	}
	if err := r.unprotect(ctx, wl); err != nil {
		return ctrl.Result{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.works[id]; w != nil && !r.holds(id) {
		r.forget(id)
	}
	return ctrl.Result{}, nil
}

// depart lets a deleted Workload go once nothing is in use.
func (r *workloads) depart(ctx context.Context, wl *kueue.Workload, v view) (ctrl.Result, error) {
	if v.holds {
		return ctrl.Result{RequeueAfter: recheck}, nil
	}
	if charged, err := r.ledger.charged(ctx, wl); err != nil || charged {
		return ctrl.Result{RequeueAfter: recheck}, err
	}
	return ctrl.Result{}, r.unprotect(ctx, wl)
}

// protect puts the finalizer on a Workload that does not have it. Those that are
// made here are born with it, so this is for others'. One that belongs to no
// object has no pods, and nothing is in use that its end could hide. wl is the
// result.
func (r *workloads) protect(ctx context.Context, wl *kueue.Workload) error {
	if len(wl.OwnerReferences) == 0 || !controllerutil.AddFinalizer(wl, Finalizer) {
		return nil
	}
	return r.client.Update(ctx, wl, client.FieldOwner(FieldOwner))
}

// unprotect takes the finalizer off a Workload by which nothing is held.
func (r *workloads) unprotect(ctx context.Context, wl *kueue.Workload) error {
	wl = wl.DeepCopy()
	if !controllerutil.RemoveFinalizer(wl, Finalizer) {
		return nil
	}
	return client.IgnoreNotFound(r.client.Update(ctx, wl, client.FieldOwner(FieldOwner)))
}

// admit reserves quota in the Workload's status. No gate is opened and no
// ticket is written before this is in the API.
func (r *workloads) admit(ctx context.Context, wl *kueue.Workload, d *engine.Admit) error {
	wl = wl.DeepCopy()
	// First of all: there is no moment at which quota is held and the object can
	// be gone.
	err := r.protect(ctx, wl)
	if err == nil {
		err = r.grant(ctx, wl, d)
	}
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		r.failed(d.ID, r.now().Add(10*time.Second))
		return client.IgnoreNotFound(err)
	}
	return err
}

// restore gives a Workload that was made again what is still in use by it. The
// object that it belongs to does so at once; this is for where that was cut short.
func (r *workloads) restore(ctx context.Context, wl *kueue.Workload, held engine.Assignment) error {
	wl = wl.DeepCopy()
	if err := r.protect(ctx, wl); err != nil {
		return err
	}
	madeAgain(wl, held)
	return r.write(ctx, wl)
}

// madeAgain puts what is held into the status of a Workload.
func madeAgain(wl *kueue.Workload, held engine.Assignment) {
	wl.Status.Admission = translate.Admission(held)
	for _, c := range []metav1.Condition{
		{Type: kueue.WorkloadQuotaReserved, Reason: "QuotaReserved"},
		{Type: kueue.WorkloadAdmitted, Reason: "Admitted"},
	} {
		c.Status, c.Message = metav1.ConditionTrue, "Made again: what it admitted is still in use"
		meta.SetStatusCondition(&wl.Status.Conditions, c)
	}
}

// failed takes an admission back that is not in the API.
func (c *core) failed(id engine.WorkloadID, notBefore time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.works[id]
	if w == nil || w.admit == nil {
		return
	}
	w.admit = nil
	c.engine.Apply(engine.AdmissionFailed{ID: id, NotBefore: notBefore})
	c.dirty[id] = struct{}{}
	c.wake()
}

// grant writes the reservation.
func (r *workloads) grant(ctx context.Context, wl *kueue.Workload, d *engine.Admit) error {
	wl.Status.Admission = translate.Admission(d.Assignment)
	message := fmt.Sprintf("Quota reserved in ClusterQueue %s", d.Assignment.Queue)
	r.set(wl, kueue.WorkloadQuotaReserved, metav1.ConditionTrue, "QuotaReserved", message)
	r.set(wl, kueue.WorkloadAdmitted, metav1.ConditionTrue, "Admitted", "The workload is admitted")
	for _, kind := range []string{kueue.WorkloadEvicted, kueue.WorkloadPreempted} {
		if meta.FindStatusCondition(wl.Status.Conditions, kind) != nil {
			r.set(wl, kind, metav1.ConditionFalse, "QuotaReserved", "Admitted again")
		}
	}
	if err := r.write(ctx, wl); err != nil {
		return err
	}
	r.metrics.admitted(string(d.Assignment.Queue), r.now().Sub(wl.CreationTimestamp.Time))
	r.event(wl, corev1.EventTypeNormal, "Admitted", message+": "+describeUsage(d.Assignment))
	return nil
}

// evict begins an eviction: pods are told to go by the object that owns them.
func (r *workloads) evict(ctx context.Context, wl *kueue.Workload, d *engine.Evict) error {
	wl = wl.DeepCopy()
	reason := string(d.Reason)
	preempted := false
	switch d.Reason {
	case engine.InClusterQueue, engine.InCohortReclamation, engine.InCohortFairSharing, engine.InCohortReclaimWhileBorrowing:
		reason, preempted = kueue.WorkloadEvictedByPreemption, true
		r.set(wl, kueue.WorkloadPreempted, metav1.ConditionTrue, string(d.Reason), d.Message)
	}
	r.set(wl, kueue.WorkloadEvicted, metav1.ConditionTrue, reason, d.Message)
	r.set(wl, kueue.WorkloadAdmitted, metav1.ConditionFalse, "Evicted", "The workload is evicted: "+d.Message)
	if err := r.write(ctx, wl); err != nil {
		return err
	}
	r.mu.Lock()
	r.engine.Apply(engine.Evicting{ID: d.Victim})
	if w := r.works[d.Victim]; w != nil {
		w.evict = nil
	}
	r.wake()
	r.mu.Unlock()
	r.metrics.evicted(string(wl.Status.Admission.ClusterQueue), reason)
	if preempted {
		reason = "Preempted"
	}
	r.event(wl, corev1.EventTypeWarning, reason, d.Message)
	return nil
}

// release frees an evicted workload's quota once nothing is in use.
func (r *workloads) release(ctx context.Context, wl *kueue.Workload, id engine.WorkloadID) (ctrl.Result, error) {
	r.mu.Lock()
	busy := r.holds(id)
	r.mu.Unlock()
	if busy {
		s := &sources{core: r.core, client: r.client, recorder: r.recorder, metrics: r.metrics}
		return ctrl.Result{RequeueAfter: recheck}, s.clearOut(ctx, r.live, wl)
	}
	if charged, err := r.ledger.charged(ctx, wl); err != nil || charged {
		return ctrl.Result{RequeueAfter: recheck}, err
	}
	wl = wl.DeepCopy()
	wl.Status.Admission = nil
	r.set(wl, kueue.WorkloadQuotaReserved, metav1.ConditionFalse, kueue.WorkloadQuotaReservedReasonPendingEvaluation, "Evicted; waits again")
	r.set(wl, kueue.WorkloadAdmitted, metav1.ConditionFalse, kueue.WorkloadAdmittedReasonNoReservation, "No quota is reserved")
	r.set(wl, kueue.WorkloadEvicted, metav1.ConditionFalse, "Released", "All that it used is free")
	r.set(wl, kueue.WorkloadRequeued, metav1.ConditionTrue, "Released", "It waits in its queue again")
	// The engine learns of it from the result, like every other replica.
	return ctrl.Result{}, r.write(ctx, wl)
}

// write updates the status against the version that the decision was made on,
// and takes the result in at once.
func (r *workloads) write(ctx context.Context, wl *kueue.Workload) error {
	if err := r.client.Status().Update(ctx, wl, client.FieldOwner(FieldOwner)); err != nil {
		return err
	}
	r.saw(wl.DeepCopy())
	return nil
}

func (r *workloads) set(wl *kueue.Workload, kind string, status metav1.ConditionStatus, reason, message string) {
	const longest = 32 * 1024
	if len(message) > longest {
		message = message[:longest]
	}
	meta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: wl.Generation,
	})
}

// event is put on the object that the user made, or on the Workload if it
// belongs to none.
func (r *workloads) event(wl *kueue.Workload, kind, reason, message string) {
	const longest = 1000
	if len(message) > longest {
		message = message[:longest]
	}
	var regarding runtime.Object = wl
	if o := metav1.GetControllerOf(wl); o != nil {
		regarding = &corev1.ObjectReference{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: wl.Namespace, Name: o.Name, UID: o.UID}
	}
	r.recorder.Eventf(regarding, wl, kind, reason, "Quota", "%s", message)
}

// describeUsage is what a workload was given, for people.
func describeUsage(a engine.Assignment) string {
	text := ""
	for _, s := range a.PodSets {
		for _, r := range translate.Resources(s.Usage) {
			if text != "" {
				text += ", "
			}
			text += fmt.Sprintf("%s %s of flavor %s", engine.FormatAmount(r, s.Usage[r]), r, s.Flavors[r])
		}
	}
	if text == "" {
		return "nothing is charged"
	}
	return text
}
