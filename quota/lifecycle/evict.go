package lifecycle

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// ReasonRejectedChecks is why a workload is deactivated whose admission checks
// reject it.
const ReasonRejectedChecks = "AdmissionCheck"

// Verdict is that a workload must give its quota back.
type Verdict struct {
	// Reason is that of the Evicted condition, or of the deactivation.
	Reason string
	// Message is one sentence for its owner.
	Message string
	// Preempted is the class of a preemption, "" if it is none.
	Preempted string
	// Back is before when it does not come back; the zero time is at once.
	Back time.Time
	// Deactivate keeps it out until somebody activates it again.
	Deactivate bool
	// Counts says that it counts against the limit of returns.
	Counts bool
}

// Evict marks a workload as evicted. It keeps its quota until [Release].
func Evict(wl *kueue.Workload, v Verdict, now time.Time) {
	if v.Preempted != "" {
		set(wl, now, kueue.WorkloadPreempted, true, v.Preempted, v.Message)
	}
	if is(wl, kueue.WorkloadAdmitted) && wl.Spec.MaximumExecutionTimeSeconds != nil {
		wl.Status.AccumulatedPastExecutionTimeSeconds = ptr.To(int32(ran(wl, now) / time.Second))
	}
	count(wl, v)
	set(wl, now, kueue.WorkloadEvicted, true, v.Reason, v.Message)
	set(wl, now, kueue.WorkloadAdmitted, false, "Evicted", "The workload is evicted: "+v.Message)
	if v.Counts || !v.Back.IsZero() {
		state := ptr.Deref(wl.Status.RequeueState, kueue.RequeueState{})
		if v.Counts {
			state.Count = ptr.To(ptr.Deref(state.Count, 0) + 1)
		}
		if !v.Back.IsZero() {
			state.RequeueAt = ptr.To(metav1.NewTime(v.Back))
		}
		wl.Status.RequeueState = &state
	}
	// Whoever answers for a check has to look again at the next reservation.
	for i := range wl.Status.AdmissionChecks {
		s := &wl.Status.AdmissionChecks[i]
		if s.State == kueue.CheckStateRetry {
			s.RetryCount = ptr.To(ptr.Deref(s.RetryCount, 0) + 1)
		}
		s.State, s.Message, s.PodSetUpdates, s.RequeueAfterSeconds = kueue.CheckStatePending, "Reset by an eviction", nil, nil
		s.LastTransitionTime = metav1.NewTime(now)
	}
	meta.RemoveStatusCondition(&wl.Status.Conditions, kueue.WorkloadDeactivationTarget)
}

// count adds an eviction to the statistics.
func count(wl *kueue.Workload, v Verdict) {
	if wl.Status.SchedulingStats == nil {
		wl.Status.SchedulingStats = &kueue.SchedulingStats{}
	}
	st := wl.Status.SchedulingStats
	cause := kueue.EvictionUnderlyingCause(v.Preempted)
	if target := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadDeactivationTarget); target != nil {
		cause = kueue.EvictionUnderlyingCause(target.Reason)
	}
	i := slices.IndexFunc(st.Evictions, func(e kueue.WorkloadSchedulingStatsEviction) bool {
		return e.Reason == v.Reason && e.UnderlyingCause == cause
	})
	if i < 0 {
		st.Evictions = append(st.Evictions, kueue.WorkloadSchedulingStatsEviction{Reason: v.Reason, UnderlyingCause: cause})
		i = len(st.Evictions) - 1
	}
	st.Evictions[i].Count++
}

// Release takes the reservation off a workload by which nothing is in use any
// more. The Evicted condition keeps its reason, since the place in the queue may
// depend on it.
func Release(wl *kueue.Workload, now time.Time) {
	wl.Status.Admission = nil
	wl.Status.ReclaimablePods = nil
	set(wl, now, kueue.WorkloadQuotaReserved, false, kueue.WorkloadQuotaReservedReasonPendingEvaluation, "Evicted; waits again")
	set(wl, now, kueue.WorkloadAdmitted, false, kueue.WorkloadAdmittedReasonNoReservation, "No quota is reserved")
	reason, message := "Released", ""
	if c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted); c != nil {
		reason, message = c.Reason, c.Message
	}
	set(wl, now, kueue.WorkloadEvicted, false, reason, "All that it used is free")
	switch {
	case !ptr.Deref(wl.Spec.Active, true):
		set(wl, now, kueue.WorkloadRequeued, false, kueue.WorkloadDeactivated, message)
	case wl.Status.RequeueState != nil && wl.Status.RequeueState.RequeueAt != nil && now.Before(wl.Status.RequeueState.RequeueAt.Time):
		set(wl, now, kueue.WorkloadRequeued, false, reason, "It waits in its queue again from "+wl.Status.RequeueState.RequeueAt.UTC().Format(time.RFC3339))
	default:
		set(wl, now, kueue.WorkloadRequeued, true, reason, "It waits in its queue again")
	}
}

// Withdraw takes an admission off a workload that was never meant to count: it
// waits as before, and nobody is told that it was evicted.
func Withdraw(wl *kueue.Workload, now time.Time) {
	wl.Status.Admission = nil
	wl.Status.ReclaimablePods = nil
	wl.Status.AdmissionChecks = nil
	const message = "An admission that came late was taken back"
	set(wl, now, kueue.WorkloadQuotaReserved, false, kueue.WorkloadQuotaReservedReasonPendingEvaluation, message)
	set(wl, now, kueue.WorkloadAdmitted, false, kueue.WorkloadAdmittedReasonNoReservation, "No quota is reserved")
}

// HandBack takes the reservation off a workload that Kueue has evicted, once
// nothing is in use, as Kueue's own integrations do. again says that it may be
// admitted again. The rest is Kueue's: the end of a back-off, the place in the
// queue.
func HandBack(wl *kueue.Workload, again bool, now time.Time) {
	wl.Status.Admission = nil
	wl.Status.ReclaimablePods = nil
	reason, message := kueue.WorkloadEvictedByPreemption, ""
	if c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted); c != nil {
		reason, message = c.Reason, c.Message
	}
	set(wl, now, kueue.WorkloadQuotaReserved, false, kueue.WorkloadQuotaReservedReasonPendingEvaluation, message)
	set(wl, now, kueue.WorkloadAdmitted, false, kueue.WorkloadAdmittedReasonNoReservation, "No quota is reserved")
	for _, later := range []string{kueue.WorkloadDeactivated, kueue.WorkloadEvictedByAdmissionCheck, kueue.WorkloadEvictedByPodsReadyTimeout, kueue.WorkloadEvictedByClusterQueueStopped, kueue.WorkloadEvictedByLocalQueueStopped} {
		// These Kueue ends itself.
		again = again && !strings.HasPrefix(reason, later)
	}
	set(wl, now, kueue.WorkloadRequeued, again, reason, message)
}

// Deactivate notes why a workload is to be taken out of its queue. The caller
// then sets spec.active to false.
func Deactivate(wl *kueue.Workload, v Verdict, now time.Time) {
	set(wl, now, kueue.WorkloadDeactivationTarget, true, v.Reason, v.Message)
}

// Waiting brings the status of a workload that holds nothing up to date: the end
// of a back-off, a deactivation, a reactivation. It says whether anything has
// changed, and how long until something will (0 for never).
func Waiting(wl *kueue.Workload, now time.Time) (changed bool, again time.Duration) {
	requeued := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadRequeued)
	if !ptr.Deref(wl.Spec.Active, true) {
		target := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadDeactivationTarget)
		if target == nil && requeued != nil && requeued.Status == metav1.ConditionFalse && requeued.Reason == kueue.WorkloadDeactivated {
			return false, 0
		}
		message := "It is not active"
		if target != nil {
			message = target.Message
		}
		meta.RemoveStatusCondition(&wl.Status.Conditions, kueue.WorkloadDeactivationTarget)
		set(wl, now, kueue.WorkloadRequeued, false, kueue.WorkloadDeactivated, message)
		return true, 0
	}
	if requeued != nil && requeued.Status == metav1.ConditionFalse && requeued.Reason == kueue.WorkloadDeactivated {
		wl.Status.RequeueState = nil
		wl.Status.AccumulatedPastExecutionTimeSeconds = nil
		set(wl, now, kueue.WorkloadRequeued, true, kueue.WorkloadReactivated, "It was activated again")
		return true, 0
	}
	if s := wl.Status.RequeueState; s != nil && s.RequeueAt != nil {
		if left := s.RequeueAt.Sub(now); left > 0 {
			return false, left
		}
		s.RequeueAt = nil
		set(wl, now, kueue.WorkloadRequeued, true, kueue.WorkloadBackoffFinished, "Its pause is over; it waits in its queue again")
		return true, 0
	}
	return false, 0
}

// Wait says why a workload has no quota.
func Wait(wl *kueue.Workload, reason, message string, now time.Time) {
	set(wl, now, kueue.WorkloadQuotaReserved, false, reason, message)
}

// Gated says whether a workload has no quota because a preemption gate keeps it
// from evicting others. It says whether that is news.
func Gated(wl *kueue.Workload, blocked bool, now time.Time) bool {
	if blocked == is(wl, kueue.WorkloadBlockedOnPreemptionGates) {
		return false
	}
	message := "No preemption gate is in the way any more"
	if blocked {
		message = "It could get its quota by evicting others, and a preemption gate is closed"
	}
	set(wl, now, kueue.WorkloadBlockedOnPreemptionGates, blocked, kueue.PreemptionGated, message)
	return true
}

// QueuedAt is when a workload took its place in the queue.
func QueuedAt(wl *kueue.Workload, r Rules) time.Time {
	c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted)
	if c == nil {
		return wl.CreationTimestamp.Time
	}
	late := c.Reason == kueue.WorkloadEvictedByAdmissionCheck ||
		c.Reason == kueue.WorkloadEvictedByPodsReadyTimeout && r.PodsReady != nil && r.PodsReady.ByEviction
	if late {
		return c.LastTransitionTime.Time
	}
	return wl.CreationTimestamp.Time
}

// NotBefore is the end of a workload's back-off, the zero time for none.
func NotBefore(wl *kueue.Workload) time.Time {
	if s := wl.Status.RequeueState; s != nil && s.RequeueAt != nil {
		return s.RequeueAt.Time
	}
	return time.Time{}
}
