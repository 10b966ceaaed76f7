package scenarios

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// What the T4 node has: two cards, each offered as two slices unless a label says otherwise.
const (
	t4Mi      = 15360 - 265
	t4SliceMi = t4Mi / 2
)

// offers tells whether all cards publish the memory and give that much to a claim that names none.
func offers(memoryMi, defaultMi int64) func([]resourcev1.Device) bool {
	return func(devices []resourcev1.Device) bool {
		cards := 0
		for _, d := range devices {
			memory, ok := d.Capacity["memory"]
			if !ok {
				continue
			}
			if memory.Value.Value() != memoryMi<<20 || memory.RequestPolicy.Default.Value() != defaultMi<<20 || len(d.Taints) > 0 {
				return false
			}
			cards++
		}
		return cards > 0
	}
}

// cut gives the T4 node another mode by a label, until the test ends, and waits for its devices.
func cut(t *testing.T, ctx context.Context, mode string, memoryMi, defaultMi int64) {
	t.Helper()
	if err := bed.Label(ctx, t4Node, "slicing", mode); err != nil {
		t.Fatal(err)
	}
	if _, err := bed.WaitPublished(patient(t, ctx), t4Node, "devices of mode "+mode, offers(memoryMi, defaultMi)); err != nil {
		t.Fatal(err)
	}
}

// asBefore takes the label away at the end.
func asBefore(t *testing.T, ctx context.Context) {
	t.Helper()
	t.Cleanup(func() { cut(t, ctx, "", 2*t4SliceMi, t4SliceMi) })
}

func mi(n int64) string { return fmt.Sprintf("%dMi", n) }

func TestANodesLabelChangesHowItIsCutAndNotWhatRunsThere(t *testing.T) {
	ctx, ns := scenario(t)
	asBefore(t, ctx)
	plain := testbed.WithLimit("nvidia.com/gpu", "1")
	slice := only(t, runPod(t, ctx, ns, testbed.Pod("slice", []string{"hold"}, testbed.OnNode(t4Node), plain)))
	before, err := bed.Client.CoreV1().Pods(ns).Get(ctx, "slice", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if slice.Memory != mi(t4SliceMi) {
		t.Errorf("fixed: a plain limit takes %s, want %dMi", slice.Memory, t4SliceMi)
	}

	cut(t, ctx, "whole", t4Mi, t4Mi)
	create(t, ctx, ns, testbed.Template("small", testbed.Capacity{Memory: "1Gi"}))
	whole := only(t, runPod(t, ctx, ns, testbed.Pod("whole", []string{"info", "hold"}, testbed.OnNode(t4Node), testbed.WithTemplate("small"))))
	if whole.Device == slice.Device || whole.Memory != mi(t4Mi) {
		t.Errorf("whole: a claim of 1Gi took %s of %s; the slice of before is on %s", whole.Memory, whole.Device, slice.Device)
	}
	if step, err := bed.WaitProbe(patient(t, ctx), ns, "whole", "main", "info"); err != nil || step.DeviceTotal != t4Mi<<20 {
		t.Errorf("whole: the program sees %+v (%v)", step, err)
	}
	create(t, ctx, ns, testbed.Pod("third", []string{"hold"}, testbed.OnNode(t4Node), testbed.WithTemplate("small")))
	if _, err := bed.WaitUnschedulable(patient(t, ctx), ns, "third"); err != nil {
		t.Error(err)
	}
	after, err := bed.WaitPhase(patient(t, ctx), ns, "slice", corev1.PodRunning)
	if err != nil || after.UID != before.UID || after.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the slice of before does not run on: %v", err)
	}
	if shares, err := bed.Shares(ctx, ns, "slice"); err != nil || only(t, shares) != slice {
		t.Errorf("the slice was %+v, now %+v (%v)", slice, shares, err)
	}
}

func TestOnAnOversubscribedNodeEverybodyIsLimited(t *testing.T) {
	ctx, ns := scenario(t)
	asBefore(t, ctx)
	cut(t, ctx, "oversubscribed", t4Mi*3/2, t4Mi)
	create(t, ctx, ns, testbed.Template("part", testbed.Capacity{Memory: "11Gi"}))
	for _, name := range []string{"first", "second"} {
		create(t, ctx, ns, testbed.Pod(name, []string{"hold"}, testbed.OnNode(t4Node), testbed.WithTemplate("part")))
	}
	shares := map[string]testbed.Share{}
	for _, name := range []string{"first", "second"} {
		if _, err := bed.WaitPhase(patient(t, ctx), ns, name, corev1.PodRunning); err != nil {
			t.Fatal(err)
		}
		all, err := bed.Shares(ctx, ns, name)
		if err != nil {
			t.Fatal(err)
		}
		shares[name] = only(t, all)
	}
	if shares["first"].Device != shares["second"].Device {
		t.Fatalf("two shares of 11Gi on cards of %dMi are on %+v", t4Mi, shares)
	}
	// Each gets all of its share as long as the other leaves it, and not a byte more.
	for _, name := range []string{"first", "second"} {
		if _, err := bed.Cluster.Kubectl(ctx, "exec", "--namespace", ns, name, "--",
			"/usr/bin/cudaprobe", "alloc:11Gi=SUCCESS", "alloc:1=OUT_OF_MEMORY"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A claim without a size takes the card's own memory, limited, and there is no second one.
	plain := testbed.WithLimit("nvidia.com/gpu", "1")
	create(t, ctx, ns, testbed.Pod("plain", untilRefused, testbed.OnNode(t4Node), plain))
	if sum := took(t, ctx, ns, "plain", "main"); sum != t4Mi<<20 {
		t.Errorf("a plain limit took %d bytes of a card with %dMi", sum, t4Mi)
	}
	if all, err := bed.Shares(ctx, ns, "plain"); err != nil || only(t, all).Memory != mi(t4Mi) {
		t.Errorf("a plain limit has %+v (%v)", all, err)
	}
	create(t, ctx, ns, testbed.Pod("plain-too", []string{"hold"}, testbed.OnNode(t4Node), plain))
	if _, err := bed.WaitUnschedulable(patient(t, ctx), ns, "plain-too"); err != nil {
		t.Error(err)
	}
}

func TestAConfigurationThatDoesNotFitKeepsTheLastOne(t *testing.T) {
	ctx, ns := scenario(t)
	var good string
	change := func(old, now string) {
		t.Helper()
		err := bed.Configure(ctx, func(text string) string {
			if good == "" {
				good = text
			}
			if !strings.Contains(text, old) {
				t.Errorf("no %q in the configuration\n%s", old, text)
			}
			return strings.Replace(text, old, now, 1)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	change("memory: auto", "memory: 8000Mi")
	t.Cleanup(func() {
		if err := bed.Configure(ctx, func(string) string { return good }); err != nil {
			t.Error(err)
		}
		if _, err := bed.WaitPublished(patient(t, ctx), t4Node, "the slices of before", offers(2*t4SliceMi, t4SliceMi)); err != nil {
			t.Error(err)
		}
	})
	err := testbed.Until(patient(t, ctx), "an event on the node that has no room for the slices", func() (bool, string, error) {
		events, err := bed.Events(ctx, "default", t4Node)
		text := strings.Join(events, "\n")
		return strings.Contains(text, "ConfigurationRefused") && strings.Contains(text, "memory: 8000Mi): node group") &&
			strings.Contains(text, fmt.Sprintf("the largest is memory: %dMi", t4SliceMi)), text, err
	})
	if err != nil {
		t.Fatal(err)
	}
	share := only(t, runPod(t, ctx, ns, testbed.Pod("p", []string{"hold"}, testbed.OnNode(t4Node), testbed.WithLimit("nvidia.com/gpu", "1"))))
	if share.Memory != mi(t4SliceMi) {
		t.Errorf("the node gives out %s, want the slices of before", share.Memory)
	}
	change("memory: 8000Mi", "memory: 5000Mi")
	if _, err := bed.WaitPublished(patient(t, ctx), t4Node, "slices of 5000Mi", offers(10000, 5000)); err != nil {
		t.Error(err)
	}
	if _, err := bed.WaitPhase(patient(t, ctx), ns, "p", corev1.PodRunning); err != nil {
		t.Error(err)
	}
}

// tainted tells whether the card in that place has the taint.
func tainted(place int, key string) func([]resourcev1.Device) bool {
	return func(devices []resourcev1.Device) bool {
		for _, taint := range devices[place].Taints {
			if taint.Key == "gpu.sluice.dev/"+key {
				return true
			}
		}
		return false
	}
}

func clean(devices []resourcev1.Device) bool {
	for _, d := range devices {
		if len(d.Taints) > 0 {
			return false
		}
	}
	return len(devices) > 0
}

func TestNoCardIsHandedOutTwice(t *testing.T) {
	ctx, ns := scenario(t)
	plain := func(name string) *corev1.Pod {
		return testbed.Pod(name, []string{"hold"}, testbed.OnNode(t4Node), testbed.WithTemplate("slice"))
	}
	create(t, ctx, ns, testbed.Template("slice", testbed.Capacity{}))

	// The node's status offers cards as a device plugin's kubelet would.
	status := func(op string) {
		t.Helper()
		value := ""
		if op == "add" {
			value = `, "value": "2"`
		}
		patch := fmt.Sprintf(`[{"op": %q, "path": "/status/capacity/nvidia.com~1gpu"%s}, {"op": %[1]q, "path": "/status/allocatable/nvidia.com~1gpu"%[2]s}]`, op, value)
		if _, err := bed.Client.CoreV1().Nodes().Patch(ctx, t4Node, "application/json-patch+json", []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
	}
	status("add")
	if _, err := bed.WaitPublished(patient(t, ctx), t4Node, "the taint of a device plugin", tainted(1, "device-plugin-active")); err != nil {
		t.Fatal(err)
	}
	create(t, ctx, ns, plain("waits"))
	if _, err := bed.WaitUnschedulable(patient(t, ctx), ns, "waits"); err != nil {
		t.Error(err)
	}
	status("remove")
	if _, err := bed.WaitPhase(patient(t, ctx), ns, "waits", corev1.PodRunning); err != nil {
		t.Error(err)
	}

	// Somebody runs a program on the second card by hand.
	stop, err := bed.Foreign(ctx, t4Node, "--device", "1", "alloc:1Gi", "hold")
	if err != nil {
		t.Fatal(err)
	}
	_, err = bed.WaitPublished(patient(t, ctx), t4Node, "the taint of a card in use", tainted(1, "in-use-elsewhere"))
	if err == nil && tainted(0, "in-use-elsewhere")(mustPublished(t, ctx)) {
		t.Error("the card that only pods use is tainted too")
	}
	if stopErr := stop(); err != nil || stopErr != nil {
		t.Fatal(err, stopErr)
	}
	if _, err := bed.WaitPublished(patient(t, ctx), t4Node, "cards that nobody else uses", clean); err != nil {
		t.Error(err)
	}
}

func mustPublished(t *testing.T, ctx context.Context) []resourcev1.Device {
	t.Helper()
	devices, err := bed.Published(ctx, t4Node)
	if err != nil {
		t.Fatal(err)
	}
	return devices
}
