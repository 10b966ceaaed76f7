package controller_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestWhoIsChargedForAnythingIsSentToAFlavor and who is not is left where it may go,
// as with Kueue. A queue that has a quota of pods charges every pod.
func TestWhoIsChargedForAnythingIsSentToAFlavor(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80000Mi", "20000Mi", map[string]string{"gpu-type": "a100"})
	tolerates := corev1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}
	flavor := w.flavor(t, "a100", map[string]string{"gpu-type": "a100"}, tolerates)
	gpus := w.queue(t, "gpus", flavor, "nvidia.com/gpu=4")
	pods := w.queue(t, "pods", flavor, "nvidia.com/gpu=4", "pods=4")
	w.serveWebhook(t, w.start(t))
	w.create(t, withLimit(pod("asks", "queue-gpus"), "1"))
	w.create(t, pod("asks-for-nothing", "queue-gpus"))
	w.create(t, pod("counts", "queue-pods"))
	for name, sent := range map[string]bool{"asks": true, "asks-for-nothing": false, "counts": true} {
		spec := w.bound(t, name).Spec
		if has := spec.NodeSelector["gpu-type"] == "a100" && slices.Contains(spec.Tolerations, tolerates); has != sent {
			t.Errorf("pod %s has selector %v, tolerations %v", name, spec.NodeSelector, spec.Tolerations)
		}
	}
	w.usage(t, gpus, "nvidia.com/gpu=1")
	w.usage(t, pods, "nvidia.com/gpu=0", "pods=1")
}
