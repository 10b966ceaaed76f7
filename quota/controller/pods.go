package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/pricing"
)

// podReconciler makes the Workloads of pods that have a queue of their own, and
// opens the gates of all pods whose workload is admitted.
type podReconciler struct {
	*sources
	live   client.Reader
	nudges nudges
}

// gateRetry is how soon a gate that found no room is tried again; what frees
// room also brings its pod here at once.
const gateRetry = 5 * time.Second

// untouched has what is read be the cache's own, which nobody may change: whoever
// writes makes a copy.
const untouched = client.UnsafeDisableDeepCopy

// errWait says that something which is on its way is not there yet.
var errWait = errors.New("not yet")

// Reconcile implements reconcile.Reconciler.
func (r *podReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pod := &corev1.Pod{}
	if err := r.client.Get(ctx, req.NamespacedName, pod, untouched); err != nil {
		r.nudges.forget(req.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	m := r.member(pod)
	if m.workload == "" {
		r.astray(pod)
		return ctrl.Result{}, ignoreConflict(r.unqueued(ctx, pod))
	}
	if r.outOfReach(pod) {
		return ctrl.Result{}, r.refuse(ctx, pod, m)
	}
	wl, err := r.workloadOf(ctx, pod, m)
	if err != nil {
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
			return ctrl.Result{RequeueAfter: recheck}, nil
		}
		return ctrl.Result{}, err
	}
	if wl == nil {
		r.astray(pod)
		return ctrl.Result{}, nil
	}
	if ended(pod) {
		if m.owner == pod.UID {
			return ctrl.Result{}, r.end(ctx, wl, pod.Status.Phase == corev1.PodSucceeded, pod.Status.Message)
		}
		return ctrl.Result{}, nil
	}
	r.heed(wl)
	a, run := admitted(wl)
	if !run {
		if wl.Status.Admission != nil && conditionTrue(wl, kueue.WorkloadEvicted) {
			left, err := r.leave(ctx, pod, wl, m)
			if apierrors.IsConflict(err) {
				return ctrl.Result{RequeueAfter: 50 * time.Millisecond}, nil
			}
			return ctrl.Result{RequeueAfter: left}, err
		}
		return ctrl.Result{}, nil
	}
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName != "" {
		r.nudges.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	var over *overError
	var beyond *beyondError
	var outgrown *outgrownError
	switch err := r.open(ctx, pod, wl, a, m.set); {
	case errors.Is(err, errWait):
		return ctrl.Result{RequeueAfter: recheck}, nil
	case errors.As(err, &outgrown):
		if err := r.outgrew(ctx, wl, outgrown); err != nil {
			return ctrl.Result{RequeueAfter: recheck}, client.IgnoreNotFound(ignoreConflict(err))
		}
		return ctrl.Result{}, nil
	case errors.As(err, &beyond):
		r.tellBeyond(pod, wl, beyond)
		return ctrl.Result{RequeueAfter: recheck}, nil
	case errors.As(err, new(*noRoomError)), errors.As(err, new(*pricing.Impossible)):
		// All cards that could have served it may be gone, and come back.
		r.metrics.noRoom.WithLabelValues(string(a.ClusterQueue)).Inc()
		r.waitsForRoom(req.NamespacedName)
		r.event(pod, corev1.EventTypeWarning, "NoRoom", "Admitted by ClusterQueue %s, but the gate stays closed: %s", a.ClusterQueue, err)
		return ctrl.Result{RequeueAfter: gateRetry}, nil
	case errors.As(err, &over):
		kind, reason, after := corev1.EventTypeWarning, "TicketRefused", gateRetry
		if over.passing {
			kind, reason, after = corev1.EventTypeNormal, "TicketWaits", recheck
		} else {
			r.metrics.refusals.Inc()
		}
		r.event(pod, kind, reason, "No ticket: %s", over)
		return ctrl.Result{RequeueAfter: after}, nil
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: 50 * time.Millisecond}, nil
	case err != nil:
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	again, err := r.wake(ctx, pod)
	return ctrl.Result{RequeueAfter: again}, err
}

// outOfReach says that a pod is on a node and lacks devices that it asks for.
// The scheduler, which would allocate them, is done with it: it named its node
// itself. Quota for it would be held for nothing.
func (r *podReconciler) outOfReach(pod *corev1.Pod) bool {
	if pod.Spec.NodeName == "" || ended(pod) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	needs := 0
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.ResourceClaimTemplateName != nil {
			needs++
		}
	}
	if extended, _ := pricing.ExtendedResources(&pod.Spec, r.fit.Classes()); extended != nil {
		needs++
	}
	for _, claim := range r.core.claimsOf[pod.UID] {
		if claim.Status.Allocation != nil {
			needs--
		}
	}
	return needs > 0
}

// refuse tells a pod that is out of reach why it gets nothing, and withdraws its
// request. What was admitted already is left: allocations are watched apart from
// pods, and one may be on its way here.
func (r *podReconciler) refuse(ctx context.Context, pod *corev1.Pod, m membership) error {
	if m.kind != nil || m.group != nil {
		return nil
	}
	wl := r.own(ctx, pod)
	if wl != nil && wl.Status.Admission != nil {
		return nil
	}
	r.event(pod, corev1.EventTypeWarning, "NotAdmitted", "Not admitted: the pod was put on node %s without the devices that it asks for, and only the scheduler allocates them; make it again without spec.nodeName", pod.Spec.NodeName)
	if wl == nil {
		return nil
	}
	uid, version := wl.UID, wl.ResourceVersion
	return client.IgnoreNotFound(ignoreConflict(r.client.Delete(ctx, wl, client.Preconditions{UID: &uid, ResourceVersion: &version})))
}

// workloadOf returns the Workload that a pod really belongs to, nil if none.
func (r *podReconciler) workloadOf(ctx context.Context, pod *corev1.Pod, m membership) (*kueue.Workload, error) {
	if m.kind != nil {
		wl := &kueue.Workload{}
		if err := r.client.Get(ctx, nameOf(m.workload), wl); err != nil {
			// A job that no budget governs has none.
			return nil, client.IgnoreNotFound(err)
		}
		if o := metav1.GetControllerOf(wl); o == nil || o.UID != m.owner {
			return nil, nil
		}
		return wl, nil
	}
	if m.group != nil {
		wl := r.existing(ctx, nameOf(m.workload))
		if wl == nil || !lists(wl, pod.UID) {
			return nil, nil
		}
		return wl, nil
	}
	if wl := r.own(ctx, pod); wl != nil && (wl.Status.Admission != nil || !HasGate(pod) || ended(pod)) {
		return wl, nil
	}
	if r.doubly(pod) {
		r.event(pod, corev1.EventTypeWarning, "NotGoverned", "Not admitted: %s", errDoubly)
		return nil, nil
	}
	// Gates, flavors and the node are what admission adds; the rest is the pod's.
	spec := *pod.Spec.DeepCopy()
	spec.SchedulingGates, spec.NodeName = nil, ""
	return r.workload(ctx, wanted{
		owner: pod, gvk: corev1.SchemeGroupVersion.WithKind("Pod"),
		queue: pod.Labels[r.queueLabel()],
		sets:  []kueue.PodSet{{Name: mainSet, Count: 1, Template: corev1.PodTemplateSpec{Spec: spec}}},
		class: pod.Spec.PriorityClassName, priority: pod.Spec.Priority,
	})
}

func (r *podReconciler) own(ctx context.Context, pod *corev1.Pod) *kueue.Workload {
	key := types.NamespacedName{Namespace: pod.Namespace, Name: workloadName("Pod", pod.Name, pod.UID)}
	if r.beside {
		// It is opened in place.
		return r.existing(ctx, key)
	}
	return r.existing(ctx, key, untouched)
}

// leave takes a pod of an evicted workload away: first its tickets, so that no
// new device is allocated, then the pod. Pods of jobs that can be suspended are
// deleted by their job.
//
// The result is how long to wait before that, as the workload has asked for
// notice.
func (r *podReconciler) leave(ctx context.Context, pod *corev1.Pod, wl *kueue.Workload, m membership) (time.Duration, error) {
	if err := r.revoke(ctx, pod); err != nil {
		return 0, err
	}
	r.placeLost(workloadID(wl.Namespace, wl.Name), pod.UID)
	if m.kind != nil && m.kind.CanSuspend() || pod.DeletionTimestamp != nil || HasGate(pod) {
		return 0, nil
	}
	if left, err := r.notice(ctx, wl); left > 0 || err != nil {
		return left, err
	}
	r.event(pod, corev1.EventTypeWarning, "Evicted", "Deleted: Workload %s is evicted", wl.Name)
	uid := pod.UID
	return 0, client.IgnoreNotFound(r.client.Delete(ctx, pod, client.Preconditions{UID: &uid}))
}

// noRoomError carries the reason that fit gives.
type noRoomError struct{ why fmt.Stringer }

func (e *noRoomError) Error() string { return e.why.String() }
