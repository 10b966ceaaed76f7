package controller_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// TestAWorkloadSaysThatAPreemptionGateIsInItsWay: until the gate is opened.
func TestAWorkloadSaysThatAPreemptionGateIsInItsWay(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "24Gi", "", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "cpu=1")
	patch := []byte(`{"spec":{"preemption":{"withinClusterQueue":"LowerPriority"}}}`)
	if err := w.client.Patch(t.Context(), &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: queue}}, client.RawPatch("application/merge-patch+json", patch)); err != nil {
		t.Fatal(err)
	}
	w.start(t)
	queued := func(name string, priority int32, gates ...kueue.PreemptionGate) *kueue.Workload {
		wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
		template := pod("x", "")
		template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1")}
		set := kueue.PodSet{Name: "main", Count: 1}
		set.Template.Spec = template.Spec
		wl.Spec = kueue.WorkloadSpec{QueueName: "queue-q", Priority: ptr.To(priority), PodSets: []kueue.PodSet{set}, PreemptionGates: gates}
		w.create(t, wl)
		return wl
	}
	says := func(wl *kueue.Workload, kind string, want metav1.ConditionStatus) {
		t.Helper()
		apitest.Eventually(t, apitest.Patience, fmt.Sprintf("%s of %s is %s", kind, wl.Name, want), func(ctx context.Context) error {
			if err := w.client.Get(ctx, client.ObjectKeyFromObject(wl), wl); err != nil {
				return err
			}
			if c := meta.FindStatusCondition(wl.Status.Conditions, kind); c == nil || c.Status != want {
				return fmt.Errorf("conditions %v", wl.Status.Conditions)
			}
			return nil
		})
	}
	says(queued("low", 0), kueue.WorkloadAdmitted, metav1.ConditionTrue)
	high := queued("high", 9, kueue.PreemptionGate{Name: "gate"})
	says(high, kueue.WorkloadBlockedOnPreemptionGates, metav1.ConditionTrue)
	if c := meta.FindStatusCondition(high.Status.Conditions, kueue.WorkloadBlockedOnPreemptionGates); c.Reason != kueue.PreemptionGated {
		t.Errorf("reason %s", c.Reason)
	}
	open := []byte(`{"status":{"preemptionGates":[{"name":"gate","position":"Open","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
	if err := w.client.Status().Patch(t.Context(), high, client.RawPatch("application/merge-patch+json", open)); err != nil {
		t.Fatal(err)
	}
	says(high, kueue.WorkloadAdmitted, metav1.ConditionTrue)
	says(high, kueue.WorkloadBlockedOnPreemptionGates, metav1.ConditionFalse)
}
