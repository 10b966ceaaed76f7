package controller_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

const besideLabels = "labels: {quota.sluice.dev/queue-name: queue-q}"

// besideKind is a kind of jobs, as an example.
type besideKind struct {
	name, text string
	// suspend is where it is suspended, nothing if it is governed through its pods.
	suspend []string
	// pods are how many it has, cards what they cost together.
	pods, cards int
	// ends is how its controller has it end: with all of its pods, with its first
	// ones, or never, until its user deletes it.
	ends func(*corev1.Pod) bool
}

func everyPod(*corev1.Pod) bool { return true }

func launcher(p *corev1.Pod) bool { return strings.Contains(p.Name, "launcher") }

// besideKinds are all kinds that bring a controller of their own.
func besideKinds() []besideKind {
	training := func(kind, replicas, container string) besideKind {
		name := "a-" + container
		return besideKind{name: name, suspend: []string{"spec", "runPolicy", "suspend"}, pods: 2, cards: 2, ends: everyPod, text: `
apiVersion: kubeflow.org/v1
kind: ` + kind + `
metadata: {name: ` + name + `, ` + besideLabels + `}
spec: {` + replicas + `: {Worker: {replicas: 2, template: ` + gpuTemplate(container, name, 1) + `}}}
`}
	}
	ray := func(name string) string {
		return `
    rayVersion: 2.46.0
    headGroupSpec: {rayStartParams: {}, template: ` + gpuTemplate("ray-head", name, 0) + `}
    workerGroupSpecs:
    - {groupName: gpu, replicas: 2, minReplicas: 2, maxReplicas: 2, rayStartParams: {}, template: ` + gpuTemplate("ray-worker", name, 1) + `}
`
	}
	return []besideKind{
		{name: "set", suspend: []string{"spec", "suspend"}, pods: 3, cards: 2, ends: everyPod, text: `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: set, ` + besideLabels + `}
spec:
  replicatedJobs:
  - {name: driver, replicas: 1, template: {spec: {parallelism: 1, completions: 1, backoffLimit: 0, template: ` + gpuTemplate("c", "set", 0) + `}}}
  - {name: workers, replicas: 2, template: {spec: {parallelism: 1, completions: 1, backoffLimit: 0, template: ` + gpuTemplate("c", "set", 1) + `}}}
`},
		{name: "finetune", suspend: []string{"spec", "runPolicy", "suspend"}, pods: 3, cards: 3, ends: everyPod, text: `
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: finetune, ` + besideLabels + `}
spec:
  pytorchReplicaSpecs:
    Master: {replicas: 1, template: ` + gpuTemplate("pytorch", "finetune", 1) + `}
    Worker: {replicas: 2, template: ` + gpuTemplate("pytorch", "finetune", 1) + `}
`},
		training("TFJob", "tfReplicaSpecs", "tensorflow"),
		{name: "boost", suspend: []string{"spec", "runPolicy", "suspend"}, pods: 2, cards: 2, ends: everyPod, text: `
apiVersion: kubeflow.org/v1
kind: XGBoostJob
metadata: {name: boost, ` + besideLabels + `}
spec:
  xgbReplicaSpecs:
    Master: {replicas: 1, template: ` + gpuTemplate("xgboost", "boost", 1) + `}
    Worker: {replicas: 1, template: ` + gpuTemplate("xgboost", "boost", 1) + `}
`},
		training("PaddleJob", "paddleReplicaSpecs", "paddle"),
		training("JAXJob", "jaxReplicaSpecs", "jax"),
		{name: "mpi", suspend: []string{"spec", "runPolicy", "suspend"}, pods: 3, cards: 2, ends: launcher, text: `
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: mpi, ` + besideLabels + `}
spec:
  runPolicy: {cleanPodPolicy: All}
  mpiReplicaSpecs:
    Launcher: {replicas: 1, template: ` + gpuTemplate("c", "mpi", 0) + `}
    Worker: {replicas: 2, template: ` + gpuTemplate("c", "mpi", 1) + `}
`},
		{name: "ray", suspend: []string{"spec", "suspend"}, pods: 3, cards: 2, text: `
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: ray, ` + besideLabels + `}
spec:
  entrypoint: "true"
  shutdownAfterJobFinishes: true
  rayClusterSpec:` + ray("ray")},
		{name: "cluster", suspend: []string{"spec", "suspend"}, pods: 3, cards: 2, text: `
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: cluster, ` + besideLabels + `}
spec:` + ray("cluster")},
		{name: "tune", suspend: []string{"spec", "suspend"}, pods: 2, cards: 2, ends: everyPod, text: `
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: tune, ` + besideLabels + `}
spec:
  runtimeRef: {name: torch, kind: TrainingRuntime}
  trainer: {numNodes: 2, resourcesPerNode: {limits: {nvidia.com/gpu: 1}}}
`},
		{name: "sim", pods: 3, cards: 2, ends: everyPod, text: `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: sim, ` + besideLabels + `}
spec:
  minAvailable: 3
  maxRetry: 3
  queue: default
  schedulerName: volcano
  tasks:
  - {name: driver, replicas: 1, minAvailable: 1, template: ` + gpuTemplate("c", "sim", 0) + `}
  - {name: worker, replicas: 2, minAvailable: 2, template: {metadata: {labels: {app: sim}}, spec: {terminationGracePeriodSeconds: 1, restartPolicy: Never,
      resourceClaims: [{name: gpu, resourceClaimTemplateName: slice}], containers: [{name: c, image: i, resources: {claims: [{name: gpu}]}}]}}}
`},
	}
}

// Kinds of jobs with the controllers that really manage them, and the real manager
// of Kueue. All go the same way at the same time: held, admitted, run, evicted,
// restored, admitted again, ended.
func TestBesideKueueJobsOfManyKindsAreAdmittedEvictedRestoredAndFinished(t *testing.T) {
	w, _ := besideKueue(t)
	for _, o := range []string{apitest.JobSet, apitest.TrainingOperator, apitest.RayOperator, apitest.MPIOperator, apitest.Trainer, apitest.Volcano} {
		w.StartOperator(t, o)
	}
	kinds := besideKinds()
	all := 0
	for _, k := range kinds {
		all += k.cards
	}
	w.node(t, "fixed", (all+7)/8, "80000Mi", "10000Mi", map[string]string{"gpu-type": "a100"})
	queue := w.checked(t, "q", w.flavor(t, "a100", map[string]string{"gpu-type": "a100"}), fmt.Sprintf("nvidia.com/gpu=%d", all))
	w.template(t, "slice", "", "")
	c := w.startWith(t, "engine: kueue")
	w.serveWebhook(t, c, "quota.config.engine=kueue")
	w.object(t, runtimeOf("torch", "app: tune"))
	var objects []*unstructured.Unstructured
	for _, k := range kinds {
		o := w.object(t, k.text)
		if suspended, _, _ := unstructured.NestedBool(o.Object, k.suspend...); k.suspend != nil && !suspended {
			t.Errorf("%s is not suspended when it is made", o.GetKind())
		}
		objects = append(objects, o)
	}
	w.enqueue(t)

	running := func() (pods [][]corev1.Pod) {
		t.Helper()
		for _, k := range kinds {
			started := w.allBound
			if k.suspend == nil {
				// Nobody places them: its scheduler does not run here.
				started = w.open
			}
			pods = append(pods, started(t, k.name, k.pods))
		}
		w.usage(t, queue, fmt.Sprintf("nvidia.com/gpu=%d", all))
		return pods
	}
	for i, pods := range running() {
		for _, p := range pods {
			// Kueue gives no flavor to pods that ask for nothing that it counts.
			asks := len(p.Spec.Containers[0].Resources.Limits) > 0 || len(p.Spec.ResourceClaims) > 0
			if asks && p.Spec.NodeSelector["gpu-type"] != "a100" {
				t.Errorf("pod %s has selector %v", p.Name, p.Spec.NodeSelector)
			}
		}
		if kinds[i].ends != nil {
			w.run(t, pods)
		}
	}

	w.stopQueue(t, queue, kueue.HoldAndDrain)
	for _, k := range kinds {
		if k.suspend == nil {
			w.replaced(t, k.name, k.pods)
		} else {
			w.vanish(t, k.name)
		}
	}
	w.usage(t, queue, "nvidia.com/gpu=0")
	for i, k := range kinds {
		if k.suspend != nil {
			w.restored(t, objects[i], k.suspend...)
		}
	}

	w.stopQueue(t, queue, kueue.None)
	left := all
	for i, pods := range running() {
		k := kinds[i]
		for j := range pods {
			if k.ends != nil && k.ends(&pods[j]) {
				w.end(t, &pods[j])
			}
		}
		if k.ends == nil {
			// Nothing answers its jobs here; its user deletes it.
			if err := w.client.Delete(t.Context(), objects[i]); err != nil {
				t.Fatal(err)
			}
		}
		// It is finished for Kueue when its devices are free.
		w.vanish(t, k.name)
		if k.ends != nil {
			w.finished(t, objects[i])
		}
		left -= k.cards
		w.usage(t, queue, fmt.Sprintf("nvidia.com/gpu=%d", left))
	}
	if n := len(w.workloadsOf(t)); n > len(kinds) {
		t.Errorf("%d Workloads of %d jobs: %v", n, len(kinds), w.workloadsOf(t))
	}
}
