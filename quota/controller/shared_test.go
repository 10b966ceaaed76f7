package controller_test

import (
	"testing"
	"time"

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

// A pod that is admitted before the claim which it shares does not put the claim on a
// node of another flavor, where it would wait without end.
func TestAPodDoesNotDecideWhereTheClaimItSharesGoes(t *testing.T) {
	w := newWorld(t)
	w.node(t, "a", 1, "80Gi", "", map[string]string{"zone": "a"})
	// Of all nodes this one has the hole that fits best.
	w.node(t, "b", 1, "30Gi", "", map[string]string{"zone": "b"})
	a, b := w.flavor(t, "a", map[string]string{"zone": "a"}), w.flavor(t, "b", map[string]string{"zone": "b"})
	w.queue(t, "pods", b, "nvidia.com/gpu-memory=0")
	w.start(t)
	claim := w.claim("shared", "30Gi")
	claim.Labels = map[string]string{controller.QueueLabel: "queue-claims"}
	w.create(t, claim)
	p := gated(withClaim(pod("p", "queue-pods"), "shared"))
	w.create(t, p)
	w.becomes(t, p, "is admitted", holdsQuota)
	holds(t, time.Second, "no quota for the claim", w.unbound("p"))
	queue := w.queue(t, "claims", a, "nvidia.com/gpu-memory=30Gi")
	if on := w.bound(t, "p").Spec.NodeName; on != w.ns+"-a" {
		t.Errorf("the pod is on %s", on)
	}
	w.usage(t, queue, "nvidia.com/gpu-memory=30Gi")
}
