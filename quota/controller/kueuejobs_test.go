package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

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
