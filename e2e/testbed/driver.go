package testbed

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/cluster"
)

const driverSelector = "app.kubernetes.io/component=driver"

// driverPod finds the driver's pod on the node; nil while there is none.
func (b *Testbed) driverPod(ctx context.Context, node string) (*corev1.Pod, error) {
	pods, err := b.Client.CoreV1().Pods(SystemNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: driverSelector, FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil {
		return nil, err
	}
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp == nil {
			return &pods.Items[i], nil
		}
	}
	return nil, nil
}

// RestartDriver ends the driver's pod on the node and waits until another one is ready.
func (b *Testbed) RestartDriver(ctx context.Context, node string) error {
	old, err := b.driverPod(ctx, node)
	if err != nil {
		return err
	}
	if old == nil {
		return fmt.Errorf("no driver pod on %s", node)
	}
	if err := b.Client.CoreV1().Pods(SystemNamespace).Delete(ctx, old.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	return Until(ctx, "a new driver pod on "+node, func() (bool, string, error) {
		pod, err := b.driverPod(ctx, node)
		if err != nil || pod == nil || pod.UID == old.UID {
			return false, "none yet", err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return true, "", nil
			}
		}
		return false, b.explain(ctx, pod), nil
	})
}

// ContextsCost makes every CUDA context on the node's cards take that much card memory from now on.
// What the driver has learnt of contexts is forgotten, as after an upgrade of the NVIDIA driver. No
// program may use the cards meanwhile.
func (b *Testbed) ContextsCost(ctx context.Context, node string, bytes uint64) error {
	// The driver writes its file when something in it changes, and reads it when it starts.
	script := fmt.Sprintf("sed -i 's/^context_bytes .*/context_bytes %d/' %s/node && rm -f %s", bytes, cluster.HardwareDir,
		"/var/lib/kubelet/plugins/gpu.sluice.dev/context-overhead.json")
	var words strings.Builder
	if err := b.Cluster.NodeExec(ctx, node, nil, &words, &words, "sh", "-c", script); err != nil {
		return fmt.Errorf("contexts of %s to cost %d bytes: %w: %s", node, bytes, err, words.String())
	}
	return b.RestartDriver(ctx, node)
}

// RollDriver replaces the driver's pods on all nodes, as an upgrade does, and waits for the end.
func (b *Testbed) RollDriver(ctx context.Context) error {
	const daemonSet = "daemonset/sluice-driver"
	if _, err := b.Cluster.Kubectl(ctx, "--namespace", SystemNamespace, "rollout", "restart", daemonSet); err != nil {
		return err
	}
	_, err := b.Cluster.Kubectl(ctx, "--namespace", SystemNamespace, "rollout", "status", "--timeout=6m", daemonSet)
	return err
}
