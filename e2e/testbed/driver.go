package testbed

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
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

// RollDriver replaces the driver's pods on all nodes, as an upgrade does, and waits for the end.
func (b *Testbed) RollDriver(ctx context.Context) error {
	const daemonSet = "daemonset/sluice-driver"
	if _, err := b.Cluster.Kubectl(ctx, "--namespace", SystemNamespace, "rollout", "restart", daemonSet); err != nil {
		return err
	}
	_, err := b.Cluster.Kubectl(ctx, "--namespace", SystemNamespace, "rollout", "status", "--timeout=3m", daemonSet)
	return err
}
