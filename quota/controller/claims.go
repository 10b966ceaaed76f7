package controller

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// claimReconciler governs claims that were made by name. Such a claim is a
// workload of its own once a pod waits for it, charged once however many pods
// share it: to the queue that its label names, else to that of the first pod.
type claimReconciler struct {
	*sources
	live client.Reader
}

// podsByClaim indexes pods by the names of the claims that they refer to.
const podsByClaim = "spec.resourceClaims.resourceClaimName"

func claimNames(o client.Object) []string {
	var names []string
	if pod, ok := o.(*corev1.Pod); ok {
		for _, ref := range pod.Spec.ResourceClaims {
			if ref.ResourceClaimName != nil {
				names = append(names, *ref.ResourceClaimName)
			}
		}
	}
	return names
}

// Reconcile implements reconcile.Reconciler.
func (r *claimReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	claim := &resourceapi.ResourceClaim{}
	if err := r.client.Get(ctx, req.NamespacedName, claim); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if claimWorkload(claim) == "" {
		return ctrl.Result{}, nil
	}
	users, queue, err := r.users(ctx, claim)
	if err != nil {
		return ctrl.Result{}, err
	}
	if users == 0 || claim.DeletionTimestamp != nil {
		return ctrl.Result{}, ignoreConflict(r.unused(ctx, claim))
	}
	if queue == "" || !r.pays(claim) {
		return ctrl.Result{}, nil
	}
	wl, err := r.workload(ctx, wanted{
		owner: claim, gvk: resourceapi.SchemeGroupVersion.WithKind("ResourceClaim"), queue: queue,
		sets: []kueue.PodSet{{Name: mainSet, Count: 1, Template: corev1.PodTemplateSpec{Spec: holder(claim.Name)}}},
	})
	if err != nil {
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			return ctrl.Result{RequeueAfter: recheck}, nil
		}
		return ctrl.Result{}, err
	}
	r.heed(wl)
	a, run := admitted(wl)
	if !run {
		if wl.Status.Admission != nil && conditionTrue(wl, kueue.WorkloadEvicted) {
			left, err := r.leave(ctx, claim, wl)
			if apierrors.IsConflict(err) {
				return ctrl.Result{RequeueAfter: recheck}, nil
			}
			return ctrl.Result{RequeueAfter: left}, err
		}
		return ctrl.Result{}, nil
	}
	if claim.Status.Allocation != nil {
		return ctrl.Result{}, nil
	}
	err = r.open(ctx, claim, wl, a)
	switch {
	case errors.Is(err, errWait):
		return ctrl.Result{RequeueAfter: recheck}, nil
	case errors.As(err, new(*noRoomError)):
		r.event(claim, corev1.EventTypeWarning, "NoRoom", "Admitted by ClusterQueue %s, but waits for room: %s", a.ClusterQueue, err)
		return ctrl.Result{RequeueAfter: gateRetry}, nil
	case errors.As(err, new(*overError)):
		r.metrics.refusals.Inc()
		r.event(claim, corev1.EventTypeWarning, "TicketRefused", "No ticket: %s", err)
		return ctrl.Result{RequeueAfter: gateRetry}, nil
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: recheck}, nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// holder is the pod that stands for a claim in its Workload: a claim alone has
// no pod template, and the API wants one.
func holder(claim string) corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy:  corev1.RestartPolicyNever,
		ResourceClaims: []corev1.PodResourceClaim{{Name: "claim", ResourceClaimName: ptr.To(claim)}},
		Containers:     []corev1.Container{{Name: "claim", Image: "none"}},
	}
}

// users counts the pods that wait for a claim or use it, and finds its queue.
func (r *claimReconciler) users(ctx context.Context, claim *resourceapi.ResourceClaim) (int, string, error) {
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.InNamespace(claim.Namespace), client.MatchingFields{podsByClaim: claim.Name}); err != nil {
		return 0, "", err
	}
	queue := claim.Labels[r.queueLabel()]
	n := 0
	var first *corev1.Pod
	for i := range pods.Items {
		p := &pods.Items[i]
		if ended(p) || p.Spec.NodeName != "" && claim.Status.Allocation == nil {
			// It has ended, or it named its node itself and gets no device there.
			continue
		}
		n++
		if q := r.queueOfPod(ctx, p); q != "" && (first == nil || p.CreationTimestamp.Before(&first.CreationTimestamp)) {
			first = p
			if claim.Labels[r.queueLabel()] == "" {
				queue = q
			}
		}
	}
	return n, queue, nil
}

func (r *claimReconciler) queueOfPod(ctx context.Context, p *corev1.Pod) string {
	if q := p.Labels[r.queueLabel()]; q != "" {
		return q
	}
	id := r.member(p).workload
	if id == "" {
		return ""
	}
	wl := &kueue.Workload{}
	if r.client.Get(ctx, nameOf(id), wl) != nil {
		return ""
	}
	return string(wl.Spec.QueueName)
}

// unused takes back what a claim that nobody needs was granted. Its next user
// waits for an admission of its own.
func (r *claimReconciler) unused(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	if claim.Status.Allocation != nil {
		return nil
	}
	// Past the cache: an allocation that is not seen here yet makes this fail.
	now := &resourceapi.ResourceClaim{}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(claim), now); err != nil {
		return client.IgnoreNotFound(err)
	}
	if now.Status.Allocation != nil {
		return nil
	}
	if err := r.takeBack(ctx, now); err != nil {
		return err
	}
	r.placeLost(claimWorkload(claim), claim.UID)
	wl := &kueue.Workload{}
	if err := r.client.Get(ctx, nameOf(claimWorkload(claim)), wl); err != nil {
		return client.IgnoreNotFound(err)
	}
	return client.IgnoreNotFound(r.client.Delete(ctx, wl))
}

// leave makes the users of an evicted claim go. The result is how long to wait
// before that, as the notice asked for is not over.
func (r *claimReconciler) leave(ctx context.Context, claim *resourceapi.ResourceClaim, wl *kueue.Workload) (time.Duration, error) {
	if err := r.takeBack(ctx, claim); err != nil {
		return 0, err
	}
	r.placeLost(claimWorkload(claim), claim.UID)
	if left, err := r.notice(ctx, wl); left > 0 || err != nil {
		return left, err
	}
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.InNamespace(claim.Namespace), client.MatchingFields{podsByClaim: claim.Name}); err != nil {
		return 0, err
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if ended(p) || HasGate(p) || p.DeletionTimestamp != nil {
			continue
		}
		r.event(p, corev1.EventTypeWarning, "Evicted", "Deleted: the Workload of claim %s is evicted", claim.Name)
		if err := r.client.Delete(ctx, p, client.Preconditions{UID: ptr.To(p.UID)}); client.IgnoreNotFound(err) != nil {
			return 0, err
		}
	}
	return 0, nil
}

func (r *claimReconciler) open(ctx context.Context, claim *resourceapi.ResourceClaim, wl *kueue.Workload, a *kueue.Admission) error {
	if setOf(a, mainSet) == nil {
		return nil
	}
	node, err := r.placeClaim(claim.UID, wl)
	if err != nil {
		return err
	}
	return r.issue(ctx, claim, wl, a, mainSet, node, claim.UID)
}

func (r *claimReconciler) placeClaim(uid types.UID, wl *kueue.Workload) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.place(workloadID(wl.Namespace, wl.Name), mainSet, uid)
}
