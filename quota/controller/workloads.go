package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/lifecycle"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// recheck is how soon something that nothing announces is looked at again.
const recheck = time.Second

// workloads writes the engine's decisions to the status of Workloads, and
// releases quota when nothing is in use any more.
type workloads struct {
	*sources
	live    client.Reader
	ledger  *ledger
	reasons *reasons
}

// view is what the reconciler needs to know, taken under the lock.
type view struct {
	object *kueue.Workload
	admit  *engine.Admit
	evict  *engine.Evict
	// generation is that of the spec which was decided on.
	generation int64
	// lost is what the engine counts as held although the object shows nothing:
	// it was deleted by force and made again.
	lost  *engine.Assignment
	holds bool
	inUse bool
	known bool
	// ready says whether all its pods are, lost that the API has removed it.
	ready, removed bool
	// halted says that nothing may be admitted, foreign that quota was reserved for
	// it meanwhile.
	halted, foreign bool
	// late says that its admission was not decided here.
	late bool
	// stray says that it holds nothing and yet has tickets.
	stray bool
	// placed says that it has room, roomless why not, checked that its queue asks,
	// ended how its owner has.
	placed, checked bool
	roomless        string
	ended           *outcome
	// making says that room is being made for it, yields why it is to leave its own,
	// stalled that it could not begin, for which there is patience.
	making   bool
	yields   string
	stalled  stall
	patience time.Duration
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
	v.removed, v.late = w.lost, w.late
	v.placed, v.roomless, v.ended = w.placed, w.roomless, w.ended
	v.making, v.yields = len(w.awaits) > 0, w.yields
	if !v.inUse {
		// Otherwise it has begun, since it was looked at last.
		v.stalled, v.patience = w.stalled, r.rooms.patience
	}
	v.checked = w.object != nil && len(r.ourChecks(w.object)) > 0
	v.halted, v.foreign = r.halted != "", w.foreign
	v.ready = w.object != nil && r.podsReady(w.object)
	if held, ok := r.engine.Holding(id); ok && w.admit == nil && w.object != nil && w.object.Status.Admission == nil {
		v.lost = &held
	}
	v.stray = r.caughtUp && v.lost == nil && w.admit == nil && len(r.charges[id]) > 0
	return v
}

// Reconcile implements reconcile.Reconciler.
func (r *workloads) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	id := workloadID(req.Namespace, req.Name)
	v := r.view(id)
	if !v.known || v.object == nil {
		return ctrl.Result{}, nil
	}
	if v.removed {
		return r.missing(ctx, id, v)
	}
	result, err := r.look(ctx, id, v)
	if apierrors.IsNotFound(err) {
		// Its removal is on its way here.
		return ctrl.Result{RequeueAfter: recheck}, nil
	}
	return result, err
}

// look does what is due for a Workload. It looks at the version that the core
// knows, which belongs to all and may be newer than the one in the caches: who
// writes makes a copy, and what is written fails where another version has won.
func (r *workloads) look(ctx context.Context, id engine.WorkloadID, v view) (ctrl.Result, error) {
	wl := v.object
	if r.beside {
		return r.follow(ctx, wl.DeepCopy(), id, v)
	}
	switch reserved := wl.Status.Admission != nil; {
	case conditionTrue(wl, kueue.WorkloadFinished):
		return r.finish(ctx, wl, id, v)
	case reserved && v.late:
		return ctrl.Result{}, r.withdraw(ctx, wl)
	case reserved && conditionTrue(wl, kueue.WorkloadEvicted):
		return r.release(ctx, wl, id)
	case v.halted && (wl.DeletionTimestamp == nil || !reserved):
		return ctrl.Result{}, nil
	case reserved && v.foreign && wl.DeletionTimestamp == nil:
		return ctrl.Result{}, r.evict(ctx, wl, elsewhere)
	case reserved && v.evict != nil:
		return ctrl.Result{}, r.evict(ctx, wl, verdictOf(wl, v.evict))
	case reserved && wl.DeletionTimestamp != nil:
		return r.depart(ctx, wl, v)
	case reserved:
		if len(wl.OwnerReferences) > 0 && !controllerutil.ContainsFinalizer(wl, Finalizer) {
			wl = wl.DeepCopy()
			if err := r.protect(ctx, wl); err != nil {
				return ctrl.Result{}, err
			}
		}
		return r.tend(ctx, wl, v)
	case v.admit != nil && wl.Generation != v.generation:
		// The user changed the object meanwhile: what was decided is not what it
		// asks for now. The new spec is on its way here.
		r.failed(id, time.Time{})
		return ctrl.Result{}, nil
	case v.admit != nil:
		err := r.admit(ctx, wl, v.admit)
		if apierrors.IsConflict(err) && r.outdated(ctx, v) {
			r.failed(id, time.Time{})
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, err
	case v.lost != nil:
		return r.regain(ctx, wl, id, v)
	case wl.DeletionTimestamp != nil:
		return ctrl.Result{}, r.unprotect(ctx, wl)
	}
	if v.stray {
		if err := r.strayTickets(ctx, wl); err != nil {
			return ctrl.Result{}, err
		}
	}
	return r.wait(ctx, wl, id)
}

// regain does what is due for a Workload that shows no quota while the engine
// counts what it had: it gets back what is in use, and the rest is free.
func (r *workloads) regain(ctx context.Context, wl *kueue.Workload, id engine.WorkloadID, v view) (ctrl.Result, error) {
	switch {
	case v.inUse && wl.DeletionTimestamp == nil:
		return ctrl.Result{}, r.restore(ctx, wl, *v.lost)
	case v.holds:
		return ctrl.Result{RequeueAfter: recheck}, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.released(id)
	return ctrl.Result{}, nil
}

// outdated says that the caches show another spec than the one that was decided on,
// of which the core has not heard yet.
func (r *workloads) outdated(ctx context.Context, v view) bool {
	now := &kueue.Workload{}
	return r.client.Get(ctx, client.ObjectKeyFromObject(v.object), now) == nil && now.Generation != v.generation
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
		if w := r.works[id]; w != nil && w.lost && !r.holds(id) {
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
		_, held := r.engine.Holding(id)
		r.forget(id)
		if a := wl.Status.Admission; a != nil && held {
			r.metrics.finished.WithLabelValues(string(a.ClusterQueue)).Inc()
		}
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
	if !controllerutil.ContainsFinalizer(wl, Finalizer) {
		return nil
	}
	wl = wl.DeepCopy()
	controllerutil.RemoveFinalizer(wl, Finalizer)
	return client.IgnoreNotFound(r.client.Update(ctx, wl, client.FieldOwner(FieldOwner)))
}

// admit reserves quota in the Workload's status. No gate is opened and no
// ticket is written before this is in the API.
func (r *workloads) admit(ctx context.Context, wl *kueue.Workload, d *engine.Admit) error {
	wl = copyStatus(wl)
	wl.Finalizers = slices.Clone(wl.Finalizers)
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
	r.mu.Lock()
	r.madeAgain(wl, held)
	r.mu.Unlock()
	return r.write(ctx, wl)
}

// madeAgain puts what is held into the status of a Workload.
func (c *core) madeAgain(wl *kueue.Workload, held engine.Assignment) {
	wl.Status.Admission = translate.Admission(held)
	c.complete(wl, wl.Status.Admission)
	for _, c := range []metav1.Condition{
		{Type: kueue.WorkloadQuotaReserved, Reason: "QuotaReserved"},
		{Type: kueue.WorkloadAdmitted, Reason: "Admitted"},
	} {
		c.Status, c.Message = metav1.ConditionTrue, "Made again: what it admitted is still in use"
		meta.SetStatusCondition(&wl.Status.Conditions, c)
	}
	if w := c.works[workloadID(wl.Namespace, wl.Name)]; w != nil && w.object != nil {
		if before := meta.FindStatusCondition(w.object.Status.Conditions, Corrected); before != nil {
			meta.SetStatusCondition(&wl.Status.Conditions, *before)
		}
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

// grant writes the reservation, and with it the admission if no check is
// awaited.
func (r *workloads) grant(ctx context.Context, wl *kueue.Workload, d *engine.Admit) error {
	a := translate.Admission(d.Assignment)
	r.mu.Lock()
	checks := r.checksOf(a)
	r.complete(wl, a)
	r.mu.Unlock()
	// That it came back may not be written yet.
	lifecycle.Waiting(wl, r.now())
	lifecycle.Grant(wl, a, checks, r.now())
	foundRoom(wl, r.now())
	if err := r.write(ctx, wl); err != nil {
		return err
	}
	r.metrics.reserved(wl, r.now())
	message := fmt.Sprintf("Quota reserved in ClusterQueue %s: %s", d.Assignment.Queue, describeUsage(d.Assignment))
	if len(checks) > 0 {
		r.event(wl, corev1.EventTypeNormal, "QuotaReserved", message+"; admission checks are awaited")
		return nil
	}
	r.metrics.admitted(wl, r.now())
	r.event(wl, corev1.EventTypeNormal, "Admitted", message)
	return nil
}

// release frees an evicted workload's quota once nothing is in use.
func (r *workloads) release(ctx context.Context, wl *kueue.Workload, id engine.WorkloadID) (ctrl.Result, error) {
	if free, result, err := r.cleared(ctx, wl, id); !free || err != nil {
		return result, err
	}
	wl = wl.DeepCopy()
	lifecycle.Release(wl, r.now())
	meta.RemoveStatusCondition(&wl.Status.Conditions, Corrected)
	// The engine learns of it from the result, like every other replica.
	return ctrl.Result{}, r.write(ctx, wl)
}

// cleared says whether nothing is in use by an evicted workload. What is in use is
// taken away when its time is over, and looked at again.
func (r *workloads) cleared(ctx context.Context, wl *kueue.Workload, id engine.WorkloadID) (bool, ctrl.Result, error) {
	r.mu.Lock()
	busy := r.holds(id)
	r.mu.Unlock()
	if busy {
		if left := lifecycle.StopsAt(wl, r.rules).Sub(r.now()); left > 0 {
			return false, ctrl.Result{RequeueAfter: left}, nil
		}
		return false, ctrl.Result{RequeueAfter: recheck}, r.clearOut(ctx, r.live, wl)
	}
	if charged, err := r.ledger.charged(ctx, wl); err != nil || charged {
		return false, ctrl.Result{RequeueAfter: recheck}, err
	}
	return true, ctrl.Result{}, nil
}

// write updates the status against the version that the decision was made on,
// and takes the result in at once.
func (r *workloads) write(ctx context.Context, wl *kueue.Workload) error {
	ctx, done := whole(ctx)
	defer done()
	if err := r.client.Status().Update(ctx, wl, client.FieldOwner(FieldOwner)); err != nil {
		return err
	}
	r.saw(copyStatus(wl))
	return nil
}

// copyStatus copies a Workload of which only the status will be changed. All else
// belongs to the original as well.
func copyStatus(wl *kueue.Workload) *kueue.Workload {
	out := *wl
	wl.Status.DeepCopyInto(&out.Status)
	return &out
}

// writeTime bounds a write that is seen through.
const writeTime = 20 * time.Second

// whole is the context of a write that gives quota or a ticket. A replica that is
// told to stop finishes those before it lets another lead: one that it gave up
// could still be carried out after the other has read what is held.
func whole(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), writeTime)
}

// event is put on the object that the user made, or on the Workload if it
// belongs to none.
func (r *workloads) event(wl *kueue.Workload, kind, reason, message string) {
	const longest = 1000
	if len(message) > longest {
		message = message[:longest]
	}
	if len(wl.OwnerReferences) == 0 {
		r.recorder.Eventf(wl, nil, kind, reason, "Quota", "%s", message)
	}
	const most = 4 // of a group's pods
	for i := range wl.OwnerReferences[:min(most, len(wl.OwnerReferences))] {
		o := &wl.OwnerReferences[i]
		regarding := &corev1.ObjectReference{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: wl.Namespace, Name: o.Name, UID: o.UID}
		r.recorder.Eventf(regarding, wl, kind, reason, "Quota", "%s", message)
	}
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
