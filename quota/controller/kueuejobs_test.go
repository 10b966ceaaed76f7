package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
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

// The namespace has a LocalQueue named default: Kueue's webhooks put what names no
// queue into it. What names one of ours stays ours, and Kueue's own stays Kueue's.
func TestBesideKueueANamespacesDefaultQueueLeavesOursAlone(t *testing.T) {
	w, _ := besideKueue(t)
	w.node(t, "a", 1, "80Gi", "", nil)
	queue := w.checked(t, "q", w.flavor(t, "f", nil), "nvidia.com/gpu=4", "nvidia.com/gpu-memory=80Gi")
	w.queue(t, "cpu", w.flavor(t, "cpu", nil), "cpu=4", "memory=4Gi")
	byDefault := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "default"}}
	byDefault.Spec.ClusterQueue = kueue.ClusterQueueReference(w.ns + "-cpu")
	if err := w.client.Create(t.Context(), byDefault); err != nil {
		t.Fatal(err)
	}
	w.template(t, "part", "20Gi", "")
	c := w.startWith(t, "engine: kueue")
	w.serveWebhook(t, c, "quota.config.engine=kueue")
	// Kueue knows of the queue when it puts something into it.
	apitest.Eventually(t, patience, "Kueue's default queue", func(ctx context.Context) error {
		p := pod("probe", "")
		p.Namespace, p.Labels = w.ns, nil
		if err := w.client.Create(ctx, p, client.DryRunAll); err != nil {
			return err
		}
		if p.Labels[controller.QueueLabel] != "default" {
			return fmt.Errorf("labels %v", p.Labels)
		}
		return nil
	})

	single := withTemplate(pod("single", "queue-q"), "part")
	single.Labels = map[string]string{controller.BesideQueueLabel: "queue-q"}
	w.create(t, single)
	job := w.besideJob("ours", "queue-q", "part")
	delete(job.Labels, controller.PriorityLabel)
	w.create(t, job)
	w.bound(t, "single")
	w.jobRuns(t, "ours")
	w.usedBeside(t, queue, "nvidia.com/gpu", "2")
	var pods corev1.PodList
	if err := w.client.List(t.Context(), &pods, client.InNamespace(w.ns)); err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if marks := fmt.Sprint(p.Labels, p.Annotations, p.Finalizers, p.Spec.SchedulingGates); strings.Contains(marks, "kueue.x-k8s.io/queue-name") || strings.Contains(marks, "kueue.x-k8s.io/managed") || strings.Contains(marks, "kueue.x-k8s.io/admission") {
			t.Errorf("pod %s has %s", p.Name, marks)
		}
	}
	if got := w.workloadsOf(t); len(got) != 2 {
		t.Errorf("Workloads %v", got)
	}
	// One without a queue is Kueue's, and runs by Kueue's word alone.
	plain := w.besideJob("plain", "", "")
	plain.Labels = nil
	w.create(t, plain)
	w.jobRuns(t, "plain")
	if plain.Labels[controller.QueueLabel] != "default" {
		t.Errorf("labels %v", plain.Labels)
	}
}
