package controller

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// equipped is a core with a node of four cards of 10Gi, and a Workload of two
// pods that was admitted with one device each.
func equipped(t *testing.T) (*core, *kueue.Workload) {
	t.Helper()
	c := loaded(t)
	c.synced = true
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.sluice.dev"}}
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.sluice.dev"`}}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	slice.Spec = resourceapi.ResourceSliceSpec{Driver: "gpu.sluice.dev", NodeName: ptr.To("n1"), Pool: resourceapi.ResourcePool{Name: "n1", ResourceSliceCount: 1}}
	for _, name := range []string{"gpu-0", "gpu-1", "gpu-2", "gpu-3"} {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
			Name: name, AllowMultipleAllocations: ptr.To(true),
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				"memory": {Value: resource.MustParse("10Gi")}, "cores": {Value: resource.MustParse("100")}},
		})
	}
	wl := (&api{uid: "u"}).next(grant("q", 2), kueue.WorkloadQuotaReserved, kueue.WorkloadAdmitted)
	wl.Spec.PodSets[0].Count = 2
	wl.Status.Admission.PodSetAssignments[0].Count = ptr.To[int32](2)
	for _, o := range []any{&kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}, class, node, slice, wl} {
		c.saw(o)
	}
	// The request is not known; what the queue covers is.
	c.works["team/w"].asked = map[string][]resourceapi.DeviceClaim{}
	return c, wl
}

func asks(claim, pod types.UID, count int64) claimRequest {
	return claimRequest{claim: claim, slot: pod, devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.sluice.dev", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count},
	}}}}
}

func TestTicketsThatAreBeingWrittenCount(t *testing.T) {
	c, wl := equipped(t)
	now := time.Unix(1000, 0)
	c.now = func() time.Time { return now }
	give := func(ask claimRequest) error {
		tick, err := c.ticketFor(ask, wl, wl.Status.Admission, mainSet, "n1")
		if err == nil && tick == nil {
			t.Fatalf("claim %s costs nothing", ask.claim)
		}
		return err
	}
	refused := func(err error, passing bool) {
		t.Helper()
		var over *overError
		if !errors.As(err, &over) || over.passing != passing {
			t.Fatalf("refused with %v, passing %v wanted", err, passing)
		}
	}
	refused(give(asks("a", "pod-a", 2)), false)
	for _, ask := range []claimRequest{asks("a", "pod-a", 1), asks("a", "pod-a", 1), asks("b", "pod-b", 1)} {
		if err := give(ask); err != nil {
			t.Fatal(err)
		}
	}
	refused(give(asks("a2", "pod-a", 1)), false)
	refused(give(asks("c", "pod-c", 1)), true)
	// It was not written after all.
	c.written("team/w", asks("b", "pod-b", 1))
	if err := give(asks("c", "pod-c", 1)); err != nil {
		t.Fatal(err)
	}
	// Seen, it counts once, however long ago it was written.
	seen := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a", UID: "a", ResourceVersion: "900"}}
	tick, err := c.ticketFor(asks("a", "pod-a", 1), wl, wl.Status.Admission, mainSet, "n1")
	if err != nil {
		t.Fatal(err)
	}
	seen.Annotations = tick.Annotations()
	c.saw(seen)
	now = now.Add(2 * unseen)
	if err := give(asks("d", "pod-d", 1)); err != nil {
		t.Fatal(err)
	}
	refused(give(asks("e", "pod-e", 1)), true)
}

// The scheduler's claim has no UID when it gets its ticket, and it may come and
// go before another ticket is asked for.
func TestATicketOfABornClaimEndsWithTheClaim(t *testing.T) {
	c, wl := equipped(t)
	for _, pod := range []types.UID{"pod-a", "pod-b", "pod-c", "pod-d"} {
		tick, err := c.ticketFor(asks(pod, pod, 1), wl, wl.Status.Admission, mainSet, "n1")
		if err != nil {
			t.Fatal(err)
		}
		born := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "of-" + string(pod), UID: "of-" + pod, ResourceVersion: "900"}}
		born.Annotations = tick.Annotations()
		born.Annotations[resourceapi.ExtendedResourceClaimAnnotation] = "true"
		born.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", UID: pod, Controller: ptr.To(true)}}
		c.saw(born)
		c.lost(born)
	}
}

func TestNoTicketBeforeAllThatCarryOneAreKnown(t *testing.T) {
	c, wl := equipped(t)
	c.synced = false
	if tick, err := c.ticketFor(asks("a", "pod-a", 1), wl, wl.Status.Admission, mainSet, "n1"); tick != nil || !errors.Is(err, errWait) {
		t.Errorf("ticket %v, %v", tick, err)
	}
}
