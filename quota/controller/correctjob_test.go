package controller_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// TestAJobThatReplacesNoPodPaysForWhatItGot: a small and a large card in a flavor,
// one Job that tries again and one that does not. What the second pays less is
// known; of the first, the next pod may be on the large card, and has to run.
func TestAJobThatReplacesNoPodPaysForWhatItGot(t *testing.T) {
	w := newWorld(t)
	small := w.node(t, "small", 1, "24Gi", "", nil)
	large := w.node(t, "large", 1, "80Gi", "", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu-memory=160Gi")
	w.template(t, "card", "", "")
	c := w.start(t)
	w.serveWebhook(t, c)
	claims := withTemplate(pod("x", ""), "card").Spec

	again := job("again", "queue-q", 1, "")
	again.Spec.Template.Spec.ResourceClaims, again.Spec.Template.Spec.Containers = claims.ResourceClaims, claims.Containers
	w.create(t, again)
	first := w.allBound(t, "again", 1)[0]
	if first.Spec.NodeName != small {
		t.Fatalf("on %s, want the small card", first.Spec.NodeName)
	}
	cordon := func(on bool) {
		patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, on)
		if err := w.client.Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: small}}, client.RawPatch("application/merge-patch+json", patch)); err != nil {
			t.Fatal(err)
		}
	}
	cordon(true)
	if err := w.client.Status().Patch(t.Context(), &first, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"phase":"Failed"}}`))); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, apitest.Patience, "its next pod is on the large card", func(ctx context.Context) error {
		for _, p := range w.podsOf(t, ctx, "again") {
			if p.Spec.NodeName == large {
				return nil
			}
		}
		return errors.New("not yet")
	})
	cordon(false)
	w.usage(t, queue, "nvidia.com/gpu-memory=80Gi")

	once := job("once", "queue-q", 1, "")
	once.Spec.BackoffLimit = ptr.To[int32](0)
	once.Spec.Template.Spec.ResourceClaims, once.Spec.Template.Spec.Containers = claims.ResourceClaims, claims.Containers
	w.create(t, once)
	w.allBound(t, "once", 1)
	w.usage(t, queue, "nvidia.com/gpu-memory=104Gi")
	apitest.Eventually(t, apitest.Patience, "tickets for what is charged", func(ctx context.Context) error {
		sum, err := w.tickets(ctx)
		if err == nil && sum.Memory != 104<<30 {
			err = fmt.Errorf("tickets for %v", sum)
		}
		return err
	})
}
