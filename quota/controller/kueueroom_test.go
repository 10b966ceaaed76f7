package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// besideStage is a stage on which Kueue admits, with the check that it asks us by.
func besideStage(t testing.TB, cards int) *stage {
	t.Helper()
	s := &stage{core: loaded(t)}
	s.synced, s.beside = true, true
	now := time.Unix(1000, 0)
	s.now = func() time.Time { now = now.Add(time.Second); return now }
	s.furnish(cards)
	s.saw(&kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: "cards"}, Spec: kueue.AdmissionCheckSpec{ControllerName: CheckController}})
	return s
}

// asks shows that Kueue has reserved quota for a Workload and asks for room.
func (s *stage) asks(wl *kueue.Workload, state kueue.CheckState) *kueue.Workload {
	wl = wl.DeepCopy()
	wl.ResourceVersion = s.next()
	pods := wl.Spec.PodSets[0].Count
	wl.Status.Admission = grant("q", int64(pods))
	wl.Status.Admission.PodSetAssignments[0].Count = &pods
	wl.Status.Conditions = []metav1.Condition{{Type: reserved, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Unix(int64(s.version), 0))}}
	wl.Status.AdmissionChecks = []kueue.AdmissionCheckState{{Name: "cards", State: state}}
	s.saw(wl)
	return wl
}

// BenchmarkLookBesideKueue is one look of the controller beside Kueue, with 5,000
// Workloads: 500 on their cards, 50 that Kueue has reserved quota for and that find
// no room, the others waiting in Kueue's queues.
func BenchmarkLookBesideKueue(b *testing.B) {
	const all, run, ask = 5000, 500, 50
	crowd := func(b *testing.B) *stage {
		s := besideStage(b, run)
		for i := range all {
			name := fmt.Sprintf("w%d", i)
			if i < run {
				wl := s.workload(name, 1, true)
				s.pod(wl, name, "n1", false)
				s.given(wl, name, "n1", fmt.Sprintf("gpu-%d", i))
				continue
			}
			wl := s.workload(name, 1, false)
			if i < run+ask {
				s.asks(wl, kueue.CheckStatePending)
			}
		}
		s.decide()
		return s
	}
	b.Run("nothing_of_it_changed", func(b *testing.B) {
		s := crowd(b)
		wl := s.works[workloadID("team", workloadName("Job", "w4999", "job-w4999"))].object
		for b.Loop() {
			// A reason to wait is written: Kueue does so all the time.
			wl = wl.DeepCopy()
			wl.ResourceVersion = s.next()
			s.saw(wl)
			s.decide()
		}
	})
	b.Run("one_more_asks", func(b *testing.B) {
		s := crowd(b)
		waits := s.works[workloadID("team", workloadName("Job", "w4999", "job-w4999"))].object
		for b.Loop() {
			s.asks(waits, kueue.CheckStatePending)
			s.decide()
			b.StopTimer()
			back := waits.DeepCopy()
			back.ResourceVersion = s.next()
			s.saw(back)
			s.decide()
			b.StartTimer()
		}
	})
}

func (s *stage) work(job string) *work {
	return s.works[workloadID("team", workloadName("Job", job, types.UID("job-"+job)))]
}

// ranked shows a Workload of a priority that waits.
func (s *stage) ranked(name string, pods, priority int32) *kueue.Workload {
	wl := s.workload(name, pods, false).DeepCopy()
	wl.ResourceVersion, wl.Generation, wl.Spec.Priority = s.next(), 2, &priority
	s.saw(wl)
	return wl
}

// runs shows a Workload of a priority that Kueue admitted after our check, with its
// pods on cards of node n1.
func (s *stage) runs(name string, priority int32, cards ...string) *kueue.Workload {
	wl := s.asks(s.ranked(name, int32(len(cards)), priority), kueue.CheckStateReady)
	wl = s.changed(wl, func(wl *kueue.Workload) {
		wl.Status.Conditions = append(wl.Status.Conditions, metav1.Condition{Type: admittedCondition, Status: metav1.ConditionTrue})
	})
	for _, card := range cards {
		s.pod(wl, name+card, "n1", false)
		s.given(wl, name+card, "n1", card)
	}
	return wl
}

// changed shows another version of a Workload.
func (s *stage) changed(wl *kueue.Workload, how func(*kueue.Workload)) *kueue.Workload {
	wl = wl.DeepCopy()
	wl.ResourceVersion = s.next()
	how(wl)
	s.saw(wl)
	return wl
}

// evicts lets the queue evict within itself.
func (s *stage) evicts(policy kueue.PreemptionPolicy) {
	q := s.queues["q"].DeepCopy()
	q.Spec.Preemption = &kueue.ClusterQueuePreemption{WithinClusterQueue: policy}
	s.saw(q)
}

// goes shows that a pod is gone, and its devices free.
func (s *stage) goes(pod string) {
	claim := s.claims[types.NamespacedName{Namespace: "team", Name: pod}]
	s.lost(claim)
	s.lost(s.pods[types.UID(pod)].object)
}

func evict(wl *kueue.Workload) {
	wl.Status.Conditions = append(wl.Status.Conditions, metav1.Condition{Type: kueue.WorkloadEvicted, Status: metav1.ConditionTrue, Reason: kueue.WorkloadEvictedByAdmissionCheck})
}

func TestBesideKueueOnlyThoseAreTriedAgainForWhomRoomMayHaveCome(t *testing.T) {
	s := besideStage(t, 1)
	runs := s.runs("runs", 0, "gpu-0")
	s.asks(s.workload("asks", 1, false), kueue.CheckStatePending)
	waits := s.workload("waits", 1, false)
	s.decide()
	tried := func() (n uint64) {
		for _, each := range s.fit.Counts().Refusals {
			n += each
		}
		return n
	}
	if w := s.work("asks"); w.placed || !strings.Contains(w.roomless, "the budget allows it") {
		t.Fatalf("placed %v, %q", w.placed, w.roomless)
	}
	before := tried()
	// Kueue writes reasons to wait all the time.
	s.changed(waits, func(wl *kueue.Workload) {
		wl.Status.Conditions = []metav1.Condition{{Type: reserved, Status: metav1.ConditionFalse, Reason: "Pending"}}
	})
	s.decide()
	if n := tried(); n != before {
		t.Errorf("tried %d times more, though nothing was freed", n-before)
	}
	s.changed(runs, evict)
	s.goes("runsgpu-0")
	s.decide()
	if !s.work("asks").placed {
		t.Errorf("a card is free, and it is told %q", s.work("asks").roomless)
	}
}

// Whether a look tries all that ask or those alone whose room may have changed, the
// same ones have places afterwards.
func TestBesideKueueALookOfWhatChangedFindsWhatALookAtAllFinds(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		whole, part := besideStage(t, 3), besideStage(t, 3)
		both := func(f func(s *stage)) { f(whole); f(part) }
		both(func(s *stage) {
			s.runs("a", 1, "gpu-0", "gpu-1")
			s.runs("b", 2, "gpu-2")
		})
		policy := rapid.SampledFrom([]kueue.PreemptionPolicy{kueue.PreemptionPolicyNever, kueue.PreemptionPolicyLowerPriority, kueue.PreemptionPolicyLowerOrNewerEqualPriority}).Draw(r, "policy")
		both(func(s *stage) { s.evicts(policy) })
		var names []string
		on := map[string]bool{"agpu-0": true, "agpu-1": true, "bgpu-2": true}
		for i := range rapid.IntRange(1, 12).Draw(r, "steps") {
			switch rapid.IntRange(0, 2).Draw(r, "step") {
			case 0:
				name, pods, priority := fmt.Sprintf("w%d", i), rapid.Int32Range(1, 3).Draw(r, "pods"), rapid.Int32Range(0, 3).Draw(r, "priority")
				names = append(names, name)
				both(func(s *stage) { s.asks(s.ranked(name, pods, priority), kueue.CheckStatePending) })
			case 1:
				for _, pod := range slices.Sorted(maps.Keys(on)) {
					if rapid.Bool().Draw(r, "goes") {
						delete(on, pod)
						both(func(s *stage) { s.goes(pod) })
					}
				}
			case 2:
				if len(names) == 0 {
					continue
				}
				// Kueue takes the quota of one back, placed or not.
				name := rapid.SampledFrom(names).Draw(r, "loses")
				both(func(s *stage) {
					s.changed(s.work(name).object, func(wl *kueue.Workload) { wl.Status = kueue.WorkloadStatus{} })
				})
			}
			for range 4 {
				maps.Copy(whole.rooms.due, whole.rooms.open)
				both(func(s *stage) { s.decide() })
			}
			for _, name := range names {
				if a, b := whole.work(name).placed, part.work(name).placed; a != b {
					r.Fatalf("%s: placed %v by a look at all, %v by a look at what changed", name, a, b)
				}
			}
		}
	})
}

func TestBesideKueueTheLeastImportantMakesRoomWhereItsQueueSaysSo(t *testing.T) {
	for name, c := range map[string]struct {
		policy   kueue.PreemptionPolicy
		priority int32
		yields   string
	}{
		"the lowest, the newest of them": {kueue.PreemptionPolicyLowerPriority, 5, "newer"},
		"nobody is lower":                {kueue.PreemptionPolicyLowerPriority, 1, ""},
		"never":                          {kueue.PreemptionPolicyNever, 5, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := besideStage(t, 3)
			s.evicts(c.policy)
			s.runs("older", 1, "gpu-0")
			s.runs("high", 3, "gpu-1")
			newer := s.runs("newer", 1, "gpu-2")
			s.decide()
			s.asks(s.ranked("asks", 1, c.priority), kueue.CheckStatePending)
			s.decide()
			for _, job := range []string{"older", "high", "newer"} {
				if yields := s.work(job).yields != ""; yields != (job == c.yields) {
					t.Errorf("%s is told to go: %v", job, s.work(job).yields)
				}
			}
			if c.yields == "" {
				return
			}
			if w := s.work("asks"); w.placed || len(w.awaits) != 1 || !strings.Contains(w.roomless, "room is being made") {
				t.Fatalf("placed %v, awaits %v, %q", w.placed, w.awaits, w.roomless)
			}
			// Who comes meanwhile does not get the room that is made, and makes nobody go.
			s.asks(s.ranked("second", 1, 2), kueue.CheckStatePending)
			s.changed(newer, evict)
			s.decide()
			if s.work("older").yields == "" {
				t.Error("the second may have room made as well")
			}
			s.goes("newergpu-2")
			s.decide()
			if !s.work("asks").placed || s.work("second").placed {
				t.Errorf("placed: the one that room was made for %v, the other %v", s.work("asks").placed, s.work("second").placed)
			}
		})
	}
}

// After a restart the check of the victim is reset, its eviction under way.
func TestBesideKueueAfterARestartItWaitsForThoseThatLeaveAndEvictsNobodyMore(t *testing.T) {
	s := besideStage(t, 2)
	s.evicts(kueue.PreemptionPolicyLowerPriority)
	s.runs("other", 1, "gpu-0")
	s.changed(s.runs("leaves", 1, "gpu-1"), evict)
	s.asks(s.ranked("asks", 1, 5), kueue.CheckStatePending)
	s.decide()
	if w := s.work("asks"); w.placed || len(w.awaits) != 1 || w.awaits[0] != s.work("leaves").id {
		t.Errorf("placed %v, awaits %v", w.placed, w.awaits)
	}
	if s.work("other").yields != "" {
		t.Errorf("another has to go: %s", s.work("other").yields)
	}
}

func TestBesideKueueWhatWasAdmittedAndCannotBeginIsNoticed(t *testing.T) {
	s := besideStage(t, 1)
	runs := s.runs("runs", 0, "gpu-0")
	wl := s.asks(s.workload("late", 1, false), kueue.CheckStateReady)
	s.changed(wl, func(wl *kueue.Workload) {
		wl.Status.Conditions = append(wl.Status.Conditions, metav1.Condition{Type: admittedCondition, Status: metav1.ConditionTrue})
	})
	s.decide()
	if stalled := s.work("late").stalled; stalled.since.IsZero() || !strings.Contains(stalled.why, "card") {
		t.Errorf("it has no room, and that is known since %v: %q", stalled.since, stalled.why)
	}
	if !s.work("runs").stalled.since.IsZero() {
		t.Error("what runs is on its card")
	}
	s.changed(runs, evict)
	s.goes("runsgpu-0")
	s.decide()
	if w := s.work("late"); !w.placed || !w.stalled.since.IsZero() {
		t.Errorf("a card is free: placed %v, stalled since %v", w.placed, w.stalled.since)
	}
}

func TestBesideKueueQuotaOfRacksAndOfOtherClustersIsRefusedWithTheReason(t *testing.T) {
	for says, how := range map[string]func(*kueue.Workload){
		"without topologyName": func(wl *kueue.Workload) {
			wl.Status.Admission.PodSetAssignments[0].TopologyAssignment = &kueue.TopologyAssignment{Levels: []string{"rack"}}
		},
		"AdmissionCheck elsewhere": func(wl *kueue.Workload) {
			wl.Status.AdmissionChecks = append(wl.Status.AdmissionChecks, kueue.AdmissionCheckState{Name: "elsewhere", State: kueue.CheckStatePending})
		},
	} {
		s := besideStage(t, 1)
		s.saw(&kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}, Spec: kueue.AdmissionCheckSpec{ControllerName: kueue.MultiKueueControllerName}})
		wl := s.asks(s.workload("asks", 1, false), kueue.CheckStateReady)
		s.changed(wl, func(wl *kueue.Workload) {
			wl.Status.AdmissionChecks[0].State = kueue.CheckStatePending
			how(wl)
		})
		s.decide()
		if w := s.work("asks"); w.placed || !strings.Contains(w.roomless, says) {
			t.Errorf("placed %v, %q, want %q", w.placed, w.roomless, says)
		}
	}
}
