package lifecycle

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Ready notes in the status whether all pods of an admitted workload are ready,
// and says whether that is new.
func Ready(wl *kueue.Workload, ready bool, now time.Time) bool {
	before := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadPodsReady)
	if before != nil && (before.Status == metav1.ConditionTrue) == ready {
		return false
	}
	switch {
	case ready && before != nil && before.Reason == kueue.WorkloadWaitForRecovery:
		set(wl, now, kueue.WorkloadPodsReady, true, kueue.WorkloadRecovered, "All pods are ready again")
	case ready:
		set(wl, now, kueue.WorkloadPodsReady, true, kueue.WorkloadStarted, "All pods are ready")
	case before == nil:
		set(wl, now, kueue.WorkloadPodsReady, false, kueue.WorkloadWaitForStart, "Not all pods are ready yet")
	default:
		set(wl, now, kueue.WorkloadPodsReady, false, kueue.WorkloadWaitForRecovery, "Some pods are not ready any more")
	}
	return true
}

// Due says whether the time of an admitted workload is up: its pods were not
// ready in time, or it has run as long as it may. Otherwise it says how long
// until that has to be asked again, 0 for never.
func Due(wl *kueue.Workload, r Rules, now time.Time) (v *Verdict, again time.Duration) {
	admitted := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadAdmitted)
	if admitted == nil || admitted.Status != metav1.ConditionTrue {
		return nil, 0
	}
	if most := wl.Spec.MaximumExecutionTimeSeconds; most != nil {
		left := time.Duration(*most)*time.Second - ran(wl, now)
		if left <= 0 {
			return &Verdict{Deactivate: true, Reason: kueue.WorkloadMaximumExecutionTimeExceeded, Message: fmt.Sprintf(
				"It has run for %s, and may run for %s in all (label kueue.x-k8s.io/max-exec-time-seconds)", ran(wl, now).Round(time.Second), time.Duration(*most)*time.Second)}, 0
		}
		again = left
	}
	if r.PodsReady == nil {
		return nil, again
	}
	since, limit, what := admitted.LastTransitionTime.Time, r.PodsReady.Timeout, "were not ready"
	switch c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadPodsReady); {
	case c != nil && c.Status == metav1.ConditionTrue:
		return nil, again
	case c != nil && c.Reason == kueue.WorkloadWaitForRecovery:
		if r.PodsReady.Recovery == 0 {
			return nil, again
		}
		since, limit, what = c.LastTransitionTime.Time, r.PodsReady.Recovery, "were not ready again"
	}
	left := since.Add(limit).Sub(now)
	if left > 0 {
		if again == 0 || left < again {
			again = left
		}
		return nil, again
	}
	n := int32(1)
	if s := wl.Status.RequeueState; s != nil {
		n = ptr.Deref(s.Count, 0) + 1
	}
	if most := r.PodsReady.Limit; most != nil && n > *most {
		return &Verdict{Deactivate: true, Reason: kueue.WorkloadRequeuingLimitExceeded, Message: fmt.Sprintf("Its pods %s within %s, and it has come back %d times already", what, limit, *most)}, 0
	}
	return &Verdict{
		Reason: kueue.WorkloadEvictedByPodsReadyTimeout, Counts: true, Back: now.Add(r.PodsReady.pause(n)),
		Message: fmt.Sprintf("Its pods %s within %s", what, limit),
	}, 0
}

// ran is how long a workload has run, those runs included that were evicted.
func ran(wl *kueue.Workload, now time.Time) time.Duration {
	past := time.Duration(ptr.Deref(wl.Status.AccumulatedPastExecutionTimeSeconds, 0)) * time.Second
	if c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadAdmitted); c != nil && c.Status == metav1.ConditionTrue {
		past += now.Sub(c.LastTransitionTime.Time)
	}
	return past
}
