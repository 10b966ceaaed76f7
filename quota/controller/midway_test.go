package controller_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// Four jobs fill a node, a fifth of higher priority evicts one of them, and the
// controller is replaced at some instant of all this.
func TestAReplacedControllerAdmitsNoMoreThanTheCardsHold(t *testing.T) {
	for _, after := range []time.Duration{200, 400, 600, 900} {
		t.Run(fmt.Sprintf("after %dms", after), func(t *testing.T) {
			w := newWorld(t)
			w.node(t, "a100", 4, "80000Mi", "20000Mi", nil)
			flavor := w.flavor(t, "a100", nil)
			queue := w.queue(t, "q", flavor, "nvidia.com/gpu=24")
			preempt := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"preemption":{"withinClusterQueue":"LowerPriority"}}}`))
			if err := w.client.Patch(t.Context(), &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: queue}}, preempt); err != nil {
				t.Fatal(err)
			}
			pc := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: w.ns + "-high"}, Value: 1000}
			if err := w.client.Create(t.Context(), pc); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = w.client.Delete(context.Background(), pc) })
			c := w.start(t)
			w.serveWebhook(t, c)
			for i := range 4 {
				w.create(t, job(fmt.Sprintf("experiment-%d", i), "queue-q", 4, "1"))
			}
			production := job("production", "queue-q", 4, "1")
			production.Spec.Template.Spec.PriorityClassName = pc.Name
			w.create(t, production)
			time.Sleep(after * time.Millisecond)
			w.halt()
			c = w.start(t)
			w.serveWebhook(t, c)
			admitted := func(ctx context.Context) (int, error) {
				var all kueue.WorkloadList
				n := 0
				err := w.client.List(ctx, &all, client.InNamespace(w.ns))
				for i := range all.Items {
					if all.Items[i].Status.Admission != nil {
						n++
					}
				}
				return n, err
			}
			w.allBound(t, "production", 4)
			apitest.Eventually(t, apitest.Patience, "four admitted", func(ctx context.Context) error {
				if n, err := admitted(ctx); err != nil || n != 4 {
					return fmt.Errorf("%d admitted, %v", n, err)
				}
				return nil
			})
			holds(t, time.Second, "the node has 16 slices", func(ctx context.Context) error {
				if n, err := admitted(ctx); err != nil || n > 4 {
					return fmt.Errorf("%d jobs of 4 pods are admitted, %v", n, err)
				}
				return nil
			})
		})
	}
}
