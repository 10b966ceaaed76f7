package controller_test

import (
	"context"
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// drain evicts everything that a queue has admitted.
func (w *world) drain(t *testing.T, queue string) {
	t.Helper()
	patch := []byte(`{"spec":{"stopPolicy":"HoldAndDrain"}}`)
	if err := w.client.Patch(t.Context(), &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: queue}}, client.RawPatch("application/merge-patch+json", patch)); err != nil {
		t.Fatal(err)
	}
}

func TestNobodyEscapesAnEvictionByABrokenAnnotation(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu-memory=10Gi")
	w.template(t, "t", "10Gi", "")
	w.start(t)
	j := claimingJob("train", "t", 1)
	w.create(t, j)
	w.allBound(t, "train", 1)
	// The policies refuse this to tenants; here it has happened all the same.
	past, err := client.New(w.As(account, "system:masters"), client.Options{Scheme: controller.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	broken := []byte(`{"metadata":{"annotations":{"quota.sluice.dev/original-templates":"broken"}}}`)
	if err := past.Patch(t.Context(), j, client.RawPatch("application/merge-patch+json", broken)); err != nil {
		t.Fatal(err)
	}
	w.drain(t, queue)
	apitest.Eventually(t, apitest.Patience, "job suspended", func(ctx context.Context) error {
		now := &batchv1.Job{}
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(j), now); err != nil {
			return err
		}
		if !ptr.Deref(now.Spec.Suspend, false) {
			return fmt.Errorf("it runs on")
		}
		return nil
	})
}

func TestAnEvictedPodThatItsJobHasLostIsDeleted(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu-memory=10Gi")
	w.template(t, "t", "10Gi", "")
	w.start(t)
	w.create(t, claimingJob("train", "t", 1))
	lost := w.allBound(t, "train", 1)[0]
	// No owner, and no label by which the job would adopt it again.
	patch := []byte(`{"metadata":{"ownerReferences":null,"finalizers":null,"labels":{"app":"lost","controller-uid":"x","batch.kubernetes.io/controller-uid":"x"}}}`)
	if err := w.client.Patch(t.Context(), &lost, client.RawPatch("application/merge-patch+json", patch)); err != nil {
		t.Fatal(err)
	}
	w.drain(t, queue)
	apitest.Eventually(t, apitest.Patience, "the lost pod told to go", func(ctx context.Context) error {
		now := &corev1.Pod{}
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(&lost), now); err != nil {
			return client.IgnoreNotFound(err)
		}
		if now.DeletionTimestamp == nil {
			return fmt.Errorf("it runs on")
		}
		return nil
	})
	if err := w.client.Delete(t.Context(), &lost, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	w.usage(t, queue, "nvidia.com/gpu-memory=0")
}
