package controller

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
