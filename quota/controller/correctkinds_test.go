package controller_test

import (
	"context"
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// cardTemplate is a pod template with a claim for a card of any size.
func cardTemplate(container, app string) string {
	return fmt.Sprintf("{metadata: {labels: {app: %s}}, spec: {terminationGracePeriodSeconds: 1, "+
		"resourceClaims: [{name: gpu, resourceClaimTemplateName: card}], containers: [{name: %s, image: i, resources: {claims: [{name: gpu}]}}]}}", app, container)
}

// TestJobsOfOtherKindsAndGroupsPayForWhatTheyGot: six small cards and a large one
// are in a flavor, so two pods are charged 160Gi until they have their cards. The
// quota is for one such admission beside what the others got: each comes in only
// because those before it were corrected.
func TestJobsOfOtherKindsAndGroupsPayForWhatTheyGot(t *testing.T) {
	w := newWorld(t)
	for _, o := range []string{apitest.JobSet, apitest.TrainingOperator} {
		w.StartOperator(t, o)
	}
	w.unlikeCards(t, 6)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu-memory=256Gi")
	w.template(t, "card", "", "")
	c := w.start(t)
	w.serveWebhook(t, c)

	w.object(t, `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: set, `+queueLabels+`}
spec:
  replicatedJobs:
  - {name: workers, replicas: 2, template: {spec: {parallelism: 1, completions: 1, backoffLimit: 0, template: `+cardTemplate("c", "set")+`}}}
`)
	w.allBound(t, "set", 2)
	w.usage(t, queue, "nvidia.com/gpu-memory=48Gi")

	tune := w.object(t, `
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: tune, `+queueLabels+`}
spec:
  runPolicy: {cleanPodPolicy: All}
  pytorchReplicaSpecs:
    Master: {replicas: 1, restartPolicy: Never, template: `+cardTemplate("pytorch", "tune")+`}
    Worker: {replicas: 1, restartPolicy: Never, template: `+cardTemplate("pytorch", "tune")+`}
`)
	w.run(t, w.allBound(t, "tune", 2))
	w.usage(t, queue, "nvidia.com/gpu-memory=96Gi")

	for _, name := range []string{"g-0", "g-1"} {
		p := grouped(withTemplate(pod(name, "queue-q"), "card"), "g", 2)
		p.Annotations[controller.GroupRetriable] = "false"
		w.create(t, p)
	}
	member := w.bound(t, "g-0")
	w.bound(t, "g-1")
	w.usage(t, queue, "nvidia.com/gpu-memory=144Gi")
	w.ticketsFor(t, 144<<30)

	// No pod takes the place of a member, although that is what a group is for
	// otherwise.
	if err := w.client.Delete(t.Context(), member, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	w.create(t, grouped(withTemplate(pod("g-2", "queue-q"), "card"), "g", 2))
	w.hears(t, "g-2", "NotInGroup", "none of its pods is replaced")
	w.stillGated(t, "g-2")

	// A worker fails, and the job ends with it, as it has said.
	for _, p := range w.podsOf(t, t.Context(), "tune") {
		if p.Labels["training.kubeflow.org/replica-type"] == "worker" {
			if err := w.client.Status().Patch(t.Context(), &p, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"phase":"Failed"}}`))); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.finished(t, tune)
	w.vanish(t, "tune")
	w.usage(t, queue, "nvidia.com/gpu-memory=96Gi")

	// One of the JobSet's Jobs is deleted from outside, and made again. The pod that
	// comes does not wait for what was given away, and gets no more than is paid for:
	// all is queued anew, and charged the dearest until it has its cards.
	below := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "set-workers-0"}}
	if err := w.client.Delete(t.Context(), below, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
	w.madeAnew(t, "set")
	w.hearsAny(t, "JobSet", "set", "EvictedDueToOutgrown", "another pod has come")
	w.allBound(t, "set", 2)
	w.usage(t, queue, "nvidia.com/gpu-memory=96Gi")
}

// unlikeCards are so many cards of 24Gi, and one of 80Gi that nobody is sent to: it
// is there, and what might be given.
func (w *world) unlikeCards(t *testing.T, small int) {
	t.Helper()
	w.node(t, "small", small, "24Gi", "", nil)
	large := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.node(t, "large", 1, "80Gi", "", nil)}}
	if err := w.client.Patch(t.Context(), large, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"unschedulable":true}}`))); err != nil {
		t.Fatal(err)
	}
}

// TestATrainJobPaysForWhatItGot: whether its pods are replaced is said by the JobSet
// that the trainer makes of it. The claims are those that the scheduler makes.
func TestATrainJobPaysForWhatItGot(t *testing.T) {
	w := newWorld(t)
	for _, o := range []string{apitest.JobSet, apitest.Trainer} {
		w.StartOperator(t, o)
	}
	w.unlikeCards(t, 2)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu-memory=160Gi")
	w.serveWebhook(t, w.start(t))
	w.object(t, runtimeOf("torch", "app: tune"))
	w.object(t, `
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: tune, `+queueLabels+`}
spec:
  runtimeRef: {name: torch, kind: TrainingRuntime}
  trainer: {numNodes: 2, resourcesPerNode: {limits: {nvidia.com/gpu: 1}}}
`)
	w.allBound(t, "tune", 2)
	w.usage(t, queue, "nvidia.com/gpu-memory=48Gi")
	w.ticketsFor(t, 48<<30)
}

// ticketsFor waits until all tickets together are for so much memory.
func (w *world) ticketsFor(t *testing.T, memory int64) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, "tickets for what is charged", func(ctx context.Context) error {
		sum, err := w.tickets(ctx)
		if err == nil && sum.Memory != memory {
			err = fmt.Errorf("tickets for %v", sum)
		}
		return err
	})
}

// madeAnew ends pods that were told to go, as a kubelet would, until the app has
// none of those that it had.
func (w *world) madeAnew(t *testing.T, app string) {
	t.Helper()
	old := w.podsOf(t, t.Context(), app)
	apitest.Eventually(t, apitest.Patience, "pods of "+app+" made anew", func(ctx context.Context) error {
		for i := range old {
			p := &corev1.Pod{}
			if err := w.client.Get(ctx, client.ObjectKeyFromObject(&old[i]), p); apierrors.IsNotFound(err) || err == nil && p.UID != old[i].UID {
				continue
			} else if err != nil {
				return err
			}
			if p.DeletionTimestamp != nil {
				if err := client.IgnoreNotFound(w.client.Delete(ctx, p, client.GracePeriodSeconds(0))); err != nil {
					return err
				}
			}
			return fmt.Errorf("%s is there yet", p.Name)
		}
		return nil
	})
}
