package controller

import (
	"maps"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// A watch that was broken shows a Workload evicted, and then as one for which Kueue
// asks anew: it is looked for a place again.
func TestBesideKueueOneThatIsAskedAboutAnewIsLookedAtThoughItsReleaseWasMissed(t *testing.T) {
	s := besideStage(t, 1)
	wl := s.asks(s.workload("w", 1, false), kueue.CheckStatePending)
	s.decide()
	if !s.work("w").placed {
		t.Fatalf("it has no place: %q", s.work("w").roomless)
	}
	wl = s.changed(wl, evict)
	s.decide()
	s.asks(wl, kueue.CheckStatePending)
	s.decide()
	if w := s.work("w"); !w.placed {
		t.Errorf("nobody looks for its place; it is told %q", w.roomless)
	}
}

// One that was to leave its card is gone otherwise, and somebody unknown takes the
// card: who waited for it has another one leave.
func TestBesideKueueWhoWaitsForOneThatIsGoneHasRoomMadeElsewhere(t *testing.T) {
	s := besideStage(t, 2)
	s.evicts(kueue.PreemptionPolicyLowerPriority)
	s.runs("high", 1, "gpu-0")
	low := s.runs("low", 0, "gpu-1")
	s.decide()
	s.asks(s.ranked("asks", 1, 5), kueue.CheckStatePending)
	s.decide()
	if s.work("low").yields == "" {
		t.Fatalf("the lowest does not leave; it is told %q", s.work("asks").roomless)
	}
	s.decide()
	unknown := s.workload("unknown", 1, false)
	s.given(unknown, "foreign", "n1", "gpu-1")
	s.goes("lowgpu-1")
	for range 3 {
		s.decide()
	}
	s.lost(low)
	for range 3 {
		s.decide()
	}
	if s.work("high").yields == "" {
		t.Errorf("nobody else leaves; it is told %q", s.work("asks").roomless)
	}
}

// The facts come at once, and are looked at a moment later: in between, what has
// begun is not sent away.
func TestBesideKueueWhatHasBegunIsNotHeldForOneThatCannot(t *testing.T) {
	s := besideStage(t, 1)
	runs := s.runs("runs", 0, "gpu-0")
	late := s.asks(s.workload("late", 1, false), kueue.CheckStateReady)
	late = s.changed(late, func(wl *kueue.Workload) {
		wl.Status.Conditions = append(wl.Status.Conditions, metav1.Condition{Type: admittedCondition, Status: metav1.ConditionTrue})
	})
	s.decide()
	r := &workloads{sources: &sources{core: s.core}}
	if r.view(s.work("late").id).stalled.since.IsZero() {
		t.Fatal("that it cannot begin is not known")
	}
	s.changed(runs, evict)
	s.goes("runsgpu-0")
	s.pod(late, "late-0", "n1", false)
	s.given(late, "late-0", "n1", "gpu-0")
	if v := r.view(s.work("late").id); !v.inUse || !v.stalled.since.IsZero() {
		t.Errorf("in use %v, and it is told to leave: %q", v.inUse, v.stalled.why)
	}
}

// Until it is evicted, further pods of it may come.
func TestBesideKueueWhatIsToLeaveItsCardsStartsNoFurtherPod(t *testing.T) {
	s := besideStage(t, 2)
	s.evicts(kueue.PreemptionPolicyLowerPriority)
	low := s.runs("low", 0, "gpu-0")
	s.decide()
	s.asks(s.ranked("asks", 2, 5), kueue.CheckStatePending)
	s.decide()
	if s.work("low").yields == "" {
		t.Fatalf("it is not to leave; the other is told %q", s.work("asks").roomless)
	}
	s.given(s.workload("other", 1, false), "foreign", "n1", "gpu-0")
	s.goes("lowgpu-0")
	s.lost(s.claims[types.NamespacedName{Namespace: "team", Name: "foreign"}])
	s.node("n2", 1)
	s.pod(low, "next", "", true)
	if node, err := s.place(s.work("low").id, mainSet, "next"); err == nil {
		t.Errorf("its next pod may go to %s", node)
	}
}

// What is kept for a pod of a victim that might come is free as soon as the victim is
// told to go. It is for the one that the victim goes for, not for whoever is looked at
// after it.
func TestBesideKueueRoomThatIsMadeIsOfferedInOrder(t *testing.T) {
	s := besideStage(t, 3)
	s.evicts(kueue.PreemptionPolicyLowerPriority)
	s.runs("victim", 1, "gpu-0", "gpu-1")
	s.runs("other", 2, "gpu-2")
	s.asks(s.ranked("low", 1, 0), kueue.CheckStatePending)
	s.goes("victimgpu-1")
	s.decide()
	s.decide()
	s.asks(s.ranked("high", 1, 2), kueue.CheckStatePending)
	for range 3 {
		maps.Copy(s.rooms.due, s.rooms.open)
		s.decide()
	}
	if high, low := s.work("high").placed, s.work("low").placed; !high || low {
		t.Errorf("placed: the higher %v, the lower %v", high, low)
	}
}
