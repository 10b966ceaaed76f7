package controller

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

func podVersion(uid, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: types.UID(uid), ResourceVersion: version}}
}

func TestAPodIsNotLookedAtForWhatWasWrittenHere(t *testing.T) {
	c := loaded(t)
	passes := func(uid, version string) bool {
		return c.others().Update(event.UpdateEvent{ObjectOld: podVersion(uid, "1"), ObjectNew: podVersion(uid, version)})
	}
	c.wrote(podVersion("a", "7"))
	if passes("a", "7") {
		t.Error("what was written here brings the pod back")
	}
	for _, other := range [][2]string{{"a", "6"}, {"a", "8"}, {"b", "7"}} {
		if !passes(other[0], other[1]) {
			t.Errorf("version %s of pod %s is another's, and nobody looks", other[1], other[0])
		}
	}
	for i := range mostEchoes {
		c.wrote(podVersion("x", fmt.Sprint(100+i)))
	}
	if len(c.echoes.known) > mostEchoes || !passes("a", "7") {
		t.Errorf("%d versions are remembered, %d at the most", len(c.echoes.known), mostEchoes)
	}
}

// A patch that finds done what it is for is answered with the version that is there,
// which may be the scheduler's: it has no room for the pod, or the pod has ended.
func TestAPodIsLookedAtForWhatOthersWroteBeforeAPatchThatChangedNothing(t *testing.T) {
	c := loaded(t)
	for name, test := range map[string]struct {
		write func(*corev1.Pod)
		looks bool
	}{
		"its gate": {func(p *corev1.Pod) {
			p.Spec.SchedulingGates, p.Spec.NodeSelector = nil, map[string]string{"a": "b"}
			p.Status.NominatedNodeName = "n1"
		}, false},
		"the scheduler has no room": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		}, true},
		"it is on a node":       {func(p *corev1.Pod) { p.Spec.NodeName = "n1" }, true},
		"it has ended":          {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, true},
		"it is on its way out":  {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, true},
		"its claims have names": {func(p *corev1.Pod) { p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu"}} }, true},
	} {
		before, now := podVersion("a", "6"), podVersion("a", "7")
		before.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: Gate}}
		test.write(now)
		c.wrote(now)
		if got := c.others().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: now}); got != test.looks {
			t.Errorf("%s: looked at: %v", name, got)
		}
	}
}

func TestPodsAreLookedAtForWhatTheirWorkloadWasGivenAndNotForItsReasons(t *testing.T) {
	waiting := func(change func(*kueue.Workload)) *kueue.Workload {
		wl := (&api{uid: "u"}).next(nil)
		if change != nil {
			change(wl)
		}
		return wl
	}
	admittedOne := waiting(func(wl *kueue.Workload) { wl.Status.Admission = grant("q", 1) })
	for _, test := range []struct {
		name     string
		old, now *kueue.Workload
		want     bool
	}{
		{"it was made", nil, waiting(nil), false},
		{"it was found admitted", nil, admittedOne, true},
		{"it was found evicted", nil, waiting(func(wl *kueue.Workload) {
			wl.Status.Conditions = []metav1.Condition{{Type: evicted, Status: metav1.ConditionTrue}}
		}), true},
		{"another reason to wait", waiting(nil), waiting(func(wl *kueue.Workload) {
			wl.Status.Conditions = []metav1.Condition{{Type: reserved, Status: metav1.ConditionFalse, Message: "no"}}
		}), false},
		{"admitted", waiting(nil), admittedOne, true},
		{"released", admittedOne, waiting(nil), true},
		{"finished", waiting(nil), waiting(func(wl *kueue.Workload) {
			wl.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadFinished, Status: metav1.ConditionTrue}}
		}), true},
		{"its spec", waiting(nil), waiting(func(wl *kueue.Workload) { wl.Generation++ }), true},
		{"its owners", waiting(nil), waiting(func(wl *kueue.Workload) { wl.OwnerReferences = nil }), true},
		{"its annotations", waiting(nil), waiting(func(wl *kueue.Workload) { wl.Annotations = map[string]string{"a": "b"} }), true},
		{"made again", waiting(nil), waiting(func(wl *kueue.Workload) { wl.UID = "other" }), true},
		{"being deleted", waiting(nil), waiting(func(wl *kueue.Workload) { wl.DeletionTimestamp = &metav1.Time{} }), true},
	} {
		got := false
		if test.old == nil {
			got = forPods.Create(event.CreateEvent{Object: test.now})
		} else {
			got = forPods.Update(event.UpdateEvent{ObjectOld: test.old, ObjectNew: test.now})
		}
		if got != test.want {
			t.Errorf("%s: pods are looked at: %v", test.name, got)
		}
	}
	if !forPods.Delete(event.DeleteEvent{Object: waiting(nil)}) {
		t.Error("pods are not looked at when their Workload is gone")
	}
}

// ownClaim is a version of the claim that was made for a pod.
func ownClaim(pod, version string, annotations map[string]string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: pod, UID: types.UID("claim-" + pod), ResourceVersion: version, Annotations: annotations,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID(pod), Controller: ptr.To(true)}},
	}}
}

// listens lists the Workloads that were to be looked at since it was asked last.
func (s *stage) listens() (told func() []engine.WorkloadID) {
	var all []engine.WorkloadID
	s.tell = func(id engine.WorkloadID) { all = append(all, id) }
	return func() []engine.WorkloadID {
		now := all
		all = nil
		return now
	}
}

func TestAWorkloadThatRunsIsNotLookedAtForTicketsAndGatesOfItsPods(t *testing.T) {
	s := newStage(t, 2)
	wl := s.workload("runs", 1, true)
	s.pod(wl, "p", "", true)
	s.decide()
	told := s.listens()

	s.saw(ownClaim("p", s.next(), nil))
	s.saw(ownClaim("p", s.next(), map[string]string{ticket.ByWorkload: wl.Name}))
	s.pod(wl, "p", "", false)
	if got := told(); len(got) > 0 {
		t.Errorf("for its ticket and its gate %v is looked at", got)
	}
	s.pod(wl, "p", "n1", false)
	if got := told(); len(got) == 0 {
		t.Error("it is not looked at when its pod is on a node")
	}
	s.given(wl, "p", "n1", "gpu-0")
	if got := told(); len(got) == 0 {
		t.Error("it is not looked at when its pod has its devices")
	}
}

// What a workload has that is about to lose its quota keeps it from being released,
// and has to be taken back.
func TestAWorkloadThatDoesNotRunIsLookedAtForEachTicket(t *testing.T) {
	for _, conditions := range [][]string{{reserved, admittedCondition, evicted}, {reserved}, {}} {
		s := newStage(t, 2)
		wl := s.workload("w", 1, false).DeepCopy()
		wl.ResourceVersion = s.next()
		if len(conditions) > 0 {
			wl.Status.Admission = grant("q", 1)
		}
		for _, kind := range conditions {
			wl.Status.Conditions = append(wl.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue})
		}
		s.saw(wl)
		s.pod(wl, "p", "", true)
		s.saw(ownClaim("p", s.next(), nil))
		told := s.listens()
		s.saw(ownClaim("p", s.next(), map[string]string{ticket.ByWorkload: wl.Name}))
		if got := told(); len(got) == 0 {
			t.Errorf("%v: a ticket appears, and nobody looks", conditions)
		}
		s.pod(wl, "p", "", false)
		if got := told(); len(got) == 0 {
			t.Errorf("%v: a gate is open, and nobody looks", conditions)
		}
	}
}
