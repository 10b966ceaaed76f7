package controller

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The scheduler may look at a pod a moment before it sees that a share is free,
// or while an allocation that fails in the end still counts. It then calls the
// pod unschedulable, and no event wakes it: the pod waits for the scheduler's
// own flush, five minutes, beside a free card. A change of any DeviceClass makes
// the scheduler try all pods that wait for devices, so a stamp on ours is the
// least that helps.
const (
	nudgeClass      = "gpu.sluice.dev"
	nudgeAnnotation = "quota.sluice.dev/room-seen"
	nudgeAfter      = 2 * time.Second
	nudgeAtMost     = time.Minute
)

// nudges remembers for which pods the scheduler says no while there is room.
type nudges struct {
	mu   sync.Mutex
	pods map[types.NamespacedName]*nudge
	last time.Time
}

type nudge struct {
	due   time.Time
	pause time.Duration
}

// next says how long to wait until the pod is looked at again, and whether the
// scheduler is to be woken now. The first wake-up comes nudgeAfter the first
// call, later ones after twice the pause before, and wake-ups for all pods
// together come no oftener than once in half of nudgeAfter.
func (n *nudges) next(pod types.NamespacedName, now time.Time) (wait time.Duration, wake bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pods == nil {
		n.pods = map[types.NamespacedName]*nudge{}
	}
	p := n.pods[pod]
	if p == nil {
		p = &nudge{due: now.Add(nudgeAfter), pause: nudgeAfter}
		n.pods[pod] = p
	}
	if wait := p.due.Sub(now); wait > 0 {
		return wait, false
	}
	p.pause = min(2*p.pause, nudgeAtMost)
	p.due = now.Add(p.pause)
	if now.Sub(n.last) < nudgeAfter/2 {
		return p.pause, false // another pod's wake-up serves this one too
	}
	n.last = now
	return p.pause, true
}

// forget is for a pod that is placed or gone.
func (n *nudges) forget(pod types.NamespacedName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.pods, pod)
}

// unschedulable says whether the scheduler has given up on a pod for now.
func unschedulable(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}

// wake is called for a pod with an open gate and a place. It wakes the scheduler
// if that has said no for a while, and returns when to look again; 0 is never,
// as the scheduler's next word on the pod brings it here.
func (r *podReconciler) wake(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	if HasGate(pod) || !unschedulable(pod) {
		return 0, nil
	}
	wait, wake := r.nudges.next(client.ObjectKeyFromObject(pod), time.Now())
	if !wake {
		return wait, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		nudgeAnnotation: time.Now().UTC().Format(time.RFC3339Nano),
	}}})
	if err != nil {
		return 0, err
	}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: nudgeClass}}
	err = r.client.Patch(ctx, class, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldOwner))
	if client.IgnoreNotFound(err) != nil {
		return 0, err
	}
	r.event(pod, corev1.EventTypeNormal, "RoomSeen", "There is room on %s; the scheduler is asked to try again", pod.Status.NominatedNodeName)
	return wait, nil
}
