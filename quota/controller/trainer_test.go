package controller_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// runtimeOf is a runtime for TrainJobs, whose pods have labels.
func runtimeOf(name, labels string) string {
	return `
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {name: ` + name + `, labels: {trainer.kubeflow.org/framework: torch}}
spec:
  mlPolicy: {numNodes: 1, torch: {}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            backoffLimit: 0
            template:
              metadata: {labels: {` + labels + `}}
              spec:
                terminationGracePeriodSeconds: 1
                tolerations: [{key: mine, operator: Exists}]
                containers: [{name: node, image: i}]
`
}

// flavorless waits until no job of a kind in the namespace has anything of a
// flavor in its templates.
func (w *world) flavorless(t *testing.T, version, kind string, templates func(*unstructured.Unstructured) []map[string]any) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, kind+"s without a flavor", func(ctx context.Context) error {
		all := &unstructured.UnstructuredList{}
		all.SetAPIVersion(version)
		all.SetKind(kind + "List")
		if err := w.client.List(ctx, all, client.InNamespace(w.ns)); err != nil {
			return err
		}
		if len(all.Items) == 0 {
			return fmt.Errorf("there is none")
		}
		for i := range all.Items {
			for _, spec := range templates(&all.Items[i]) {
				tolerations, _, _ := unstructured.NestedSlice(spec, "tolerations")
				if spec["nodeSelector"] != nil || spec["schedulingGates"] != nil || len(tolerations) != 1 {
					return fmt.Errorf("%s has selector %v, gates %v, tolerations %v", all.Items[i].GetName(), spec["nodeSelector"], spec["schedulingGates"], tolerations)
				}
			}
		}
		return nil
	})
}

// With the real trainer and the real controller of its JobSet.
func TestATrainJobsPodsAreThoseOfItsJobSet(t *testing.T) {
	w, queue := gpuWorldOf(t, "nvidia.com/gpu=2", apitest.JobSet, apitest.Trainer)
	w.object(t, runtimeOf("torch", "app: tune"))
	j := w.object(t, `
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: tune, `+queueLabels+`}
spec:
  runtimeRef: {name: torch, kind: TrainingRuntime}
  trainer: {numNodes: 2, resourcesPerNode: {limits: {nvidia.com/gpu: 1}}}
`)
	if suspended, _, _ := unstructured.NestedBool(j.Object, "spec", "suspend"); !suspended {
		t.Error("it is not suspended when it is made")
	}
	bound := func() []corev1.Pod {
		t.Helper()
		pods := w.allBound(t, "tune", 2)
		for _, p := range pods {
			keys := func(key string) bool {
				return slices.ContainsFunc(p.Spec.Tolerations, func(o corev1.Toleration) bool { return o.Key == key })
			}
			if p.Spec.NodeSelector["gpu-type"] != "a100" || !keys("mine") || !keys("nvidia.com/gpu") {
				t.Errorf("pod %s has selector %v, tolerations %v", p.Name, p.Spec.NodeSelector, p.Spec.Tolerations)
			}
		}
		w.usage(t, queue, "nvidia.com/gpu=2")
		return pods
	}
	w.run(t, bound())
	if got := w.workloadsOf(t); len(got) != 1 || got[0] != "TrainJob tune node=2" {
		t.Errorf("workloads %v", got)
	}

	// Its runtime may have the label instead; there is no room for a second one.
	w.object(t, runtimeOf("labelled", "app: second, kueue.x-k8s.io/queue-name: queue-q"))
	second := w.object(t, `
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: second}
spec:
  runtimeRef: {name: labelled, kind: TrainingRuntime}
  trainer: {numNodes: 1, resourcesPerNode: {limits: {nvidia.com/gpu: 1}}}
`)
	w.waits(t, second, "nvidia.com/gpu")
	w.vanish(t, "second")
	if err := w.client.Delete(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	w.vanish(t, "second")

	w.stopQueue(t, queue, kueue.HoldAndDrain)
	w.vanish(t, "tune")
	w.usage(t, queue, "nvidia.com/gpu=0")
	w.restored(t, j, "spec", "suspend")
	w.flavorless(t, "jobset.x-k8s.io/v1alpha2", "JobSet", func(u *unstructured.Unstructured) (all []map[string]any) {
		jobs, _, _ := unstructured.NestedSlice(u.Object, "spec", "replicatedJobs")
		for _, j := range jobs {
			spec, _, _ := unstructured.NestedMap(j.(map[string]any), "template", "spec", "template", "spec")
			all = append(all, spec)
		}
		return all
	})
	w.flavorless(t, "batch/v1", "Job", func(u *unstructured.Unstructured) []map[string]any {
		spec, _, _ := unstructured.NestedMap(u.Object, "spec", "template", "spec")
		return []map[string]any{spec}
	})

	w.stopQueue(t, queue, kueue.None)
	for _, p := range bound() {
		w.end(t, &p)
	}
	w.finished(t, j)
	w.usage(t, queue, "nvidia.com/gpu=0")
}
