package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/jobs"
)

// label gives an object a label, or takes it with an empty value.
func (w *world) label(t *testing.T, o client.Object, key, value string) error {
	t.Helper()
	text := "null"
	if value != "" {
		text = fmt.Sprintf("%q", value)
	}
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, key, text)
	return w.client.Patch(t.Context(), o.DeepCopyObject().(client.Object), client.RawPatch("application/merge-patch+json", []byte(patch)))
}

// withdrawn waits until a job has no Workload and is suspended or not.
func (w *world) withdrawn(t *testing.T, j *batchv1.Job, suspended bool) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, j.Name+" withdrawn", func(ctx context.Context) error {
		if wl, err := w.workloadOf(ctx, j); err == nil {
			return fmt.Errorf("it has Workload %s", wl.Name)
		}
		now := &batchv1.Job{}
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(j), now); err != nil {
			return err
		}
		if ptr.Deref(now.Spec.Suspend, false) != suspended {
			return fmt.Errorf("suspended %v", now.Spec.Suspend)
		}
		if !suspended && now.Annotations[jobs.HeldAnnotation] != "" {
			return fmt.Errorf("annotations %v", now.Annotations)
		}
		return nil
	})
}

func TestAJobWhoseQueueLabelChangesWhileItWaitsFollows(t *testing.T) {
	w := newWorld(t)
	w.node(t, "fixed", 1, "80000Mi", "20000Mi", nil)
	flavor := w.flavor(t, "a100", nil)
	w.queue(t, "none", flavor, "nvidia.com/gpu=0")
	open := w.queue(t, "open", flavor, "nvidia.com/gpu=2")
	c := w.start(t)
	w.serveWebhook(t, c)
	waiting := func(name string, suspended *bool) *batchv1.Job {
		j := job(name, "queue-none", 1, "1")
		j.Spec.Suspend = suspended
		w.create(t, j)
		w.waits(t, j, "nvidia.com/gpu")
		return j
	}
	meant, held := waiting("meant-to-run", nil), waiting("held-by-its-user", ptr.To(true))
	moved := waiting("moved", nil)
	// An earlier version suspended it, and left no mark; its user applied it as one
	// that runs.
	older := job("of-an-earlier-version", "queue-none", 1, "1")
	older.Spec.Suspend = ptr.To(true)
	older.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"of-an-earlier-version"},"spec":{}}`}
	w.create(t, older)
	w.waits(t, older, "nvidia.com/gpu")
	for _, j := range []*batchv1.Job{meant, held, older} {
		if err := w.label(t, j, controller.QueueLabel, ""); err != nil {
			t.Fatal(err)
		}
	}
	w.withdrawn(t, meant, false)
	w.withdrawn(t, older, false)
	w.withdrawn(t, held, true)
	w.hearsAny(t, "Job", held.Name, "StaysSuspended", "set spec.suspend to false")

	if err := w.label(t, moved, controller.QueueLabel, "queue-open"); err != nil {
		t.Fatal(err)
	}
	w.allBound(t, "moved", 1)
	w.usage(t, open, "nvidia.com/gpu=1")
	// And it may come back.
	if err := w.label(t, held, controller.QueueLabel, "queue-open"); err != nil {
		t.Fatal(err)
	}
	w.allBound(t, "held-by-its-user", 1)

	for _, queue := range []string{"", "queue-none"} {
		err := w.label(t, moved, controller.QueueLabel, queue)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "can be changed only while it waits") {
			t.Errorf("the label of an admitted job can be changed to %q: %v", queue, err)
		}
	}
	w.usage(t, open, "nvidia.com/gpu=2")
}

func TestAChangedPriorityClassChangesTheOrder(t *testing.T) {
	w := newWorld(t)
	w.node(t, "fixed", 1, "80000Mi", "20000Mi", nil)
	flavor := w.flavor(t, "a100", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu=0")
	urgent := &kueue.WorkloadPriorityClass{ObjectMeta: metav1.ObjectMeta{Name: w.ns + "-urgent"}, Value: 1000}
	if err := w.client.Create(t.Context(), urgent); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.client.Delete(context.Background(), urgent) })
	w.serveWebhook(t, w.start(t))
	older, newer, third := job("older", "queue-q", 1, "1"), job("newer", "queue-q", 1, "1"), job("third", "queue-q", 1, "1")
	for _, j := range []*batchv1.Job{older, newer, third} {
		w.create(t, j)
		w.waits(t, j, "nvidia.com/gpu")
	}
	priority := func(j *batchv1.Job, want int32) {
		t.Helper()
		w.becomes(t, j, fmt.Sprintf("of priority %d", want), func(wl *kueue.Workload) bool { return ptr.Deref(wl.Spec.Priority, 0) == want })
	}
	for _, j := range []*batchv1.Job{newer, third} {
		if err := w.label(t, j, controller.PriorityLabel, urgent.Name); err != nil {
			t.Fatal(err)
		}
		priority(j, 1000)
	}
	if err := w.label(t, third, controller.PriorityLabel, ""); err != nil {
		t.Fatal(err)
	}
	priority(third, 0)
	w.patchQueue(t, queue, `{"resourceGroups":[{"coveredResources":["nvidia.com/gpu"],"flavors":[{"name":"`+flavor+`","resources":[{"name":"nvidia.com/gpu","nominalQuota":"1"}]}]}]}`)
	w.allBound(t, "newer", 1)
	for _, j := range []*batchv1.Job{older, third} {
		if wl, err := w.workloadOf(t.Context(), j); err != nil || wl.Status.Admission != nil {
			t.Errorf("%s went first: %v", j.Name, err)
		}
	}
}
