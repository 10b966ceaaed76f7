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

func TestALabelledPodGoesFromGateToDeviceAndBack(t *testing.T) {
	w := newWorld(t)
	node := w.node(t, "n1", 2, "80Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu=8", "nvidia.com/gpu-memory=100Gi", "nvidia.com/gpu-core-percent=300")
	w.template(t, "half", "20Gi", "50")
	c := w.start(t)
	w.serveWebhook(t, c)

	p := withTemplate(pod("one", "queue-q"), "half")
	w.create(t, p)
	got := w.bound(t, "one")
	if got.Spec.NodeName != node || got.Spec.NodeSelector["team"] != w.ns {
		t.Errorf("on %s with selector %v", got.Spec.NodeName, got.Spec.NodeSelector)
	}
	w.usage(t, queue, "nvidia.com/gpu=1", "nvidia.com/gpu-memory=20Gi", "nvidia.com/gpu-core-percent=50")

	w.end(t, got)
	w.usage(t, queue, "nvidia.com/gpu=0", "nvidia.com/gpu-memory=0", "nvidia.com/gpu-core-percent=0")
}

func TestABudgetThatIsUsedUpMakesTheNextWaitUntilItIsFree(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 2, "80Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu-memory=60Gi")
	w.template(t, "forty", "40Gi", "")
	w.start(t)

	w.create(t, gated(withTemplate(pod("first", "queue-q"), "forty")))
	first := w.bound(t, "first")
	second := gated(withTemplate(pod("second", "queue-q"), "forty"))
	w.create(t, second)
	w.waits(t, second, "40Gi")
	w.usage(t, queue, "nvidia.com/gpu-memory=40Gi")
	w.end(t, first)
	w.bound(t, "second")
	w.usage(t, queue, "nvidia.com/gpu-memory=40Gi")
}

func TestAnExtendedResourceClaimIsBornWithItsTicket(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80000Mi", "20000Mi", nil)
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu=4")
	c := w.start(t)
	w.serveWebhook(t, c)

	w.create(t, withLimit(pod("one", "queue-q"), "1"))
	w.bound(t, "one")
	w.usage(t, queue, "nvidia.com/gpu=1")
	var claims resourceapi.ResourceClaimList
	if err := w.client.List(t.Context(), &claims, client.InNamespace(w.ns)); err != nil || len(claims.Items) != 1 {
		t.Fatalf("%v: %d claims", err, len(claims.Items))
	}
	tick, err := ticket.Read(claims.Items[0].Annotations)
	if err != nil || tick == nil || tick.Memory != 20000<<20 {
		t.Errorf("ticket %+v, %v", tick, err)
	}
}

func TestAPodThatSlippedInIsRefusedUntilItIsAdopted(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	w.template(t, "t", "10Gi", "")
	// No queue yet, and no webhook: the pod comes in ungated.
	w.start(t)
	p := withTemplate(pod("slipped", "queue-q"), "t")
	w.create(t, p)
	apitest.Eventually(t, apitest.Patience, "the scheduler is refused", func(ctx context.Context) error {
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		if p.Spec.NodeName != "" {
			t.Fatal("it got its device without a ticket")
		}
		for _, c := range p.Status.Conditions {
			if c.Type == "PodScheduled" && c.Message != "" {
				return nil
			}
		}
		return fmt.Errorf("no word from the scheduler")
	})
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu-memory=60Gi")
	w.bound(t, "slipped")
	w.usage(t, queue, "nvidia.com/gpu-memory=10Gi")
}
