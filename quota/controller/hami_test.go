package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

func limited(p *corev1.Pod, limits ...string) *corev1.Pod {
	p.Spec.Containers[0].Resources.Limits = limitsOf(limits...)
	return p
}

func limitsOf(limits ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, l := range limits {
		name, q, _ := strings.Cut(l, "=")
		list[corev1.ResourceName(name)] = resource.MustParse(q)
	}
	return list
}

// templatesOf lists the claim templates of the namespace.
func (w *world) templatesOf(t *testing.T) []resourceapi.ResourceClaimTemplate {
	t.Helper()
	var all resourceapi.ResourceClaimTemplateList
	if err := w.client.List(t.Context(), &all, client.InNamespace(w.ns)); err != nil {
		t.Fatal(err)
	}
	return all.Items
}

func TestPodsWrittenForHAMiRunUnmodified(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 2, "80Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu=8", "nvidia.com/gpu-memory=100Gi", "nvidia.com/gpu-core-percent=300")
	c := w.start(t)
	w.serveWebhook(t, c)

	w.create(t, limited(pod("article", "queue-q"), "nvidia.com/gpu=1", "nvidia.com/gpu-memory=20Gi", "nvidia.com/gpu-core-percent=50"))
	w.create(t, limited(pod("hami", "queue-q"), "nvidia.com/gpu=1", "nvidia.com/gpumem=20480", "nvidia.com/gpucores=50"))
	w.bound(t, "article")
	got := w.bound(t, "hami")
	w.usage(t, queue, "nvidia.com/gpu=2", "nvidia.com/gpu-memory=40Gi", "nvidia.com/gpu-core-percent=100")
	if all := w.templatesOf(t); len(all) != 1 {
		t.Errorf("%d claim templates for one request", len(all))
	}
	for _, name := range []corev1.ResourceName{"nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"} {
		if _, left := got.Spec.Containers[0].Resources.Requests[name]; left {
			t.Errorf("%s is left among the requests", name)
		}
	}

	// A job's pods ask for the same; its template stays as it is.
	job := &batchv1.Job{}
	job.Name, job.Labels = "job", map[string]string{controller.QueueLabel: "queue-q"}
	job.Spec = batchv1.JobSpec{Parallelism: ptr.To(int32(2)), Completions: ptr.To(int32(2)), Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers:    []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Limits: limitsOf("nvidia.com/gpumem=10240", "nvidia.com/gpucores=10")}}},
	}}}
	w.create(t, job)
	w.usage(t, queue, "nvidia.com/gpu=4", "nvidia.com/gpu-memory=60Gi", "nvidia.com/gpu-core-percent=120")
	apitest.Eventually(t, apitest.Patience, "the job's pods bound", func(ctx context.Context) error {
		var pods corev1.PodList
		if err := w.client.List(ctx, &pods, client.InNamespace(w.ns), client.MatchingLabels{"batch.kubernetes.io/job-name": "job"}); err != nil {
			return err
		}
		n := 0
		for i := range pods.Items {
			if pods.Items[i].Spec.NodeName != "" {
				n++
			}
		}
		if n != 2 {
			return fmt.Errorf("%d of %d pods are bound", n, len(pods.Items))
		}
		return nil
	})
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
		t.Fatal(err)
	}
	if q := job.Spec.Template.Spec.Containers[0].Resources.Limits["nvidia.com/gpumem"]; q.Value() != 10240 {
		t.Errorf("the job's template was changed: %v", job.Spec.Template.Spec.Containers[0].Resources)
	}
}

func TestLimitsThatMakeNoSenseAreRefusedAtCreation(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	c := w.start(t)
	w.serveWebhook(t, c)
	p := limited(pod("bare", "queue-q"), "nvidia.com/gpu=1", "nvidia.com/gpu-memory=3000")
	p.Namespace = w.ns
	err := w.client.Create(t.Context(), p)
	if err == nil || !strings.Contains(err.Error(), "nvidia.com/gpu-memory is in bytes, and 3000 bytes are less than 1Mi; write the unit, as in 3000Mi") {
		t.Errorf("%v", err)
	}
}

func TestAClaimTemplateOfThatNameWithOtherContentIsNotUsed(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu-memory=100Gi")
	c := w.start(t)
	w.serveWebhook(t, c)

	dry := limited(pod("dry", "queue-q"), "nvidia.com/gpumem=10240")
	dry.Namespace = w.ns
	if err := w.client.Create(t.Context(), dry, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if all := w.templatesOf(t); len(all) != 0 {
		t.Errorf("a dry run leaves %d claim templates", len(all))
	}
	w.template(t, *dry.Spec.ResourceClaims[0].ResourceClaimTemplateName, "40Gi", "")
	w.create(t, limited(pod("real", "queue-q"), "nvidia.com/gpumem=10240"))
	w.bound(t, "real")
	w.usage(t, queue, "nvidia.com/gpu-memory=10Gi")
}
