package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The devices of a claim by name are on nodes of the flavor that it was admitted
// to: its ticket pays for no others. What names a queue is sent there. A pod that
// names none can be sent anywhere, and the scheduler tries the same node again and
// again, where the API server refuses what it allocates. So such a pod is put into
// the claim's queue when it is made; where that was not possible, it is told.

// SharedQueue is the queue that a claim by name which a pod uses has on it, "" for
// none, or if the claim costs nothing that a budget knows.
func (c *Controller) SharedQueue(ctx context.Context, pod *corev1.Pod, namespace string) string {
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.ResourceClaimName == nil {
			continue
		}
		claim := &resourceapi.ResourceClaim{}
		if c.templates.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: *ref.ResourceClaimName}, claim) != nil {
			continue
		}
		if queue := claim.Labels[c.core.queueLabel()]; queue != "" && c.core.pays(claim) {
			return queue
		}
	}
	return ""
}

// astray tells a pod that no workload has and that the scheduler finds no node for,
// if it uses a claim that a queue pays for, that nothing sends it to the claim's
// nodes.
func (r *podReconciler) astray(pod *corev1.Pod) {
	if HasGate(pod) || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || ended(pod) || !inVain(pod) {
		return
	}
	claim, queue, flavor := r.sharedBy(pod)
	if claim == "" {
		return
	}
	what := "it"
	if o := metav1.GetControllerOf(pod); o != nil && r.kinds.Find(o.APIVersion, o.Kind) != nil {
		what = o.Kind + " " + o.Name
	}
	where := ""
	if flavor != "" {
		where = ", on nodes of flavor " + flavor + " alone"
	}
	r.event(pod, corev1.EventTypeWarning, "NotGoverned",
		"ResourceClaim %s is paid for by LocalQueue %s%s, and nothing sends this pod there, since it names no queue: make %s again with the label %s: %s", claim, queue, where, what, r.queueLabel(), queue)
}

// sharedBy is a claim by name that a pod uses and that has a workload, with its
// queue and, once it is admitted, its flavor.
func (c *core) sharedBy(pod *corev1.Pod) (name, queue, flavor string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.ResourceClaimName == nil {
			continue
		}
		claim := c.claims[types.NamespacedName{Namespace: pod.Namespace, Name: *ref.ResourceClaimName}]
		if claim == nil {
			continue
		}
		w := c.works[claimWorkload(claim)]
		if w == nil || w.object == nil {
			continue
		}
		if a := w.object.Status.Admission; a != nil && len(a.PodSetAssignments) > 0 {
			flavor = c.deviceFlavor(&a.PodSetAssignments[0])
		}
		return claim.Name, string(w.object.Spec.QueueName), flavor
	}
	return "", "", ""
}

// inVain says whether the scheduler has tried a pod in vain: it found no node, or
// the API server refused what it allocated.
func inVain(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason != corev1.PodReasonSchedulingGated
		}
	}
	return false
}
