package controller

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// member puts a ClusterQueue into a cohort.
func (s *stage) member(name, cohort string, nominal int, reclaim kueue.PreemptionPolicy) {
	q := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: s.next()}}
	q.Spec.NamespaceSelector = &metav1.LabelSelector{}
	q.Spec.CohortName = kueue.CohortReference(cohort)
	q.Spec.Preemption = &kueue.ClusterQueuePreemption{ReclaimWithinCohort: reclaim}
	q.Spec.ResourceGroups = []kueue.ResourceGroup{{CoveredResources: []corev1.ResourceName{"nvidia.com/gpu"}, Flavors: []kueue.FlavorQuotas{{
		Name: "gpu", Resources: []kueue.ResourceQuota{{Name: "nvidia.com/gpu", NominalQuota: resource.MustParse(fmt.Sprint(nominal))}},
	}}}}
	s.saw(q)
}

// in moves a workload to a ClusterQueue.
func (s *stage) in(queue string, wl *kueue.Workload) *kueue.Workload {
	return s.changed(wl, func(wl *kueue.Workload) { wl.Status.Admission.ClusterQueue = kueue.ClusterQueueReference(queue) })
}

// yielding are the jobs that are to leave.
func (s *stage) yielding() (all []string) {
	for _, w := range s.works {
		if w.yields != "" {
			all = append(all, metav1.GetControllerOf(w.object).Name)
		}
	}
	slices.Sort(all)
	return all
}

func TestBesideKueueABorrowerMakesRoomForOneWithinItsNominalQuota(t *testing.T) {
	for name, c := range map[string]struct {
		mine, theirs int
		policy       kueue.PreemptionPolicy
		cohort       string
		priority     int32
		asks         int32
		change       func(s *stage)
		want         []string
	}{
		"the newest, as many as it takes":         {mine: 2, theirs: 1, policy: kueue.PreemptionPolicyAny, cohort: "all", asks: 1, want: []string{"b2"}},
		"two":                                     {mine: 2, theirs: 1, policy: kueue.PreemptionPolicyAny, cohort: "all", asks: 2, want: []string{"b1", "b2"}},
		"none of its nominal quota":               {mine: 3, theirs: 1, policy: kueue.PreemptionPolicyAny, cohort: "all", asks: 3},
		"the other queue does not borrow":         {mine: 2, theirs: 3, policy: kueue.PreemptionPolicyAny, cohort: "all", asks: 1},
		"it borrows itself":                       {mine: 0, theirs: 1, policy: kueue.PreemptionPolicyAny, cohort: "all", asks: 1},
		"it asks for more than its nominal quota": {mine: 1, theirs: 1, policy: kueue.PreemptionPolicyAny, cohort: "all", asks: 2},
		"its queue reclaims nothing":              {mine: 2, theirs: 1, policy: kueue.PreemptionPolicyNever, cohort: "all", asks: 1},
		"those of lower priority":                 {mine: 2, theirs: 1, policy: kueue.PreemptionPolicyLowerPriority, cohort: "all", priority: 1, asks: 1, want: []string{"b2"}},
		"nobody is lower":                         {mine: 2, theirs: 1, policy: kueue.PreemptionPolicyLowerPriority, cohort: "all", asks: 1},
		"of another cohort":                       {mine: 2, theirs: 1, policy: kueue.PreemptionPolicyAny, cohort: "another", asks: 1},
		"no check of ours": {mine: 2, theirs: 1, policy: kueue.PreemptionPolicyAny, cohort: "all", asks: 1, want: []string{"b1"}, change: func(s *stage) {
			s.changed(s.work("b2").object, func(wl *kueue.Workload) { wl.Status.AdmissionChecks = nil })
		}},
		"its gate keeps it from evicting": {mine: 2, theirs: 1, policy: kueue.PreemptionPolicyAny, cohort: "all", asks: 1, change: func(s *stage) {
			s.changed(s.work("w").object, func(wl *kueue.Workload) {
				wl.Spec.PreemptionGates = []kueue.PreemptionGate{{Name: "closed"}}
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := besideStage(t, 3)
			s.member("a", "all", c.mine, c.policy)
			s.member("b", c.cohort, c.theirs, kueue.PreemptionPolicyNever)
			for i := range 3 {
				s.in("b", s.runs(fmt.Sprintf("b%d", i), 0, fmt.Sprintf("gpu-%d", i)))
			}
			s.decide()
			s.in("a", s.asks(s.ranked("w", c.asks, c.priority), kueue.CheckStatePending))
			if c.change != nil {
				c.change(s)
			}
			s.decide()
			if got := s.yielding(); !slices.Equal(got, c.want) {
				t.Errorf("to leave: %v, want %v; it is told %q", got, c.want, s.work("w").roomless)
			}
		})
	}
}

// One that could make room alone was passed over, since those before it are enough
// for its queue not to borrow any more.
func TestBesideKueueABorrowerThatIsInTheWayMakesRoomThoughOthersAreNewer(t *testing.T) {
	s := besideStage(t, 2)
	s.node("n2", 1)
	s.member("a", "all", 2, kueue.PreemptionPolicyAny)
	s.member("b", "all", 2, kueue.PreemptionPolicyNever)
	s.in("b", s.runs("pair", 0, "gpu-0", "gpu-1"))
	wl := s.asks(s.ranked("single", 1, 0), kueue.CheckStateReady)
	wl = s.changed(s.in("b", wl), func(wl *kueue.Workload) {
		wl.Status.Conditions = append(wl.Status.Conditions, metav1.Condition{Type: admittedCondition, Status: metav1.ConditionTrue})
	})
	s.pod(wl, "single-0", "n2", false)
	s.given(wl, "single-0", "n2", "gpu-0")
	s.decide()
	s.in("a", s.asks(s.ranked("w", 2, 0), kueue.CheckStatePending))
	s.decide()
	if got := s.yielding(); !slices.Equal(got, []string{"pair"}) {
		t.Errorf("to leave: %v; it is told %q", got, s.work("w").roomless)
	}
}

// Whatever runs where: none of a queue within its nominal quota has to go, the one
// that waits has its room when those that have to have gone, and when they come back
// they oust nobody.
func TestBesideKueueReclaimedCardsAreThoseThatWereBorrowed(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		const cards = 6
		s := besideStage(t, cards)
		nominal := map[string]int{"a": rapid.IntRange(0, 4).Draw(r, "a"), "b": rapid.IntRange(0, 4).Draw(r, "b"), "c": rapid.IntRange(0, 4).Draw(r, "c")}
		for _, name := range slices.Sorted(maps.Keys(nominal)) {
			s.member(name, "all", nominal[name], kueue.PreemptionPolicyAny)
		}
		size, queue := map[string]int{}, map[string]string{}
		for next := 0; next < cards; {
			n := rapid.IntRange(1, min(3, cards-next)).Draw(r, "cards")
			name := fmt.Sprintf("job%d", next)
			queue[name] = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "queue")
			size[name] = n
			var on []string
			for range n {
				on = append(on, fmt.Sprintf("gpu-%d", next))
				next++
			}
			s.in(queue[name], s.runs(name, rapid.Int32Range(0, 2).Draw(r, "priority"), on...))
		}
		s.decide()
		asks := rapid.Int32Range(1, 3).Draw(r, "asks")
		s.in("a", s.asks(s.ranked("w", asks, 1), kueue.CheckStatePending))
		for range 3 {
			s.decide()
		}
		gone := s.yielding()
		used := map[string]int{}
		for name, n := range size {
			used[queue[name]] += n
		}
		if len(gone) > 0 && used["a"]+int(asks) > nominal["a"] {
			r.Fatalf("its queue borrows: %v leave", gone)
		}
		took, most := map[string]int{}, map[string]int{}
		for _, name := range gone {
			took[queue[name]] += size[name]
			most[queue[name]] = max(most[queue[name]], size[name])
		}
		for q, n := range took {
			if q == "a" || used[q]-(n-most[q]) <= nominal[q] {
				r.Fatalf("%v leave; queue %s has %d of its own and used %d", gone, q, nominal[q], used[q])
			}
		}
		if len(gone) == 0 {
			return
		}
		for _, name := range gone {
			s.changed(s.work(name).object, evict)
		}
		s.decide()
		var pods []string
		for _, p := range s.pods {
			if slices.Contains(gone, metav1.GetControllerOf(s.works[p.workload].object).Name) {
				pods = append(pods, p.name.Name)
			}
		}
		for _, p := range pods {
			s.goes(p)
		}
		for _, name := range gone {
			// Kueue reserves quota for them again at once.
			wl := s.changed(s.work(name).object, func(wl *kueue.Workload) { wl.Status = kueue.WorkloadStatus{} })
			s.in(queue[name], s.asks(wl, kueue.CheckStatePending))
		}
		for range 4 {
			s.decide()
		}
		if w := s.work("w"); !w.placed {
			r.Fatalf("%v have left, and it is told %q", gone, w.roomless)
		}
		for _, name := range s.yielding() {
			if queue[name] == "a" || queue[name] == "" {
				r.Fatalf("%s has to go for one that it made go", name)
			}
		}
	})
}
