package lifecycle

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

var start = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

func granted(checks ...kueue.AdmissionCheckReference) *kueue.Workload {
	wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(start)}}
	wl.Spec.PodSets = []kueue.PodSet{{Name: "main", Count: 1}}
	Grant(wl, &kueue.Admission{ClusterQueue: "q"}, checks, start)
	return wl
}

func TestEachReturnIsPutOffTwiceAsLongUpToTheLimit(t *testing.T) {
	r := Rules{PodsReady: &PodsReady{Timeout: 10 * time.Second, Base: 60 * time.Second, Max: 200 * time.Second, Limit: ptr.To[int32](4), ByEviction: true}}
	wl := granted()
	now := 0
	for n, pause := range []int{60, 120, 200, 200} {
		if v, again := Due(wl, r, at(now+9)); v != nil || again != time.Second {
			t.Fatalf("round %d: %v, again in %s, before its time is up", n, v, again)
		}
		now += 10
		v, _ := Due(wl, r, at(now))
		if v == nil || v.Deactivate || v.Reason != kueue.WorkloadEvictedByPodsReadyTimeout {
			t.Fatalf("round %d: %+v", n, v)
		}
		Evict(wl, *v, at(now))
		Release(wl, at(now+1))
		if got := NotBefore(wl); !got.Equal(at(now + pause)) {
			t.Fatalf("round %d: comes back %s after its eviction, want %ds", n, got.Sub(at(now)), pause)
		}
		if got := QueuedAt(wl, r); !got.Equal(at(now + 1)) {
			t.Errorf("round %d: queued at %s", n, got)
		}
		if changed, again := Waiting(wl, at(now+2)); changed || again != time.Duration(pause-2)*time.Second {
			t.Errorf("round %d: changed %v, again in %s", n, changed, again)
		}
		now += pause
		if changed, _ := Waiting(wl, at(now)); !changed || !NotBefore(wl).IsZero() {
			t.Errorf("round %d: the pause does not end", n)
		}
		Grant(wl, &kueue.Admission{ClusterQueue: "q"}, nil, at(now))
	}
	v, _ := Due(wl, r, at(now+10))
	if v == nil || !v.Deactivate || v.Reason != kueue.WorkloadRequeuingLimitExceeded {
		t.Fatalf("after the last return: %+v", v)
	}
	Deactivate(wl, *v, at(now+10))
	wl.Spec.Active = ptr.To(false)
	Evict(wl, Verdict{Reason: kueue.WorkloadDeactivated, Message: v.Message}, at(now+10))
	Release(wl, at(now+11))
	if changed, _ := Waiting(wl, at(now+12)); changed {
		t.Error("a deactivated workload changes by itself")
	}
	wl.Spec.Active = ptr.To(true)
	if changed, _ := Waiting(wl, at(now+20)); !changed || wl.Status.RequeueState != nil {
		t.Errorf("activated again it still has %+v", wl.Status.RequeueState)
	}
}

func TestPodsThatWereReadyHaveTimeToRecover(t *testing.T) {
	r := Rules{PodsReady: &PodsReady{Timeout: 10 * time.Second, Recovery: 30 * time.Second}}
	wl := granted()
	if !Ready(wl, true, at(5)) || Ready(wl, true, at(6)) {
		t.Fatal("readiness is not news once")
	}
	if v, again := Due(wl, r, at(1000)); v != nil || again != 0 {
		t.Fatalf("ready, and yet %+v, again in %s", v, again)
	}
	Ready(wl, false, at(1000))
	if v, again := Due(wl, r, at(1010)); v != nil || again != 20*time.Second {
		t.Errorf("%+v, again in %s", v, again)
	}
	if v, _ := Due(wl, r, at(1030)); v == nil || !strings.Contains(v.Message, "again within 30s") {
		t.Errorf("%+v", v)
	}
	r.PodsReady.Recovery = 0
	if v, again := Due(wl, r, at(100000)); v != nil || again != 0 {
		t.Errorf("without a limit: %+v, again in %s", v, again)
	}
}

func TestTimeThatAnEvictionCutShortCounts(t *testing.T) {
	wl := granted()
	wl.Spec.MaximumExecutionTimeSeconds = ptr.To[int32](100)
	Evict(wl, Verdict{Reason: kueue.WorkloadEvictedByPreemption, Preempted: kueue.InClusterQueueReason}, at(70))
	Release(wl, at(80))
	Grant(wl, &kueue.Admission{ClusterQueue: "q"}, nil, at(200))
	if v, again := Due(wl, Rules{}, at(229)); v != nil || again != time.Second {
		t.Errorf("%+v, again in %s", v, again)
	}
	if v, _ := Due(wl, Rules{}, at(231)); v == nil || !v.Deactivate || v.Reason != kueue.WorkloadMaximumExecutionTimeExceeded ||
		!strings.Contains(v.Message, "has run for 1m41s, and may run for 1m40s in all") {
		t.Errorf("%+v", v)
	}
}

func TestChecksAnswerTogether(t *testing.T) {
	state := func(s kueue.CheckState, after int32) func(*kueue.AdmissionCheckState) {
		return func(c *kueue.AdmissionCheckState) { c.State, c.RequeueAfterSeconds = s, &after }
	}
	for name, test := range map[string]struct {
		first, second    func(*kueue.AdmissionCheckState)
		admitted         bool
		deactivate, back bool
	}{
		"one is pending":    {first: state(kueue.CheckStateReady, 0), second: state(kueue.CheckStatePending, 0)},
		"all are ready":     {first: state(kueue.CheckStateReady, 0), second: state(kueue.CheckStateReady, 0), admitted: true},
		"one wants a retry": {first: state(kueue.CheckStateReady, 0), second: state(kueue.CheckStateRetry, 30), back: true},
		"one rejects":       {first: state(kueue.CheckStateRetry, 30), second: state(kueue.CheckStateRejected, 0), deactivate: true},
	} {
		wl := granted("a", "b")
		if _, run := Checked(wl, at(1)); run != nil || meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadAdmitted) {
			t.Errorf("%s: admitted before any answer", name)
		}
		test.first(&wl.Status.AdmissionChecks[0])
		test.second(&wl.Status.AdmissionChecks[1])
		admitted, v := Checked(wl, at(2))
		if admitted != test.admitted || (v != nil) != (test.deactivate || test.back) {
			t.Errorf("%s: admitted %v, %+v", name, admitted, v)
			continue
		}
		if v != nil && (v.Deactivate != test.deactivate || test.back && !v.Back.Equal(at(32))) {
			t.Errorf("%s: %+v", name, v)
		}
		if v == nil {
			continue
		}
		Evict(wl, *v, at(3))
		for _, s := range wl.Status.AdmissionChecks {
			if s.State != kueue.CheckStatePending {
				t.Errorf("%s: after the eviction check %s is %s", name, s.Name, s.State)
			}
		}
	}
}

func TestNoticeIsForPreemptionAlone(t *testing.T) {
	r := Rules{MaxNotice: time.Minute}
	for name, test := range map[string]struct {
		asked  string
		reason string
		want   int
	}{
		"asked for less":     {"20s", kueue.WorkloadEvictedByPreemption, 25},
		"asked for too much": {"1h", kueue.WorkloadEvictedByPreemption, 65},
		"did not ask":        {"", kueue.WorkloadEvictedByPreemption, 5},
		"not a duration":     {"soon", kueue.WorkloadEvictedByPreemption, 5},
		"drained":            {"20s", kueue.WorkloadEvictedByClusterQueueStopped, 5},
	} {
		wl := granted()
		wl.Annotations = map[string]string{NoticeAnnotation: test.asked}
		Evict(wl, Verdict{Reason: test.reason}, at(5))
		if got := StopsAt(wl, r); !got.Equal(at(test.want)) {
			t.Errorf("%s: stops %s after its eviction", name, got.Sub(at(5)))
		}
	}
}
