package scenarios

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// quotaConfigured adds lines to the quota controller's configuration until the test ends.
func quotaConfigured(t *testing.T, ctx context.Context, lines string) {
	t.Helper()
	maps := bed.Client.CoreV1().ConfigMaps(testbed.SystemNamespace)
	before, err := maps.Get(ctx, "sluice-quota", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	set := func(ctx context.Context, text string) error {
		now, err := maps.Get(ctx, "sluice-quota", metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Data["quota.yaml"] = text
		if _, err := maps.Update(ctx, now, metav1.UpdateOptions{}); err != nil {
			return err
		}
		for _, step := range [][]string{{"restart"}, {"status", "--timeout=6m"}} {
			args := append([]string{"--namespace", testbed.SystemNamespace, "rollout"}, append(step, "deployment/sluice-quota")...)
			if _, err := bed.Cluster.Kubectl(ctx, args...); err != nil {
				return err
			}
		}
		return nil
	}
	t.Cleanup(func() {
		if err := set(context.WithoutCancel(ctx), before.Data["quota.yaml"]); err != nil {
			t.Error(err)
		}
	})
	if err := set(ctx, before.Data["quota.yaml"]+lines); err != nil {
		t.Fatal(err)
	}
}

// TestAWholeCardIsKeptForWhoWaitsWhileSmallPodsCome: all cards but one are taken, and half of that.
// Small pods would fit beside the half for ever, were the card not kept after a while.
func TestAWholeCardIsKeptForWhoWaitsWhileSmallPodsCome(t *testing.T) {
	ctx, ns := scenario(t)
	quotaConfigured(t, ctx, "holeReserveAfter: 3s\n")
	budgetOn(t, ctx, ns, 10, "{slicing: dynamic}")
	cards, err := bed.Published(ctx, dynamicNode)
	if err != nil {
		t.Fatal(err)
	}
	// What only looks at the node is a device as well.
	cards = slices.DeleteFunc(cards, func(d resourceapi.Device) bool { _, has := d.Capacity["memory"]; return !has })
	memory := cards[0].Capacity["memory"]
	card := memory.Value.Value() >> 20
	for name, size := range map[string]string{"whole": mi(card), "half": mi(card / 2), "small": mi(1 << 10)} {
		create(t, ctx, ns, testbed.Template(name, testbed.Capacity{Memory: size}))
	}
	queued := func(name, template string) {
		t.Helper()
		create(t, ctx, ns, testbed.Pod(name, []string{"hold"}, testbed.WithTemplate(template), testbed.WithLabel("kueue.x-k8s.io/queue-name", "queue")))
	}
	runs := func(name string) {
		t.Helper()
		if _, err := bed.WaitPhase(patient(t, ctx), ns, name, corev1.PodRunning); err != nil {
			t.Fatal(err)
		}
	}
	gone := func(name string) {
		t.Helper()
		if err := bed.Client.CoreV1().Pods(ns).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range cards[1:] {
		name := fmt.Sprintf("taken-%d", i)
		queued(name, "whole")
		runs(name)
	}
	queued("half", "half")
	runs("half")
	queued("waits", "whole")
	if _, err := bed.WaitWorkload(patient(t, ctx), ns, "waits", "waiting for room", func(w testbed.Workload) bool { return strings.Contains(w.Why, "free") }); err != nil {
		t.Fatal(err)
	}

	// They fit, until the card is kept.
	small := ""
	for i := 0; small == ""; i++ {
		if i == 30 {
			t.Fatal("the card is not kept: small pods go on taking it")
		}
		name := fmt.Sprintf("small-%d", i)
		queued(name, "small")
		w, err := bed.WaitWorkload(patient(t, ctx), ns, name, "admitted or waiting for room", func(w testbed.Workload) bool { return w.Admitted || strings.Contains(w.Why, "free") })
		if err != nil {
			t.Fatal(err)
		}
		if w.Admitted {
			runs(name)
			gone(name)
			continue
		}
		small = name
	}
	gone("half")
	runs("waits")
	w, err := bed.Workloads(ctx, ns)
	if err != nil || w[small].Admitted {
		t.Errorf("%s took what was kept for another: %+v, %v", small, w[small], err)
	}
	gone("waits")
	runs(small)
}
