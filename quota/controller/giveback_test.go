package controller

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/sluice-gpu/sluice/quota/ticket"
)

// member is a pod of the Workload of equipped that runs.
func runningMember(uid types.UID, phase corev1.PodPhase) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: string(uid), UID: uid, ResourceVersion: "800"}}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "j", UID: "j", Controller: ptr.To(true)}}
	p.Spec.NodeName, p.Status.Phase = "n1", phase
	return p
}

// Nothing is given back that a pod has, is about to have, or had a moment ago: and
// what is about to be given back buys no ticket, although the API does not show it
// yet.
func TestOnlyWhatNobodyHasIsGivenBack(t *testing.T) {
	c, wl := equipped(t)
	c.caughtUp = true
	id := workloadID("team", wl.Name)
	for _, p := range []*corev1.Pod{runningMember("a", corev1.PodRunning), runningMember("b", corev1.PodSucceeded)} {
		c.placePodFact(p)
		// The Job is not known here: its pods are put under the Workload by hand.
		f := c.pods[p.UID]
		f.workload, f.set = id, mainSet
		if c.podsOf[id] == nil {
			c.podsOf[id] = map[types.UID]*podFact{}
		}
		c.podsOf[id][p.UID] = f
	}
	devices := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "of-b", UID: "of-b", ResourceVersion: "801"}}
	devices.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "b", UID: "b", Controller: ptr.To(true)}}
	tick, err := c.ticketFor(asks("of-b", "b", 1), wl, wl.Status.Admission, mainSet, "n1")
	if err != nil || tick == nil {
		t.Fatal(tick, err)
	}
	devices.Annotations = tick.Annotations()
	c.saw(devices)
	if !ticket.Has(devices.Annotations) {
		t.Fatal("no ticket")
	}
	give := func(left int32, want int32, wantLess bool) {
		t.Helper()
		all, less := c.giveBack(wl, map[string]int32{mainSet: left})
		got := int32(0)
		if len(all) == 1 {
			got = all[0].Count
		}
		if got != want || less != wantLess {
			t.Errorf("of 2 with %d left: %d given back, more later %v; want %d, %v", left, got, less, want, wantLess)
		}
	}
	give(2, 0, false)
	// Pod b has done its work, and its device is not free yet.
	give(1, 0, true)
	if _, err := c.ticketFor(asks("c", "c", 1), wl, wl.Status.Admission, mainSet, "n1"); err != nil {
		t.Errorf("nothing is given back, and no ticket is granted: %v", err)
	}
	c.written(id, asks("c", "c", 1))
	c.lost(devices)
	give(1, 1, false)
	// Written or not, that part buys nothing more.
	if _, err := c.ticketFor(asks("of-a", "a", 1), wl, wl.Status.Admission, mainSet, "n1"); err != nil {
		t.Errorf("the pod that is left: %v", err)
	}
	var over *overError
	if _, err := c.ticketFor(asks("c", "c", 1), wl, wl.Status.Admission, mainSet, "n1"); !errors.As(err, &over) {
		t.Errorf("a ticket beyond what is kept: %v", err)
	}
	// It is never taken again.
	give(2, 1, false)
}
