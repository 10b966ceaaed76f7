package controller_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

const besideLabels = "labels: {quota.sluice.dev/queue-name: queue-q}"

// Kinds of jobs with the controllers that really manage them, and the real manager
// of Kueue.
func TestBesideKueueJobsOfManyKindsAreAdmittedEvictedRestoredAndFinished(t *testing.T) {
	w, _ := besideKueue(t)
	for _, o := range []string{apitest.JobSet, apitest.TrainingOperator, apitest.RayOperator} {
		w.StartOperator(t, o)
	}
	w.node(t, "fixed", 2, "80000Mi", "10000Mi", map[string]string{"gpu-type": "a100"})
	queue := w.checked(t, "q", w.flavor(t, "a100", map[string]string{"gpu-type": "a100"}), "nvidia.com/gpu=4")
	c := w.startWith(t, "engine: kueue")
	w.serveWebhook(t, c, "quota.config.engine=kueue")
	for _, j := range []struct {
		name, text string
		// suspend is where it is suspended, cards what it costs, ends that its
		// controller has it run and end without anything but its pods.
		suspend []string
		pods    int
		cards   string
		ends    bool
	}{
		{name: "set", suspend: []string{"spec", "suspend"}, pods: 3, cards: "2", ends: true, text: `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: set, ` + besideLabels + `}
spec:
  replicatedJobs:
  - {name: driver, replicas: 1, template: {spec: {parallelism: 1, completions: 1, backoffLimit: 0, template: ` + gpuTemplate("c", "set", 0) + `}}}
  - {name: workers, replicas: 2, template: {spec: {parallelism: 1, completions: 1, backoffLimit: 0, template: ` + gpuTemplate("c", "set", 1) + `}}}
`},
		{name: "finetune", suspend: []string{"spec", "runPolicy", "suspend"}, pods: 3, cards: "3", ends: true, text: `
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: finetune, ` + besideLabels + `}
spec:
  pytorchReplicaSpecs:
    Master: {replicas: 1, template: ` + gpuTemplate("pytorch", "finetune", 1) + `}
    Worker: {replicas: 2, template: ` + gpuTemplate("pytorch", "finetune", 1) + `}
`},
		{name: "ray", suspend: []string{"spec", "suspend"}, pods: 3, cards: "2", text: `
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: ray, ` + besideLabels + `}
spec:
  entrypoint: "true"
  shutdownAfterJobFinishes: true
  rayClusterSpec:
    rayVersion: 2.46.0
    headGroupSpec: {rayStartParams: {}, template: ` + gpuTemplate("ray-head", "ray", 0) + `}
    workerGroupSpecs:
    - {groupName: gpu, replicas: 2, minReplicas: 2, maxReplicas: 2, rayStartParams: {}, template: ` + gpuTemplate("ray-worker", "ray", 1) + `}
`},
	} {
		o := w.object(t, j.text)
		if suspended, _, _ := unstructured.NestedBool(o.Object, j.suspend...); !suspended {
			t.Errorf("%s is not suspended when it is made", j.name)
		}
		running := w.allBound(t, j.name, j.pods)
		for _, p := range running {
			// Kueue gives no flavor to pods that ask for nothing that it counts.
			if len(p.Spec.Containers[0].Resources.Limits) > 0 && p.Spec.NodeSelector["gpu-type"] != "a100" {
				t.Errorf("pod %s has selector %v", p.Name, p.Spec.NodeSelector)
			}
		}
		w.usage(t, queue, "nvidia.com/gpu="+j.cards)
		if j.ends {
			w.run(t, running)
		}

		w.stopQueue(t, queue, kueue.HoldAndDrain)
		w.vanish(t, j.name)
		w.usage(t, queue, "nvidia.com/gpu=0")
		w.restored(t, o, j.suspend...)

		w.stopQueue(t, queue, kueue.None)
		running = w.allBound(t, j.name, j.pods)
		w.usage(t, queue, "nvidia.com/gpu="+j.cards)
		if j.ends {
			for _, p := range running {
				w.end(t, &p)
			}
			w.finished(t, o)
		} else {
			// Nothing answers its jobs here; its user deletes it.
			if err := w.client.Delete(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			w.vanish(t, j.name)
		}
		w.usage(t, queue, "nvidia.com/gpu=0")
		w.clearPods(t, j.name)
	}
	if left := w.workloadsOf(t); len(left) > 2 {
		t.Errorf("Workloads %v", left)
	}
}

// clearPods deletes the pods of a job that has ended.
func (w *world) clearPods(t *testing.T, app string) {
	t.Helper()
	if err := w.client.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(w.ns), client.MatchingLabels{"app": app}, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
}
