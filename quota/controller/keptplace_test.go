package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/ticket"
)

// takenBack shows that the scheduler gives the devices of a pod back: it could
// not bind it.
func (s *stage) takenBack(pod string) {
	s.lost(s.claims[types.NamespacedName{Namespace: "team", Name: pod}])
}

// Whoever holds quota has its place, also while admission checks are awaited.
func TestAfterARestartAPlaceIsKeptForWhoAwaitsAdmissionChecks(t *testing.T) {
	s := newStage(t, 1)
	wl := s.workload("checked", 1, true).DeepCopy()
	wl.ResourceVersion = s.next()
	wl.Status.Conditions = wl.Status.Conditions[:1]
	wl.Status.AdmissionChecks = []kueue.AdmissionCheckState{{Name: "budget", State: kueue.CheckStatePending}}
	s.saw(wl)
	s.workload("late", 1, false)
	if got := s.admits(); len(got) > 0 {
		t.Fatalf("%v admitted in the place of one that holds quota", got)
	}
}

// A job makes a pod anew that was deleted or failed. Meanwhile nobody is admitted
// in its place.
func TestThePlaceOfAPodThatIsMadeAnewIsKept(t *testing.T) {
	for name, goes := range map[string]func(*stage, *kueue.Workload, *corev1.Pod){
		"deleted": func(s *stage, _ *kueue.Workload, p *corev1.Pod) { s.lost(p) },
		"failed": func(s *stage, _ *kueue.Workload, p *corev1.Pod) {
			p = p.DeepCopy()
			p.ResourceVersion, p.Status.Phase = s.next(), corev1.PodFailed
			s.saw(p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 2)
			wl := s.workload("runs", 2, true)
			s.decide()
			pod := s.pod(wl, "one", "n1", false)
			s.given(wl, "one", "n1", "gpu-0")
			s.pod(wl, "two", "n1", false)
			s.given(wl, "two", "n1", "gpu-1")
			s.decide()
			s.workload("late", 1, false)
			goes(s, wl, pod)
			s.takenBack("one")
			if got := s.admits(); len(got) > 0 {
				t.Fatalf("%v admitted in the place of the pod that is made anew", got)
			}
			s.pod(wl, "again", "", true)
			s.decide()
			s.open(t, wl, "again")
		})
	}
}

// A pod that has done its work is not made anew: its place is free.
func TestThePlaceOfAPodThatHasDoneItsWorkIsNotKept(t *testing.T) {
	s := newStage(t, 2)
	wl := s.workload("runs", 2, true)
	s.decide()
	pod := s.pod(wl, "one", "n1", false)
	s.given(wl, "one", "n1", "gpu-0")
	s.pod(wl, "two", "", true)
	s.workload("late", 1, false)
	if got := s.admits(); len(got) > 0 {
		t.Fatal(got)
	}
	pod = pod.DeepCopy()
	pod.ResourceVersion, pod.Status.Phase = s.next(), corev1.PodSucceeded
	s.saw(pod)
	s.takenBack("one")
	if got := s.admits(); len(got) != 1 || got[0] != "late" {
		t.Fatalf("admitted %v, want late: %s", got, s.why("late"))
	}
	s.open(t, wl, "two")
}

// The scheduler gives devices back when it cannot bind the pod after all. The pod
// still has its place.
func TestThePlaceOfAPodWhoseDevicesWereGivenBackIsKept(t *testing.T) {
	s := newStage(t, 1)
	wl := s.workload("runs", 1, true)
	s.pod(wl, "opened", "", false)
	s.decide()
	s.open(t, wl, "opened")
	s.given(wl, "opened", "n1", "gpu-0")
	s.decide()
	s.workload("late", 1, false)
	s.takenBack("opened")
	if got := s.admits(); len(got) > 0 {
		t.Fatalf("%v admitted in the place of a pod that is about to be scheduled again", got)
	}
	s.open(t, wl, "opened")
}

// At a restart the claims may be known before the pods that have them, so more is
// promised than is needed, or less than all. What nobody needs is given up.
func TestPlacesFoundBeforeThePodsWereKnownAreGivenUp(t *testing.T) {
	s := newStage(t, 3)
	wl := s.workload("runs", 2, true)
	s.given(wl, "one", "n1", "gpu-0")
	s.given(wl, "two", "n1", "gpu-1")
	s.decide()
	// One card was left, and is promised for one pod of two.
	s.pod(wl, "one", "n1", false)
	s.pod(wl, "two", "n1", false)
	s.decide()
	s.workload("late", 1, false)
	if got := s.admits(); len(got) != 1 || got[0] != "late" {
		t.Fatalf("admitted %v, want late: %s", got, s.why("late"))
	}
}

// An admission that was taken back here shows up in the API after all.
func TestAnAdmissionThatComesAfterItWasTakenBackHasItsPlace(t *testing.T) {
	s := newStage(t, 1)
	wl := s.workload("slow", 1, false)
	if got := s.admits(); len(got) != 1 {
		t.Fatal(got)
	}
	s.failed(workloadID("team", wl.Name), time.Time{})
	s.workload("slow", 1, true)
	s.workload("late", 1, false)
	if got := s.admits(); len(got) > 0 {
		t.Fatalf("%v admitted in the place of one that holds quota", got)
	}
}

// named is a claim by name for one card, with its ticket, and the Workload that
// holds quota for it.
func (s *stage) named(name string) (*resourceapi.ResourceClaim, *kueue.Workload) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name), ResourceVersion: s.next()}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu.sluice.dev", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
	}}}
	wl := s.workload("holder", 1, true).DeepCopy()
	s.lost(wl)
	wl.Name, wl.UID, wl.ResourceVersion = nameOf(claimWorkload(claim)).Name, types.UID("holder of "+name), s.next()
	wl.OwnerReferences = []metav1.OwnerReference{{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim", Name: name, UID: types.UID(name), Controller: ptr.To(true)}}
	wl.Spec.PodSets[0].Template.Spec = holder(name)
	claim.Annotations = map[string]string{ticket.ByWorkload: wl.Name}
	s.saw(claim.DeepCopy())
	s.saw(wl)
	return claim, wl
}

// A claim by name that had its ticket is allocated while the new controller only
// watches: the place that was kept for it is free again.
func TestAfterARestartAPlaceIsNotKeptForAClaimThatIsAllocated(t *testing.T) {
	s := newStage(t, 2)
	claim, wl := s.named("shared")
	s.decide()
	s.workload("first", 1, false)
	if got := s.admits(); len(got) != 1 || got[0] != "first" {
		t.Fatalf("admitted %v, want first: %s", got, s.why("first"))
	}
	s.workload("late", 1, false)
	if got := s.admits(); len(got) > 0 {
		t.Fatalf("%v admitted in the place of the claim", got)
	}
	s.node("n2", 1)
	s.given(wl, "other", "n2", "gpu-0") // makes the allocation
	claim.Status.Allocation = s.claims[types.NamespacedName{Namespace: "team", Name: "other"}].Status.Allocation
	s.takenBack("other")
	claim.ResourceVersion = s.next()
	s.saw(claim.DeepCopy())
	if got := s.admits(); len(got) != 1 || got[0] != "late" {
		t.Fatalf("admitted %v, want late: %s", got, s.why("late"))
	}
	s.workload("last", 1, false)
	if got := s.admits(); len(got) > 0 {
		t.Fatalf("%v admitted although every card is taken", got)
	}
}

// The scheduler could not bind the pod that a claim by name was allocated for, and
// gives its devices back. The pod will come again; nobody is admitted in its place.
// Where no pod needs the claim any more, its place is free.
func TestThePlaceOfANamedClaimThatIsNeededAgainIsKept(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		kept   bool
	}{
		"by a pod that was not bound": {func(*corev1.Pod) {}, true},
		"by nobody":                   {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 1)
			claim, wl := s.named("shared")
			s.decide()
			s.given(wl, "other", "n1", "gpu-0") // makes the allocation
			given := claim.DeepCopy()
			given.Status.Allocation = s.claims[types.NamespacedName{Namespace: "team", Name: "other"}].Status.Allocation
			s.takenBack("other")
			given.ResourceVersion = s.next()
			s.saw(given)
			s.decide()
			user := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "user", UID: "user", ResourceVersion: s.next()}}
			user.Spec = holder("shared")
			test.change(user)
			s.saw(user)
			s.workload("late", 1, false)
			if got := s.admits(); len(got) > 0 {
				t.Fatalf("%v admitted on the card of the claim", got)
			}
			claim.ResourceVersion = s.next()
			s.saw(claim.DeepCopy())
			if got := s.admits(); (len(got) == 0) != test.kept {
				t.Errorf("admitted %v", got)
			}
		})
	}
}
