package lifecycle

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

const (
	// NoticeAnnotation, on a job or pod, asks for time to save its work when it
	// is preempted: a duration such as 30s.
	NoticeAnnotation = "quota.sluice.dev/preemption-notice"
	// PreemptedAnnotation is put on the pods of a preempted workload that asked
	// for notice: the time at which they will be stopped, in RFC 3339.
	PreemptedAnnotation = "quota.sluice.dev/preempted-at"
)

// StopsAt is when the pods of an evicted workload are to be stopped: at once,
// unless it is preempted and has asked for notice. Its quota stays charged until
// then, so the notice costs the preemptor time and nobody quota.
func StopsAt(wl *kueue.Workload, r Rules) time.Time {
	c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted)
	if c == nil || c.Status != metav1.ConditionTrue {
		return time.Time{}
	}
	at := c.LastTransitionTime.Time
	if c.Reason != kueue.WorkloadEvictedByPreemption {
		return at
	}
	asked, err := time.ParseDuration(wl.Annotations[NoticeAnnotation])
	if err != nil || asked < 0 {
		return at
	}
	return at.Add(min(asked, r.MaxNotice))
}
