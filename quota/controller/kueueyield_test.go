package controller

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// yieldingStage has "low" leave gpu-0 for "high", of which Kueue knows nothing yet.
// A further pod of "low" had the place on gpu-1.
func yieldingStage(t *testing.T) (s *stage, low, high *kueue.Workload) {
	t.Helper()
	s = besideStage(t, 2)
	s.evicts(kueue.PreemptionPolicyLowerPriority)
	low = s.runs("low", 0, "gpu-0", "gpu-1")
	s.decide()
	high = s.asks(s.ranked("high", 2, 5), kueue.CheckStatePending)
	s.decide()
	s.decide()
	if s.work("low").yields == "" {
		t.Fatalf("it is not to leave; the other is told %q", s.work("high").roomless)
	}
	return s, low, high
}

func (s *stage) stays(t *testing.T, why string) {
	t.Helper()
	s.decide()
	if w := s.work("low"); w.yields != "" || s.isLeaving(w.id) {
		t.Errorf("%s, and it is to leave: %q", why, w.yields)
	}
}

func TestBesideKueueWhoWasNotToldYetStaysIfTheOtherIsGone(t *testing.T) {
	for name, goes := range map[string]func(s *stage, high *kueue.Workload){
		"its quota was taken back": func(s *stage, high *kueue.Workload) { s.changed(high, evict) },
		"its user deletes it": func(s *stage, high *kueue.Workload) {
			s.changed(high, func(wl *kueue.Workload) { wl.DeletionTimestamp = &metav1.Time{Time: s.now()} })
		},
		"it is gone": func(s *stage, high *kueue.Workload) { s.lost(high) },
	} {
		t.Run(name, func(t *testing.T) {
			s, low, high := yieldingStage(t)
			goes(s, high)
			s.stays(t, name)
			// A pod of it that is made anew finds its place again.
			s.goes("lowgpu-1")
			s.pod(low, "next", "", true)
			s.decide()
			if node, err := s.place(s.work("low").id, mainSet, "next"); err != nil || node != "n1" {
				t.Errorf("its next pod may go to %q: %v", node, err)
			}
		})
	}
}

func TestBesideKueueWhoWasNotToldYetStaysIfTheOtherFindsRoomElsewhere(t *testing.T) {
	s, _, _ := yieldingStage(t)
	s.node("n2", 2)
	s.decide()
	if !s.work("high").placed {
		t.Fatalf("there are two more cards: %q", s.work("high").roomless)
	}
	s.stays(t, "the other has its room")
}

// What Kueue was told it carries out.
func TestBesideKueueWhoWasToldLeavesThoughTheOtherIsGone(t *testing.T) {
	s, low, high := yieldingStage(t)
	s.changed(low, func(wl *kueue.Workload) { wl.Status.AdmissionChecks[0].State = kueue.CheckStateRetry })
	s.lost(high)
	s.decide()
	if w := s.work("low"); w.yields == "" || !s.isLeaving(w.id) {
		t.Error("it counts as one that goes on")
	}
}

// A further pod had a place that is another's now: it would go on without it.
func TestBesideKueueWhoCouldNotGoOnAsAWholeLeaves(t *testing.T) {
	s := besideStage(t, 2)
	s.evicts(kueue.PreemptionPolicyLowerPriority)
	low := s.runs("low", 0, "gpu-0", "gpu-1")
	s.goes("lowgpu-1")
	s.pod(low, "next", "", true)
	s.decide()
	s.asks(s.ranked("high", 1, 5), kueue.CheckStatePending)
	for range 3 {
		s.decide()
	}
	if high, low := s.work("high"), s.work("low"); !high.placed || low.yields == "" || low.yieldsTo != "" {
		t.Errorf("the other has its room %v, and it is to leave %q", high.placed, low.yields)
	}
}

// behind is an API server of which the caches do not show the newest.
type behind struct {
	client.Reader
	shows map[types.NamespacedName]*kueue.Workload
}

func (b *behind) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	wl := b.shows[key]
	if wl == nil {
		return apierrors.NewNotFound(kueue.Resource("workloads"), key.Name)
	}
	wl.DeepCopyInto(o.(*kueue.Workload))
	return nil
}

func TestBesideKueueTheOtherIsLookedAtPastTheCachesBeforeKueueIsTold(t *testing.T) {
	s, _, high := yieldingStage(t)
	name := types.NamespacedName{Namespace: high.Namespace, Name: high.Name}
	api := &behind{shows: map[types.NamespacedName]*kueue.Workload{name: high}}
	r := &workloads{sources: &sources{core: s.core}, live: api}
	check := func(want bool, why string) {
		t.Helper()
		if asks, err := r.stillAsks(t.Context(), s.work("low").yieldsTo); err != nil || asks != want {
			t.Errorf("%s: it asks %v, %v", why, asks, err)
		}
	}
	check(true, "as in the caches")
	gone := high.DeepCopy()
	evict(gone)
	api.shows[name] = gone
	check(false, "evicted a moment ago")
	other := high.DeepCopy()
	other.UID = "another"
	api.shows[name] = other
	check(false, "made again under its name")
	delete(api.shows, name)
	check(false, "gone a moment ago")
	// Nothing is written then: this reconciler could not.
	if result, err := r.makeRoom(t.Context(), s.work("low").object, s.work("low").id); err != nil || result.RequeueAfter != recheck {
		t.Errorf("%v, %v", result, err)
	}
	if why := s.work("low").yields; !strings.Contains(why, "to make room") {
		t.Errorf("it stays before the news are here: %q", why)
	}
}
