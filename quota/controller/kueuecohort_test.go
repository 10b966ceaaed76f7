package controller_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// A queue that borrows has the only card. One of the same cohort asks for what is its
// own: the budget allows it, and the borrower leaves the card by Kueue's eviction. It
// waits for room then, and comes back when there is.
func TestBesideKueueABorrowerLeavesTheCardOfAQueueWithinItsNominalQuota(t *testing.T) {
	w, _ := besideKueue(t)
	w.node(t, "a", 1, "80Gi", "", nil)
	f := w.flavor(t, "f", nil)
	owns := w.checked(t, "owns", f, "nvidia.com/gpu=4", "nvidia.com/gpu-memory=400Gi")
	borrows := w.checked(t, "borrows", f, "nvidia.com/gpu=0", "nvidia.com/gpu-memory=0")
	for _, name := range []string{owns, borrows} {
		apitest.Eventually(t, patience, name+" in its cohort", func(ctx context.Context) error {
			q := &kueue.ClusterQueue{}
			if err := w.client.Get(ctx, client.ObjectKey{Name: name}, q); err != nil {
				return err
			}
			q.Spec.CohortName = kueue.CohortReference(w.ns)
			q.Spec.Preemption = &kueue.ClusterQueuePreemption{ReclaimWithinCohort: kueue.PreemptionPolicyAny}
			return w.client.Update(ctx, q)
		})
	}
	w.template(t, "half", "50Gi", "")
	w.startWith(t, "engine: kueue")
	job := func(name, queue string) client.Object {
		j := w.besideJob(name, queue, "half")
		delete(j.Labels, controller.PriorityLabel)
		w.create(t, j)
		return j
	}
	guest := job("guest", "queue-borrows")
	w.jobRuns(t, "guest")
	w.usedBeside(t, borrows, "nvidia.com/gpu", "1")
	job("owner", "queue-owns")
	w.workload(t, guest, "evicted by its check", func(wl *kueue.Workload) bool {
		c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted)
		return c != nil && c.Reason == kueue.WorkloadEvictedByAdmissionCheck && strings.Contains(c.Message, "which ClusterQueue "+owns+" has quota of its own for while "+borrows+" borrows")
	})
	w.vanishJob(t, "guest")
	w.jobRuns(t, "owner")
	w.usedBeside(t, owns, "nvidia.com/gpu", "1")
	// It may have quota reserved again, and gets no card by that.
	w.workload(t, guest, "waits for room", func(wl *kueue.Workload) bool {
		return !meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadAdmitted) &&
			strings.Contains(strings.Join(messages(wl), " "), "no card has 50Gi free")
	})
	var pods corev1.PodList
	if err := w.client.List(t.Context(), &pods, client.InNamespace(w.ns), client.MatchingLabels{"batch.kubernetes.io/job-name": "owner"}); err != nil || len(pods.Items) != 1 || pods.Items[0].DeletionTimestamp != nil {
		t.Fatalf("%d pods, %v", len(pods.Items), err)
	}
	w.end(t, &pods.Items[0])
	w.jobRuns(t, "guest")
}

// messages are those of a Workload's conditions and checks.
func messages(wl *kueue.Workload) (all []string) {
	for _, c := range wl.Status.Conditions {
		all = append(all, c.Message)
	}
	for _, c := range wl.Status.AdmissionChecks {
		all = append(all, c.Message)
	}
	return all
}
