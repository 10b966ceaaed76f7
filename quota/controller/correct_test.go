package controller_test

import (
	"context"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

// TestTheDearestIsChargedUntilTheAllocationIsKnown: a flavor has a small and a
// large card, and whoever asks for a card may get either.
func TestTheDearestIsChargedUntilTheAllocationIsKnown(t *testing.T) {
	w := newWorld(t)
	small := w.node(t, "small", 1, "24Gi", "", nil)
	w.node(t, "large", 1, "80Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu-memory=110Gi", "nvidia.com/gpu-core-percent=200", "quota.sluice.dev/cards=2")
	w.template(t, "card", "", "")
	w.start(t)

	w.create(t, gated(withTemplate(pod("first", "queue-q"), "card")))
	first := w.bound(t, "first")
	if first.Spec.NodeName != small {
		t.Fatalf("on %s, want the small card", first.Spec.NodeName)
	}
	// A whole card says that it consumes no cores; nobody else can use them.
	w.usage(t, queue, "nvidia.com/gpu-memory=24Gi", "nvidia.com/gpu-core-percent=100", "quota.sluice.dev/cards=1")

	// What was charged beyond it is free: 24Gi and 80Gi fit in 110Gi.
	w.create(t, gated(withTemplate(pod("second", "queue-q"), "card")))
	w.bound(t, "second")
	w.usage(t, queue, "nvidia.com/gpu-memory=104Gi", "nvidia.com/gpu-core-percent=200", "quota.sluice.dev/cards=2")

	// The ticket went down with the charge.
	apitest.Eventually(t, apitest.Patience, "tickets for what is charged", func(ctx context.Context) error {
		sum, err := w.tickets(ctx)
		if err == nil && (sum.Memory != 104<<30 || sum.Cores != 200) {
			err = fmt.Errorf("tickets for %v", sum)
		}
		return err
	})

	// Another replica reads the same from the API.
	w.halt()
	w.start(t)
	w.usage(t, queue, "nvidia.com/gpu-memory=104Gi", "nvidia.com/gpu-core-percent=200")
	w.end(t, first)
	w.usage(t, queue, "nvidia.com/gpu-memory=80Gi", "nvidia.com/gpu-core-percent=100")
}

func TestANamedClaimIsCorrectedToo(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "40Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu-memory=60Gi")
	// Only the last alternative has room beside those that are there already.
	w.template(t, "ten", "10Gi", "")
	claim := &resourceapi.ResourceClaim{}
	claim.Name = "either"
	exact := claimSpec("20Gi", "").Devices.Requests[0].Exactly
	less := claimSpec("5Gi", "").Devices.Requests[0].Exactly
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "more", DeviceClassName: exact.DeviceClassName, AllocationMode: exact.AllocationMode, Count: 2, Capacity: exact.Capacity},
		{Name: "much", DeviceClassName: exact.DeviceClassName, AllocationMode: exact.AllocationMode, Count: 1, Capacity: exact.Capacity},
		{Name: "less", DeviceClassName: less.DeviceClassName, AllocationMode: less.AllocationMode, Count: 1, Capacity: less.Capacity},
	}}}
	w.start(t)
	for _, name := range []string{"a", "b", "c"} {
		w.create(t, gated(withTemplate(pod(name, "queue-q"), "ten")))
		w.bound(t, name)
	}
	w.create(t, claim)
	p := gated(withClaim(pod("p", "queue-q"), "either"))
	w.create(t, p)
	w.bound(t, "p")
	w.usage(t, queue, "nvidia.com/gpu-memory=35Gi")
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
		t.Fatal(err)
	}
	// Its next user, if it is deallocated before it is released, gets no more.
	if tick, err := ticket.Read(claim.Annotations); err != nil || tick == nil || tick.Memory != 5<<30 {
		t.Errorf("%+v, %v", tick, err)
	}
}
