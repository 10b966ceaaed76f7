package testbed

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RestartQuota kills the quota controller's pods without grace, as a crash does, and waits until
// new ones are ready.
func (b *Testbed) RestartQuota(ctx context.Context) error {
	selector := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=quota"}
	err := b.Client.CoreV1().Pods(SystemNamespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, selector)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	return Until(ctx, "a new quota controller", func() (bool, string, error) {
		deployment, err := b.Client.AppsV1().Deployments(SystemNamespace).Get(ctx, "sluice-quota", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		status := deployment.Status
		if status.ObservedGeneration < deployment.Generation {
			return false, "not seen yet", nil
		}
		if deployment.Spec.Replicas == nil {
			return false, "", errors.New("the deployment has no replicas field")
		}
		pods, err := b.Client.CoreV1().Pods(SystemNamespace).List(ctx, selector)
		if err != nil {
			return false, "", err
		}
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp != nil {
				return false, pod.Name + " is not gone yet", nil
			}
		}
		return status.ReadyReplicas == *deployment.Spec.Replicas, fmt.Sprintf("%d ready", status.ReadyReplicas), nil
	})
}
