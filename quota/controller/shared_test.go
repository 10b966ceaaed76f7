package controller_test

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
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

// A pod that names no queue follows the claim that it uses. One that was made before
// the claim cannot: it is on no node of its flavor, hangs, and reads what to do.
func TestAPodWithoutAQueueFollowsTheClaimItUsesOrReadsWhyNot(t *testing.T) {
	w := newWorld(t)
	w.node(t, "a", 1, "80Gi", "", map[string]string{"zone": "a"})
	w.node(t, "b", 1, "80Gi", "", map[string]string{"zone": "b"})
	taint := []byte(`{"spec":{"taints":[{"key":"nvidia.com/gpu","value":"true","effect":"NoSchedule"}]}}`)
	if err := w.client.Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.ns + "-a"}}, client.RawPatch("application/merge-patch+json", taint)); err != nil {
		t.Fatal(err)
	}
	flavor := w.flavor(t, "a", map[string]string{"zone": "a"}, corev1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists})
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu-memory=60Gi")
	w.serveWebhook(t, w.start(t))
	unnamed := func(name, claim string) *corev1.Pod {
		p := withClaim(pod(name, ""), claim)
		p.Labels = nil
		return p
	}
	labelled := func(name string) *resourceapi.ResourceClaim {
		claim := w.claim(name, "30Gi")
		claim.Labels = map[string]string{controller.QueueLabel: "queue-q"}
		return claim
	}
	w.create(t, labelled("shared"))
	w.seen(t, "shared")
	w.create(t, unnamed("one", "shared"))
	w.create(t, unnamed("two", "shared"))
	for _, name := range []string{"one", "two"} {
		p := w.bound(t, name)
		if p.Labels[controller.QueueLabel] != "queue-q" || p.Spec.NodeName != w.ns+"-a" {
			t.Errorf("pod %s has labels %v and is on %s", name, p.Labels, p.Spec.NodeName)
		}
	}
	w.usage(t, queue, "nvidia.com/gpu-memory=30Gi")

	early := unnamed("early", "later")
	w.create(t, early)
	w.create(t, labelled("later"))
	w.hears(t, "early", "NotGoverned", "with the label kueue.x-k8s.io/queue-name: queue-q")
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(early), early); err != nil || early.Spec.NodeName != "" {
		t.Errorf("on node %q, %v", early.Spec.NodeName, err)
	}
	// What it reads is what helps.
	if err := w.client.Delete(t.Context(), early, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	w.create(t, withClaim(pod("again", "queue-q"), "later"))
	w.bound(t, "again")
	w.usage(t, queue, "nvidia.com/gpu-memory=60Gi")
}

// seen waits until the webhook knows a claim: a pod that uses it is put into its
// queue.
func (w *world) seen(t *testing.T, claim string) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, "the webhook knows claim "+claim, func(ctx context.Context) error {
		p := withClaim(pod("probe", ""), claim)
		p.Namespace, p.Labels = w.ns, nil
		if err := w.client.Create(ctx, p, client.DryRunAll); err != nil {
			return err
		}
		if p.Labels[controller.QueueLabel] == "" {
			return errors.New("it names no queue")
		}
		return nil
	})
}
