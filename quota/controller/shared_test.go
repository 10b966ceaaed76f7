package controller_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gpu/sluice/quota/controller"
)

// TestPodsOfASharedClaimGoWhereItsFlavorIs: they are charged nothing for it, and
// its nodes are tainted.
func TestPodsOfASharedClaimGoWhereItsFlavorIs(t *testing.T) {
	w := newWorld(t)
	node := w.node(t, "n1", 1, "80Gi", "", nil)
	taint := []byte(`{"spec":{"taints":[{"key":"nvidia.com/gpu","value":"true","effect":"NoSchedule"}]}}`)
	n := &corev1.Node{}
	n.Name = node
	if err := w.client.Patch(t.Context(), n, client.RawPatch("application/merge-patch+json", taint)); err != nil {
		t.Fatal(err)
	}
	flavor := w.flavor(t, "gpu", nil, corev1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists})
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu-memory=30Gi")
	w.start(t)
	claim := w.claim("shared", "30Gi")
	claim.Labels = map[string]string{controller.QueueLabel: "queue-q"}
	w.create(t, gated(withClaim(pod("early", "queue-q"), "shared")))
	w.create(t, claim)
	w.create(t, gated(withClaim(pod("late", "queue-q"), "shared")))
	w.bound(t, "early")
	w.bound(t, "late")
	w.usage(t, queue, "nvidia.com/gpu-memory=30Gi")
}
