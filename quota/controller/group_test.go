package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// grouped is a pod of a group of so many.
func grouped(p *corev1.Pod, group string, total int) *corev1.Pod {
	p.Labels[controller.GroupLabel] = group
	p.Annotations = map[string]string{controller.GroupTotal: fmt.Sprint(total)}
	return p
}

// hears waits for an event on a pod.
func (w *world) hears(t *testing.T, pod, reason, says string) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, reason+" on pod "+pod, func(ctx context.Context) error {
		var events corev1.EventList
		if err := w.client.List(ctx, &events, client.InNamespace(w.ns)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Name == pod && e.Reason == reason && strings.Contains(e.Message, says) {
				return nil
			}
		}
		return fmt.Errorf("%d events", len(events.Items))
	})
}

// stillGated asserts that pods wait at their gates.
func (w *world) stillGated(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		p := &corev1.Pod{}
		if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: w.ns, Name: name}, p); err != nil {
			t.Fatal(err)
		}
		if !controller.HasGate(p) {
			t.Errorf("pod %s went past its gate", name)
		}
	}
}

func TestAPodGroupRunsTogetherOrNotAtAll(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80000Mi", "40000Mi", nil)
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu=8")
	c := w.start(t)
	w.serveWebhook(t, c)

	// Two of three, and then there is budget for all but room for two.
	w.create(t, grouped(withLimit(pod("g-0", "queue-q"), "1"), "g", 3))
	w.create(t, grouped(withLimit(pod("g-1", "queue-q"), "1"), "g", 3))
	w.hears(t, "g-0", "GroupIncomplete", "of its 3 pods")
	w.usage(t, queue, "nvidia.com/gpu=0")
	w.create(t, grouped(pod("g-driver", "queue-q"), "g", 4))
	w.hears(t, "g-driver", "GroupIncomplete", "1 of its 4 pods")
	w.create(t, grouped(withLimit(pod("g-2", "queue-q"), "1"), "g", 3))
	w.hears(t, "g-0", "NoRoom", "")
	w.stillGated(t, "g-0", "g-1", "g-2", "g-driver")
	w.usage(t, queue, "nvidia.com/gpu=0")

	w.node(t, "n2", 1, "80000Mi", "40000Mi", nil)
	for _, name := range []string{"g-0", "g-1", "g-2"} {
		w.bound(t, name)
	}
	w.stillGated(t, "g-driver")
	w.usage(t, queue, "nvidia.com/gpu=3")
}

func TestNobodyRidesOnAGroupsQuotaButWhoTakesAPlaceInIt(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 2, "80000Mi", "20000Mi", nil)
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu=2")
	other := w.queue(t, "other", flavor, "nvidia.com/gpu=0")
	c := w.start(t)
	w.serveWebhook(t, c)

	w.create(t, grouped(withLimit(pod("g-0", "queue-q"), "1"), "g", 2))
	w.create(t, grouped(withLimit(pod("g-1", "queue-q"), "1"), "g", 2))
	first := w.bound(t, "g-0")
	w.bound(t, "g-1")
	w.usage(t, queue, "nvidia.com/gpu=2")

	// One too many, and one of another queue.
	w.create(t, grouped(withLimit(pod("third", "queue-q"), "1"), "g", 2))
	w.hears(t, "third", "NotInGroup", "none that this one could replace is gone")
	w.create(t, grouped(withLimit(pod("stranger", "queue-other"), "1"), "g", 2))
	w.hears(t, "stranger", "GroupIncomplete", "1 of its 2 pods")
	w.stillGated(t, "third", "stranger")
	if first.Labels[controller.PodSetLabel] == "" {
		t.Error("the set of a member is not noted")
	}

	// A member goes: the third takes its place, and never are there more than two.
	if err := w.client.Delete(t.Context(), first, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	third := w.bound(t, "third")
	w.usage(t, queue, "nvidia.com/gpu=2")
	w.usage(t, other, "nvidia.com/gpu=0")
	w.stillGated(t, "stranger")

	// All end: the quota is free, and the group of that name can be made again.
	w.end(t, third)
	w.usage(t, queue, "nvidia.com/gpu=2")
	second := w.bound(t, "g-1")
	w.end(t, second)
	w.usage(t, queue, "nvidia.com/gpu=0")
	for _, p := range []*corev1.Pod{third, second} {
		if err := w.client.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	w.create(t, grouped(withLimit(pod("again-0", "queue-q"), "1"), "g", 2))
	w.create(t, grouped(withLimit(pod("again-1", "queue-q"), "1"), "g", 2))
	w.bound(t, "again-0")
	w.bound(t, "again-1")
	w.usage(t, queue, "nvidia.com/gpu=2")

	// Pods deleted while they run give everything back.
	for _, name := range []string{"again-0", "again-1"} {
		p := w.bound(t, name)
		if err := w.client.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	w.usage(t, queue, "nvidia.com/gpu=0")
}

func TestAnEvictedGroupWaitsUntilItsPodsAreMadeAnew(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80000Mi", "20000Mi", nil)
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu=4")
	c := w.start(t)
	w.serveWebhook(t, c)
	for _, name := range []string{"g-0", "g-1"} {
		w.create(t, grouped(withLimit(pod(name, "queue-q"), "1"), "g", 2))
	}
	pods := []*corev1.Pod{w.bound(t, "g-0"), w.bound(t, "g-1")}
	w.stopQueue(t, queue, kueue.HoldAndDrain)
	apitest.Eventually(t, apitest.Patience, "pods told to go", func(ctx context.Context) error {
		for _, p := range pods {
			if err := w.client.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
				return err
			}
			if p.DeletionTimestamp == nil {
				return fmt.Errorf("pod %s is left alone", p.Name)
			}
		}
		return nil
	})
	w.usage(t, queue, "nvidia.com/gpu=2")
	for _, p := range pods {
		if err := w.client.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	w.usage(t, queue, "nvidia.com/gpu=0")
	w.stopQueue(t, queue, kueue.None)
	w.create(t, grouped(withLimit(pod("new-0", "queue-q"), "1"), "g", 2))
	w.create(t, grouped(withLimit(pod("new-1", "queue-q"), "1"), "g", 2))
	w.bound(t, "new-0")
	w.bound(t, "new-1")
}
