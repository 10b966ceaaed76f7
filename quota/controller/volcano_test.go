package controller_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

// enqueue lets Volcano's jobs of the namespace have their pods, as its scheduler
// does when its own queue has the capacity.
func (w *world) enqueue(t *testing.T) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, "group of pods in Volcano's queue", func(ctx context.Context) error {
		groups := &unstructured.UnstructuredList{}
		groups.SetAPIVersion("scheduling.volcano.sh/v1beta1")
		groups.SetKind("PodGroupList")
		if err := w.client.List(ctx, groups, client.InNamespace(w.ns)); err != nil {
			return err
		}
		if len(groups.Items) == 0 {
			return fmt.Errorf("none is made")
		}
		for i := range groups.Items {
			if err := w.client.Patch(ctx, &groups.Items[i], client.RawPatch("application/merge-patch+json", []byte(`{"status":{"phase":"Inqueue"}}`))); err != nil {
				return err
			}
		}
		return nil
	})
}

// open counts the pods of a job without a gate, and those of their claims with a
// ticket.
func (w *world) open(t *testing.T, app string, want int) []corev1.Pod {
	t.Helper()
	var all []corev1.Pod
	apitest.Eventually(t, apitest.Patience, fmt.Sprintf("%d pods of %s open", want, app), func(ctx context.Context) error {
		all = nil
		pods := w.podsOf(t, ctx, app)
		for _, p := range pods {
			if !controller.HasGate(&p) && p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded {
				all = append(all, p)
			}
		}
		if len(all) != want {
			return fmt.Errorf("%d of %d", len(all), len(pods))
		}
		return nil
	})
	return all
}

// replaced waits until the open pods of a job were deleted, and all of its pods are
// behind gates.
func (w *world) replaced(t *testing.T, app string, pods int) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, "open pods of "+app+" deleted, others in their place", func(ctx context.Context) error {
		gated := 0
		for _, p := range w.podsOf(t, ctx, app) {
			if controller.HasGate(&p) {
				gated++
				continue
			}
			if p.DeletionTimestamp == nil {
				return fmt.Errorf("pod %s is left alone", p.Name)
			}
			if err := client.IgnoreNotFound(w.client.Delete(ctx, &p, client.GracePeriodSeconds(0))); err != nil {
				return err
			}
		}
		if gated != pods {
			return fmt.Errorf("%d pods behind gates", gated)
		}
		return nil
	})
}

// With Volcano's real controller. Its jobs cannot be suspended: their pods are born
// gated, go to Volcano's scheduler with their tickets, and are deleted on eviction.
func TestAVolcanoJobIsGovernedThroughItsPods(t *testing.T) {
	w, queue := gpuWorldOf(t, "nvidia.com/gpu=1", apitest.Volcano)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("Volcano: %s", w.Log("controller-manager"))
		}
	})
	w.template(t, "slice", "", "")
	pods := `{metadata: {labels: {app: sim}}, spec: {terminationGracePeriodSeconds: 1, restartPolicy: Never, resourceClaims: [{name: gpu, resourceClaimTemplateName: slice}], containers: [{name: c, image: i, resources: {claims: [{name: gpu}]}}]}}`
	j := w.object(t, `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: sim, `+queueLabels+`}
spec:
  minAvailable: 3
  maxRetry: 3
  queue: default
  schedulerName: volcano
  tasks:
  - {name: driver, replicas: 1, minAvailable: 1, template: `+gpuTemplate("c", "sim", 0)+`}
  - {name: worker, replicas: 2, minAvailable: 2, template: `+pods+`}
`)
	w.enqueue(t)
	w.waits(t, j, "nvidia.com/gpu")
	apitest.Eventually(t, apitest.Patience, "pods behind gates", func(ctx context.Context) error {
		all := w.podsOf(t, ctx, "sim")
		for _, p := range all {
			if !controller.HasGate(&p) {
				t.Fatalf("pod %s is open before its job is admitted", p.Name)
			}
		}
		if len(all) != 3 {
			return fmt.Errorf("%d pods", len(all))
		}
		return nil
	})
	// The two pods with devices would be paid for, one by one; its third is waited for.
	w.usage(t, queue, "nvidia.com/gpu=0")
	if got := w.workloadsOf(t); len(got) != 1 || got[0] != "Job sim driver=1 worker=2" {
		t.Errorf("workloads %v", got)
	}

	w.patchQueue(t, queue, `{"resourceGroups":[{"coveredResources":["nvidia.com/gpu"],"flavors":[{"name":"`+w.ns+`-a100","resources":[{"name":"nvidia.com/gpu","nominalQuota":"2"}]}]}]}`)
	ticketed := func() {
		t.Helper()
		n := 0
		for _, p := range w.open(t, "sim", 3) {
			if p.Spec.SchedulerName != "volcano" || p.Status.NominatedNodeName != "" || p.Spec.NodeSelector["gpu-type"] != "a100" && p.Spec.ResourceClaims != nil {
				t.Errorf("pod %s: scheduler %q, nominated %q, selector %v", p.Name, p.Spec.SchedulerName, p.Status.NominatedNodeName, p.Spec.NodeSelector)
			}
			if p.Spec.ResourceClaims == nil {
				continue
			}
			claim, err := w.claimOf(t.Context(), &p)
			if err != nil || !ticket.Has(claim.Annotations) {
				t.Errorf("pod %s is open without a ticket: %v", p.Name, err)
			}
			n++
		}
		if n != 2 {
			t.Errorf("%d pods with claims", n)
		}
		w.usage(t, queue, "nvidia.com/gpu=2")
	}
	ticketed()

	w.stopQueue(t, queue, kueue.HoldAndDrain)
	w.replaced(t, "sim", 3)
	w.usage(t, queue, "nvidia.com/gpu=0")

	w.stopQueue(t, queue, kueue.None)
	ticketed()
	for _, p := range w.podsOf(t, t.Context(), "sim") {
		w.end(t, &p)
	}
	w.finished(t, j)
	w.usage(t, queue, "nvidia.com/gpu=0")
}
