package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/jobs"
)

func job(name, queue string, pods int32, gpus string) *batchv1.Job {
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{controller.QueueLabel: queue}},
		Spec: batchv1.JobSpec{
			Suspend: ptr.To(true), Parallelism: &pods, Completions: &pods,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
				Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever,
					Tolerations:   []corev1.Toleration{{Key: "mine", Operator: corev1.TolerationOpExists}},
					Containers:    []corev1.Container{{Name: "c", Image: "i"}},
				},
			},
		},
	}
	if gpus != "" {
		j.Spec.Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus)}
	}
	return j
}

func (w *world) podsOf(t *testing.T, ctx context.Context, name string) []corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	if err := w.client.List(ctx, &pods, client.InNamespace(w.ns), client.MatchingLabels{"app": name}); err != nil {
		t.Fatal(err)
	}
	return pods.Items
}

// allBound waits until all pods of a job are on nodes.
func (w *world) allBound(t *testing.T, name string, n int) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	apitest.Eventually(t, apitest.Patience, fmt.Sprintf("%d pods of job %s bound", n, name), func(ctx context.Context) error {
		pods = w.podsOf(t, ctx, name)
		on := 0
		for i := range pods {
			if pods[i].Spec.NodeName != "" {
				on++
			}
		}
		if on != n {
			return fmt.Errorf("%d of %d pods", on, len(pods))
		}
		return nil
	})
	return pods
}

func TestAJobIsStartedOnItsFlavorAndEachPodIsOpened(t *testing.T) {
	w := newWorld(t)
	node := w.node(t, "fixed", 1, "80000Mi", "20000Mi", map[string]string{"gpu-type": "a100"})
	taint := []byte(`{"spec":{"taints":[{"key":"nvidia.com/gpu","value":"true","effect":"NoSchedule"}]}}`)
	if err := w.client.Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch("application/merge-patch+json", taint)); err != nil {
		t.Fatal(err)
	}
	flavor := w.flavor(t, "a100", map[string]string{"gpu-type": "a100"}, corev1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu=4")
	c := w.start(t)
	w.serveWebhook(t, c)

	j := job("train", "queue-q", 2, "1")
	w.create(t, j)
	for _, p := range w.allBound(t, "train", 2) {
		if p.Spec.NodeName != node || p.Spec.NodeSelector["gpu-type"] != "a100" {
			t.Errorf("pod on %s, selector %v", p.Spec.NodeName, p.Spec.NodeSelector)
		}
	}
	w.usage(t, queue, "nvidia.com/gpu=2")

	for _, p := range w.podsOf(t, t.Context(), "train") {
		w.end(t, &p)
	}
	w.usage(t, queue, "nvidia.com/gpu=0")
}

func TestAnEvictedJobIsRestoredExactlyAndRunsAgain(t *testing.T) {
	w := newWorld(t)
	w.node(t, "fixed", 1, "80000Mi", "20000Mi", map[string]string{"gpu-type": "a100"})
	flavor := w.flavor(t, "a100", map[string]string{"gpu-type": "a100"}, corev1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists})
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu=4")
	c := w.start(t)
	w.serveWebhook(t, c)

	j := job("train", "queue-q", 2, "1")
	w.create(t, j)
	before := j.Spec.Template.DeepCopy()
	pods := w.allBound(t, "train", 2)

	// The queue is drained: everything admitted has to go.
	stop := func(policy kueue.StopPolicy) {
		patch := fmt.Sprintf(`{"spec":{"stopPolicy":%q}}`, policy)
		if err := w.client.Patch(t.Context(), &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: queue}}, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	stop(kueue.HoldAndDrain)
	// No kubelet ends the pods here; the test does.
	apitest.Eventually(t, apitest.Patience, "pods told to go", func(ctx context.Context) error {
		for _, p := range w.podsOf(t, ctx, "train") {
			if p.DeletionTimestamp == nil {
				return fmt.Errorf("pod %s is left alone", p.Name)
			}
		}
		return nil
	})
	w.usage(t, queue, "nvidia.com/gpu=2")
	for i := range pods {
		if err := w.client.Delete(t.Context(), &pods[i], client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	w.usage(t, queue, "nvidia.com/gpu=0")
	now := &batchv1.Job{}
	apitest.Eventually(t, apitest.Patience, "job restored", func(ctx context.Context) error {
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(j), now); err != nil {
			return err
		}
		if !ptr.Deref(now.Spec.Suspend, false) || now.Annotations[jobs.OriginalAnnotation] != "" {
			return fmt.Errorf("suspended %v, annotations %v", now.Spec.Suspend, now.Annotations)
		}
		return nil
	})
	if diff := cmp.Diff(*before, now.Spec.Template); diff != "" {
		t.Errorf("the template is not as the user wrote it (-want +got):\n%s", diff)
	}
	stop(kueue.None)
	w.allBound(t, "train", 2)
	w.usage(t, queue, "nvidia.com/gpu=2")
}

// The article's manifests on bare nodes like its machines.
func TestTheBudgetFitsButTheCardsDoNot(t *testing.T) {
	w := newWorld(t)
	w.node(t, "a100", 1, "80000Mi", "20000Mi", map[string]string{"gpu-type": "a100"})
	flavor := w.flavor(t, "a100", map[string]string{"gpu-type": "a100"})
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu=16")
	for name, value := range map[string]int32{"low": 10, "high": 1000} {
		pc := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: w.ns + "-" + name}, Value: value}
		if err := w.client.Create(t.Context(), pc); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.client.Delete(context.Background(), pc) })
	}
	c := w.start(t)
	w.serveWebhook(t, c)
	first := job("first", "queue-q", 3, "1")
	w.create(t, first)
	w.allBound(t, "first", 3)

	production := job("production", "queue-q", 2, "1")
	production.Spec.Template.Spec.PriorityClassName = w.ns + "-high"
	w.create(t, production)
	w.waits(t, production, "no card has")
	small := job("small", "queue-q", 1, "1")
	w.create(t, small)
	w.allBound(t, "small", 1)
	w.usage(t, queue, "nvidia.com/gpu=4")

	wl, err := w.workloadOf(t.Context(), production)
	if err != nil || ptr.Deref(wl.Spec.Priority, 0) != 1000 {
		t.Errorf("priority %v, %v", wl.Spec.Priority, err)
	}
	for _, p := range w.podsOf(t, t.Context(), "first") {
		w.end(t, &p)
	}
	w.allBound(t, "production", 2)
}

// The user sees why, on the job itself.
func TestTheReasonIsAnEventOnTheUsersObject(t *testing.T) {
	w := newWorld(t)
	w.node(t, "a100", 1, "80000Mi", "20000Mi", nil)
	flavor := w.flavor(t, "a100", nil)
	w.queue(t, "q", flavor, "nvidia.com/gpu=2")
	w.start(t)
	w.create(t, job("big", "queue-q", 3, "1"))
	apitest.Eventually(t, apitest.Patience, "event on the job", func(ctx context.Context) error {
		var events corev1.EventList
		if err := w.client.List(ctx, &events, client.InNamespace(w.ns)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == "Job" && e.InvolvedObject.Name == "big" && strings.Contains(e.Message, "nvidia.com/gpu") && strings.Contains(e.Message, w.ns+"-q") {
				return nil
			}
		}
		return fmt.Errorf("%d events", len(events.Items))
	})
}
