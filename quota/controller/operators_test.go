package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/jobs"
)

// These tests run jobs of many kinds with the controllers that really manage
// them. No kubelet runs their pods; the tests end them.

// object makes an object of any kind from YAML, in the test's namespace.
func (w *world) object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	u.SetNamespace(w.ns)
	apitest.Eventually(t, apitest.Patience, "created "+u.GetKind(), func(ctx context.Context) error {
		o := u.DeepCopy()
		err := w.client.Create(ctx, o)
		if err == nil {
			u = o
		}
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			// The CRD was made a moment ago.
			return err
		}
		if err != nil {
			t.Fatal(err)
		}
		return nil
	})
	return u
}

// gpuTemplate is a pod template that asks for so many GPUs.
func gpuTemplate(name, app string, gpus int) string {
	limits := ""
	if gpus > 0 {
		limits = fmt.Sprintf(", resources: {limits: {nvidia.com/gpu: %d}}", gpus)
	}
	return fmt.Sprintf("{metadata: {labels: {app: %s}}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: %s, image: i%s}]}}", app, name, limits)
}

const queueLabels = "labels: {kueue.x-k8s.io/queue-name: queue-q}"

// run tells an owner's controller that its pods run, as a kubelet would.
func (w *world) run(t *testing.T, pods []corev1.Pod) {
	t.Helper()
	for i := range pods {
		patch := `{"status":{"phase":"Running","podIP":"10.9.0.1","conditions":[{"type":"Ready","status":"True"}],"containerStatuses":[{"name":"` +
			pods[i].Spec.Containers[0].Name + `","ready":true,"started":true,"image":"i","imageID":"i","restartCount":0,"state":{"running":{}}}]}}`
		if err := w.client.Status().Patch(t.Context(), &pods[i], client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
}

// vanish ends pods that were told to go, as a kubelet would.
func (w *world) vanish(t *testing.T, app string) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, "pods of "+app+" told to go", func(ctx context.Context) error {
		left := 0
		for _, p := range w.podsOf(t, ctx, app) {
			if p.DeletionTimestamp == nil {
				if p.Status.Phase != corev1.PodSucceeded {
					left++
				}
				continue
			}
			if err := client.IgnoreNotFound(w.client.Delete(ctx, &p, client.GracePeriodSeconds(0))); err != nil {
				return err
			}
		}
		if left > 0 {
			return fmt.Errorf("%d pods are there yet", left)
		}
		return nil
	})
}

func (w *world) stopQueue(t *testing.T, queue string, policy kueue.StopPolicy) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"stopPolicy":%q}}`, policy)
	if err := w.client.Patch(t.Context(), &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: queue}}, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		t.Fatal(err)
	}
}

// restored waits until a job is suspended and as its user wrote it.
func (w *world) restored(t *testing.T, j *unstructured.Unstructured, suspend ...string) {
	t.Helper()
	now := j.DeepCopy()
	apitest.Eventually(t, apitest.Patience, j.GetKind()+" restored", func(ctx context.Context) error {
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(j), now); err != nil {
			return err
		}
		suspended, _, _ := unstructured.NestedBool(now.Object, suspend...)
		if !suspended || now.GetAnnotations()[jobs.OriginalAnnotation] != "" {
			return fmt.Errorf("suspended %v, annotations %v", suspended, now.GetAnnotations())
		}
		return nil
	})
	if j.GetAPIVersion() == "ray.io/v1" {
		// Ray's own controller writes the whole object, with fields in other forms.
		sameTemplates(t, j, now)
		return
	}
	if diff := cmp.Diff(j.Object["spec"], now.Object["spec"]); diff != "" {
		t.Errorf("not as the user wrote it (-want +got):\n%s", diff)
	}
}

// sameTemplates compares the pod templates of two jobs by what they mean.
func sameTemplates(t *testing.T, want, got *unstructured.Unstructured) {
	t.Helper()
	table, err := jobs.NewTable()
	if err != nil {
		t.Fatal(err)
	}
	kind := table.Find(want.GetAPIVersion(), want.GetKind())
	before, err1 := kind.PodSets(want)
	after, err2 := kind.PodSets(got)
	if err1 != nil || err2 != nil || !equality.Semantic.DeepEqual(before, after) {
		t.Errorf("not as the user wrote it (-want +got, %v %v):\n%s", err1, err2, cmp.Diff(before, after))
	}
}

// gpuWorld is a world with two cards of eight slices each, its queue "queue-q" and the
// webhook.
func gpuWorld(t *testing.T, operator string) (w *world, queue string) {
	t.Helper()
	return gpuWorldOf(t, "nvidia.com/gpu=4", operator)
}

// gpuWorldOf is one with another quota, and two cards.
func gpuWorldOf(t *testing.T, quota string, operators ...string) (w *world, queue string) {
	t.Helper()
	w = newWorld(t)
	for _, o := range operators {
		w.StartOperator(t, o)
	}
	w.node(t, "fixed", 2, "80000Mi", "10000Mi", map[string]string{"gpu-type": "a100"})
	flavor := w.flavor(t, "a100", map[string]string{"gpu-type": "a100"}, corev1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists})
	queue = w.queue(t, "q", flavor, quota)
	c := w.start(t)
	w.serveWebhook(t, c)
	return w, queue
}

// workloadsOf are the Workloads of the namespace by their owner's kind and name.
func (w *world) workloadsOf(t *testing.T) []string {
	t.Helper()
	var all kueue.WorkloadList
	if err := w.client.List(t.Context(), &all, client.InNamespace(w.ns)); err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range all.Items {
		o := metav1.GetControllerOf(&all.Items[i])
		sets := ""
		for _, s := range all.Items[i].Spec.PodSets {
			sets += fmt.Sprintf(" %s=%d", s.Name, s.Count)
		}
		names = append(names, o.Kind+" "+o.Name+sets)
	}
	return names
}

func TestAPyTorchJobIsAdmittedAsAGangEvictedAndResumed(t *testing.T) {
	w, queue := gpuWorld(t, apitest.TrainingOperator)
	j := w.object(t, `
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: finetune, `+queueLabels+`}
spec:
  runPolicy: {suspend: true}
  pytorchReplicaSpecs:
    Master: {replicas: 1, template: `+gpuTemplate("pytorch", "finetune", 1)+`}
    Worker: {replicas: 2, template: `+gpuTemplate("pytorch", "finetune", 1)+`}
`)
	pods := w.allBound(t, "finetune", 3)
	for _, p := range pods {
		if p.Spec.NodeSelector["gpu-type"] != "a100" {
			t.Errorf("pod %s has selector %v", p.Name, p.Spec.NodeSelector)
		}
	}
	w.usage(t, queue, "nvidia.com/gpu=3")
	if got := w.workloadsOf(t); len(got) != 1 || got[0] != "PyTorchJob finetune master=1 worker=2" {
		t.Errorf("workloads %v", got)
	}
	w.run(t, pods)

	w.stopQueue(t, queue, kueue.HoldAndDrain)
	w.vanish(t, "finetune")
	w.usage(t, queue, "nvidia.com/gpu=0")
	w.restored(t, j, "spec", "runPolicy", "suspend")

	w.stopQueue(t, queue, kueue.None)
	w.allBound(t, "finetune", 3)
	w.usage(t, queue, "nvidia.com/gpu=3")
	for _, p := range w.podsOf(t, t.Context(), "finetune") {
		w.end(t, &p)
	}
	w.usage(t, queue, "nvidia.com/gpu=0")
	w.finished(t, j)
}

// finished waits until an object's Workload is.
func (w *world) finished(t *testing.T, owner client.Object) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, owner.GetName()+" finished", func(ctx context.Context) error {
		wl, err := w.workloadOf(ctx, owner)
		if err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadFinished) {
			return fmt.Errorf("conditions %v", wl.Status.Conditions)
		}
		return nil
	})
}

func TestAJobThatTheWebhookMissedIsSuspendedBeforeItGetsADevice(t *testing.T) {
	w := newWorld(t)
	w.StartOperator(t, apitest.TrainingOperator)
	w.node(t, "fixed", 1, "80000Mi", "10000Mi", nil)
	flavor := w.flavor(t, "a100", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu=1")
	c := w.start(t)
	j := w.object(t, `
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: big, `+queueLabels+`}
spec:
  pytorchReplicaSpecs:
    Master: {replicas: 1, template: `+gpuTemplate("pytorch", "big", 1)+`}
    Worker: {replicas: 1, template: `+gpuTemplate("pytorch", "big", 1)+`}
`)
	w.waits(t, j, "nvidia.com/gpu")
	w.vanish(t, "big")
	w.usage(t, queue, "nvidia.com/gpu=0")
	w.restoredOnly(t, j)
	w.serveWebhook(t, c)
	if err := w.client.Patch(t.Context(), &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: queue}}, client.RawPatch("application/json-patch+json",
		[]byte(`[{"op":"replace","path":"/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota","value":"2"}]`))); err != nil {
		t.Fatal(err)
	}
	w.allBound(t, "big", 2)
}

// restoredOnly waits until a job is suspended.
func (w *world) restoredOnly(t *testing.T, j *unstructured.Unstructured) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, j.GetName()+" suspended", func(ctx context.Context) error {
		now := j.DeepCopy()
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(j), now); err != nil {
			return err
		}
		if s, _, _ := unstructured.NestedBool(now.Object, "spec", "runPolicy", "suspend"); !s {
			return fmt.Errorf("%v", now.Object["spec"])
		}
		return nil
	})
}

func TestAJobSetsJobsAndPodsBelongToIt(t *testing.T) {
	w, queue := gpuWorld(t, apitest.JobSet)
	j := w.object(t, `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: set, `+queueLabels+`}
spec:
  replicatedJobs:
  - {name: driver, replicas: 1, template: {spec: {parallelism: 1, completions: 1, backoffLimit: 0, template: `+gpuTemplate("c", "set", 0)+`}}}
  - {name: workers, replicas: 2, template: {spec: {parallelism: 1, completions: 1, backoffLimit: 0, template: `+gpuTemplate("c", "set", 1)+`}}}
`)
	w.allBound(t, "set", 3)
	w.usage(t, queue, "nvidia.com/gpu=2")
	if got := w.workloadsOf(t); len(got) != 1 || got[0] != "JobSet set driver=1 workers=2" {
		t.Errorf("workloads %v", got)
	}
	w.stopQueue(t, queue, kueue.HoldAndDrain)
	w.vanish(t, "set")
	w.usage(t, queue, "nvidia.com/gpu=0")
	w.restored(t, j, "spec", "suspend")
	// Its Jobs, which are merged with the templates, keep nothing of the flavor.
	below := &unstructured.UnstructuredList{}
	below.SetAPIVersion("batch/v1")
	below.SetKind("JobList")
	if err := w.client.List(t.Context(), below, client.InNamespace(w.ns)); err != nil || len(below.Items) != 3 {
		t.Fatalf("%d jobs, %v", len(below.Items), err)
	}
	for _, b := range below.Items {
		spec, _, _ := unstructured.NestedMap(b.Object, "spec", "template", "spec")
		for _, field := range []string{"nodeSelector", "tolerations", "schedulingGates"} {
			if left, found := spec[field]; found {
				t.Errorf("job %s keeps %s %v", b.GetName(), field, left)
			}
		}
	}
	w.stopQueue(t, queue, kueue.None)
	for _, p := range w.allBound(t, "set", 3) {
		w.end(t, &p)
	}
	w.usage(t, queue, "nvidia.com/gpu=0")
	w.finished(t, j)
}

func TestAnMPIJobsLauncherBelongsToIt(t *testing.T) {
	w, queue := gpuWorld(t, apitest.MPIOperator)
	j := w.object(t, `
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: mpi, `+queueLabels+`}
spec:
  runPolicy: {cleanPodPolicy: All}
  mpiReplicaSpecs:
    Launcher: {replicas: 1, template: `+gpuTemplate("c", "mpi", 0)+`}
    Worker: {replicas: 2, template: `+gpuTemplate("c", "mpi", 1)+`}
`)
	pods := w.allBound(t, "mpi", 3)
	w.usage(t, queue, "nvidia.com/gpu=2")
	if got := w.workloadsOf(t); len(got) != 1 || got[0] != "MPIJob mpi launcher=1 worker=2" {
		t.Errorf("workloads %v", got)
	}
	w.run(t, pods)
	w.stopQueue(t, queue, kueue.HoldAndDrain)
	w.vanish(t, "mpi")
	w.usage(t, queue, "nvidia.com/gpu=0")
	w.restored(t, j, "spec", "runPolicy", "suspend")
	w.stopQueue(t, queue, kueue.None)
	w.allBound(t, "mpi", 3)
	for _, p := range w.podsOf(t, t.Context(), "mpi") {
		if strings.Contains(p.Name, "launcher") {
			w.end(t, &p)
		}
	}
	w.finished(t, j)
	w.vanish(t, "mpi")
	w.usage(t, queue, "nvidia.com/gpu=0")
}

func TestARayJobsClusterBelongsToIt(t *testing.T) {
	w, queue := gpuWorld(t, apitest.RayOperator)
	j := w.object(t, `
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: ray, `+queueLabels+`}
spec:
  entrypoint: "true"
  shutdownAfterJobFinishes: true
  rayClusterSpec:
    rayVersion: 2.46.0
    headGroupSpec: {rayStartParams: {}, template: `+gpuTemplate("ray-head", "ray", 0)+`}
    workerGroupSpecs:
    - {groupName: gpu, replicas: 2, minReplicas: 2, maxReplicas: 2, rayStartParams: {}, template: `+gpuTemplate("ray-worker", "ray", 1)+`}
`)
	w.allBound(t, "ray", 3)
	w.usage(t, queue, "nvidia.com/gpu=2")
	if got := w.workloadsOf(t); len(got) != 1 || got[0] != "RayJob ray gpu=2 head=1" && got[0] != "RayJob ray head=1 gpu=2" {
		t.Errorf("workloads %v", got)
	}
	w.stopQueue(t, queue, kueue.HoldAndDrain)
	w.vanish(t, "ray")
	w.usage(t, queue, "nvidia.com/gpu=0")
	w.restored(t, j, "spec", "suspend")
	w.stopQueue(t, queue, kueue.None)
	w.allBound(t, "ray", 3)
}

func TestARayClusterIsGovernedByItself(t *testing.T) {
	w, queue := gpuWorld(t, apitest.RayOperator)
	j := w.object(t, `
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: cluster, `+queueLabels+`}
spec:
  rayVersion: 2.46.0
  headGroupSpec: {rayStartParams: {}, template: `+gpuTemplate("ray-head", "cluster", 1)+`}
  workerGroupSpecs:
  - {groupName: gpu, replicas: 1, minReplicas: 1, maxReplicas: 3, rayStartParams: {}, template: `+gpuTemplate("ray-worker", "cluster", 1)+`}
`)
	w.allBound(t, "cluster", 2)
	w.usage(t, queue, "nvidia.com/gpu=2")
	// One that is scaled beyond what was admitted gets no device for the rest.
	if err := w.client.Patch(t.Context(), j.DeepCopy(), client.RawPatch("application/json-patch+json", []byte(`[{"op":"replace","path":"/spec/workerGroupSpecs/0/replicas","value":3}]`))); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, apitest.Patience, "more pods", func(ctx context.Context) error {
		if n := len(w.podsOf(t, ctx, "cluster")); n != 4 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	const says = "1 pods of set \"gpu\" were admitted and are there"
	w.hearsOnce(t, "RayCluster", "cluster", "NotAdmitted", says)
	told := 0
	for _, p := range w.podsOf(t, t.Context(), "cluster") {
		if controller.HasGate(&p) {
			w.hearsOnce(t, "Pod", p.Name, "NotAdmitted", says)
			told++
		}
	}
	if told != 2 {
		t.Errorf("%d pods at their gates", told)
	}
	w.allBound(t, "cluster", 2)
	w.usage(t, queue, "nvidia.com/gpu=2")
	// Suspended, it is admitted as it is now.
	if err := w.client.Patch(t.Context(), j.DeepCopy(), client.RawPatch("application/json-patch+json", []byte(`[{"op":"add","path":"/spec/suspend","value":true}]`))); err != nil {
		t.Fatal(err)
	}
	w.vanish(t, "cluster")
	w.allBound(t, "cluster", 4)
	w.usage(t, queue, "nvidia.com/gpu=4")
}

// hearsOnce waits until an object was told something, and sees that it was told it
// once.
func (w *world) hearsOnce(t *testing.T, kind, name, reason, says string) {
	t.Helper()
	w.hearsAny(t, kind, name, reason, says)
	if err := w.heard(t.Context(), kind, name, reason, says, 2); err == nil {
		t.Errorf("%s %s is told more than once: %s", kind, name, says)
	}
}

// heard says whether an object was told something so many times.
func (w *world) heard(ctx context.Context, kind, name, reason, says string, times int) error {
	var events corev1.EventList
	if err := w.client.List(ctx, &events, client.InNamespace(w.ns)); err != nil {
		return err
	}
	heard := 0
	for _, e := range events.Items {
		if e.InvolvedObject.Kind != kind || e.InvolvedObject.Name != name || e.Reason != reason || !strings.Contains(e.Message, says) {
			continue
		}
		heard++
		if e.Series != nil {
			heard += int(e.Series.Count)
		}
	}
	if heard < times {
		return fmt.Errorf("told %d times, of %d events", heard, len(events.Items))
	}
	return nil
}
