package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

const later = "example.com/later"

// nominated waits until a pod is past our gate and nominated to a node, with a
// ticket that names its pool first.
func (w *world) nominated(t *testing.T, name, node string) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, "pod "+name+" nominated to "+node, func(ctx context.Context) error {
		p := &corev1.Pod{}
		if err := w.client.Get(ctx, client.ObjectKey{Namespace: w.ns, Name: name}, p); err != nil {
			return err
		}
		if controller.HasGate(p) || p.Status.NominatedNodeName != node {
			return fmt.Errorf("gates %v, nominated %q", p.Spec.SchedulingGates, p.Status.NominatedNodeName)
		}
		claim, err := w.claimOf(ctx, p)
		if err != nil {
			return err
		}
		if tick, err := ticket.Read(claim.Annotations); err != nil || tick == nil || len(tick.Pools) == 0 || tick.Pools[0] != node {
			return fmt.Errorf("ticket %+v, %v", tick, err)
		}
		return nil
	})
}

// claimOf is the claim that was made for a pod.
func (w *world) claimOf(ctx context.Context, p *corev1.Pod) (*resourceapi.ResourceClaim, error) {
	var all resourceapi.ResourceClaimList
	if err := w.client.List(ctx, &all, client.InNamespace(w.ns)); err != nil {
		return nil, err
	}
	for i := range all.Items {
		if metav1.IsControlledBy(&all.Items[i], p) {
			return &all.Items[i], nil
		}
	}
	return nil, fmt.Errorf("no claim of pod %s", p.Name)
}

// A pod past our gate has not been scheduled yet, since somebody else's gate holds
// it, when its node will not do any more.
func TestAPodIsNominatedAgainWhenItsNodeWillNotDoAnyMore(t *testing.T) {
	w := newWorld(t)
	flavor := w.flavor(t, "gpu", nil)
	w.queue(t, "q", flavor, "nvidia.com/gpu-memory=500Gi")
	w.template(t, "t", "20Gi", "")
	w.start(t)
	merge := func(t *testing.T, name, patch string, status bool) {
		t.Helper()
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		var err error
		if raw := client.RawPatch("application/merge-patch+json", []byte(patch)); status {
			err = w.client.Status().Patch(t.Context(), n, raw)
		} else {
			err = w.client.Patch(t.Context(), n, raw)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T, node string)
	}{
		{"cordoned", func(t *testing.T, node string) { merge(t, node, `{"spec":{"unschedulable":true}}`, false) }},
		{"full", func(t *testing.T, node string) { merge(t, node, `{"status":{"allocatable":{"cpu":"1m"}}}`, true) }},
		{"deleted", func(t *testing.T, node string) {
			if err := w.client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			first := w.node(t, "a-"+tc.name, 1, "20Gi", "", nil)
			p := gated(withTemplate(pod(tc.name, "queue-q"), "t"))
			p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: later})
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("100m")}
			w.create(t, p)
			w.nominated(t, p.Name, first)
			second := w.node(t, "b-"+tc.name, 1, "20Gi", "", nil)
			tc.spoil(t, first)
			w.nominated(t, p.Name, second)
			open := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"schedulingGates":null}}`))
			if err := w.client.Patch(t.Context(), p, open); err != nil {
				t.Fatal(err)
			}
			if got := w.bound(t, p.Name); got.Spec.NodeName != second {
				t.Errorf("on %s, want %s", got.Spec.NodeName, second)
			}
			// The next has an empty field.
			if err := w.client.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
				t.Fatal(err)
			}
			for _, node := range []string{first, second} {
				_ = w.client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
			}
		})
	}
}

// The budget fits, but no card has a hole: the reason names the holes, and smaller
// ones go on.
func TestWhoFindsNoHoleSaysSoAndSmallerOnesGoOn(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 3, "24Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	w.queue(t, "q", flavor, "nvidia.com/gpu-memory=500Gi")
	w.template(t, "t13", "13Gi", "")
	w.template(t, "t20", "20Gi", "")
	w.template(t, "t5", "5Gi", "")
	w.start(t)
	for i := range 3 {
		name := fmt.Sprintf("half-%d", i)
		w.create(t, gated(withTemplate(pod(name, "queue-q"), "t13")))
		w.bound(t, name)
	}
	large := gated(withTemplate(pod("large", "queue-q"), "t20"))
	w.create(t, large)
	w.waits(t, large, "no card has 20Gi free; largest holes 11Gi on ")
	w.create(t, gated(withTemplate(pod("small", "queue-q"), "t5")))
	w.bound(t, "small")
	if err := w.unbound("large")(t.Context()); err != nil {
		t.Error(err)
	}
}

// Small pods come and go and always leave some of the card in use. The one that
// needs all of it has its turn after holeReserveAfter.
func TestAWholeCardIsKeptForWhoHasWaitedLongEnough(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "400Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	w.queue(t, "q", flavor, "nvidia.com/gpu-memory=5000Gi")
	w.template(t, "small", "1Gi", "")
	w.template(t, "whole", "", "")
	w.startWith(t, "holeReserveAfter: 2s")
	w.create(t, gated(withTemplate(pod("small", "queue-q"), "small")))
	w.bound(t, "small")
	whole := gated(withTemplate(pod("whole", "queue-q"), "whole"))
	w.create(t, whole)
	w.waits(t, whole, "no card has")
	n := 0
	apitest.Eventually(t, apitest.Patience, "small ones are held back", func(ctx context.Context) error {
		n++
		p := gated(withTemplate(pod(fmt.Sprintf("small-%d", n), "queue-q"), "small"))
		p.Namespace = w.ns
		if err := w.client.Create(ctx, p); err != nil {
			return err
		}
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			if wl, err := w.workloadOf(ctx, p); err == nil && wl.Status.Admission != nil {
				return fmt.Errorf("%s got in", p.Name)
			} else if err == nil && strings.Contains(fmt.Sprint(wl.Status.Conditions), "NoRoom") {
				return nil
			}
		}
		return fmt.Errorf("nothing is said of %s", p.Name)
	})
	apitest.Eventually(t, apitest.Patience, "the card is given when the small ones have ended", func(ctx context.Context) error {
		var pods corev1.PodList
		if err := w.client.List(ctx, &pods, client.InNamespace(w.ns)); err != nil {
			return err
		}
		on := ""
		for i := range pods.Items {
			switch p := &pods.Items[i]; {
			case p.Name == whole.Name:
				on = p.Spec.NodeName
			case p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded:
				w.end(t, p)
			}
		}
		if on == "" {
			return fmt.Errorf("%d pods, %s is not on a node", len(pods.Items), whole.Name)
		}
		return nil
	})
}
