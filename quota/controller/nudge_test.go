package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func pod(name string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: name} }

func TestTheSchedulerIsWokenAfterAWhileAndThenEverMoreSeldom(t *testing.T) {
	var n nudges
	now := time.Unix(1000, 0)
	if wait, wake := n.next(pod("p"), now); wake || wait != nudgeAfter {
		t.Fatalf("at first: wait %v, wake %v; the scheduler may be at it", wait, wake)
	}
	var pauses []time.Duration
	for range 8 {
		wait, wake := n.next(pod("p"), now)
		if wake {
			pauses = append(pauses, wait)
		}
		now = now.Add(wait)
	}
	for i := 1; i < len(pauses); i++ {
		if pauses[i] < pauses[i-1] || pauses[i] > nudgeAtMost {
			t.Errorf("pauses %v, want them to grow up to %v", pauses, nudgeAtMost)
		}
	}
	if len(pauses) < 5 {
		t.Errorf("woken %d times, want at every due time", len(pauses))
	}
}

func TestOneWakeUpServesAllPodsThatWait(t *testing.T) {
	var n nudges
	now := time.Unix(1000, 0)
	n.next(pod("a"), now)
	n.next(pod("b"), now)
	now = now.Add(nudgeAfter)
	_, first := n.next(pod("a"), now)
	_, second := n.next(pod("b"), now.Add(time.Millisecond))
	if !first || second {
		t.Errorf("woken for a: %v, for b right after: %v", first, second)
	}
	n.forget(pod("a"))
	if wait, wake := n.next(pod("a"), now); wake || wait != nudgeAfter {
		t.Errorf("a pod that comes back starts anew, got %v %v", wait, wake)
	}
}

func TestOnlyTheSchedulersNoCountsAsUnschedulable(t *testing.T) {
	with := func(reason string) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason}}}}
	}
	if unschedulable(with(corev1.PodReasonSchedulingGated)) || !unschedulable(with(corev1.PodReasonUnschedulable)) || unschedulable(&corev1.Pod{}) {
		t.Error("want Unschedulable alone to count")
	}
}
