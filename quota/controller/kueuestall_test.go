package controller_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// The cards that it was promised go after Kueue has admitted it and before its pods
// come: it gives its quota back, and comes again with the cards. Its pods are made by
// the test, so that they come when they should.
func TestBesideKueueWhatLostItsCardsBeforeItBeganGivesItsQuotaBack(t *testing.T) {
	w, _ := besideKueue(t)
	node := w.node(t, "a", 1, "80Gi", "", nil)
	queue := w.checked(t, "q", w.flavor(t, "f", nil), "nvidia.com/gpu=4", "nvidia.com/gpu-memory=400Gi")
	w.template(t, "half", "50Gi", "")
	w.startWith(t, "engine: kueue").SetStartPatience(2 * time.Second)
	job := w.besideJob("late", "queue-q", "half")
	delete(job.Labels, controller.PriorityLabel)
	job.Spec.ManagedBy = ptr.To("example.com/test")
	w.create(t, job)
	admitted := func(wl *kueue.Workload) bool {
		return meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadAdmitted)
	}
	wl := w.workload(t, job, "admitted", admitted)
	w.suspended(t, job, false)

	slice := &resourceapi.ResourceSlice{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: node}, slice); err != nil {
		t.Fatal(err)
	}
	if err := w.client.Delete(t.Context(), slice.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	w.create(t, podOf(job, "late-0"))
	// The condition may be of a later try by the time that it is read.
	w.hearsAny(t, "Workload", wl.Name, "EvictedDueToAdmissionCheck", "It was admitted, but cards have no room any more: ")
	w.hearsAny(t, "Pod", "late-0", "NoRoom", "the gate stays closed")
	w.suspended(t, job, true)
	if err := w.client.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "late-0"}}, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}

	slice.ResourceVersion, slice.UID = "", ""
	if err := w.client.Create(t.Context(), slice); err != nil {
		t.Fatal(err)
	}
	w.workload(t, job, "admitted again", admitted)
	w.suspended(t, job, false)
	w.create(t, podOf(job, "late-1"))
	w.bound(t, "late-1")
	w.usage(t, queue, "nvidia.com/gpu=1")
}

// suspended waits until a job is, or is not; job is what it is then.
func (w *world) suspended(t *testing.T, job *batchv1.Job, want bool) {
	t.Helper()
	apitest.Eventually(t, patience, fmt.Sprintf("job %s suspended: %v", job.Name, want), func(ctx context.Context) error {
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		if ptr.Deref(job.Spec.Suspend, false) != want {
			return fmt.Errorf("it is not so")
		}
		return nil
	})
}

// podOf makes a pod of a job, as a controller of it would.
func podOf(job *batchv1.Job, name string) *corev1.Pod {
	template := job.Spec.Template.DeepCopy()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}},
		Spec: template.Spec,
	}
}
