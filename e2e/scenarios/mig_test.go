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

// migCard is the card of dynamicNode that is put into MIG mode while a test needs one.
const migCard = 3

// partitioned puts the card into MIG mode, with the instances that an administrator makes, until
// the test has ended and given its devices back: it is called before scenario.
func partitioned(t *testing.T, instances ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	mode(t, ctx, true)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		mode(t, ctx, false)
	})
	cards, err := bed.Cards(dynamicNode)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range instances {
		if err := cards.MakeInstance(migCard, i); err != nil {
			t.Fatal(err)
		}
	}
	offered(t, ctx, true)
}

// mode switches the card and, before that, ends what an administrator has made on it.
func mode(t *testing.T, ctx context.Context, on bool) {
	t.Helper()
	err := testbed.Until(ctx, fmt.Sprintf("MIG mode %v", on), func() (bool, string, error) {
		cards, err := bed.Cards(dynamicNode)
		if err != nil {
			return false, "", err
		}
		instances, _, err := cards.Instances(migCard)
		if err != nil {
			return false, err.Error(), nil
		}
		for _, i := range instances {
			_ = cards.DestroyInstance(migCard, i.ID)
		}
		err = cards.MIGMode(migCard, on)
		return err == nil, fmt.Sprint(err), nil
	})
	if err != nil {
		t.Error(err)
		return
	}
	if !on {
		offered(t, ctx, false)
	}
}

// offered waits until the node's MIG devices are published, or gone.
func offered(t *testing.T, ctx context.Context, want bool) {
	t.Helper()
	err := testbed.Until(ctx, "the card's MIG devices to be published or gone", func() (bool, string, error) {
		devices, err := bed.Devices(ctx, dynamicNode)
		if err != nil {
			return false, "", err
		}
		have := strings.Contains(strings.Join(devices, " "), "-mig-")
		return have == want, fmt.Sprint(devices), nil
	})
	if err != nil {
		t.Error(err)
	}
}

// instances are the card's, as profile@slice.
func instances(t *testing.T) string {
	t.Helper()
	cards, err := bed.Cards(dynamicNode)
	if err != nil {
		t.Fatal(err)
	}
	list, _, err := cards.Instances(migCard)
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, i := range list {
		out = append(out, fmt.Sprintf("%s@%d", i.Profile, i.Start))
	}
	return strings.Join(out, " ")
}

// migTemplate asks for a MIG device of a profile.
func migTemplate(name, profile string) *resourcev1.ResourceClaimTemplate {
	t := testbed.Template(name, testbed.Capacity{})
	t.Spec.Spec.Devices.Requests[0].Exactly.DeviceClassName = "mig." + testbed.DeviceClass
	t.Spec.Spec.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
		Expression: `device.attributes["gpu.sluice.dev"].profile == "` + profile + `"`,
	}}}
	return t
}

func TestMIGDevicesAreGivenAndMadeAsClaimsAsk(t *testing.T) {
	partitioned(t, "3g.40gb@0")
	ctx, ns := scenario(t)
	create(t, ctx, ns, migTemplate("small", "1g.10gb"), migTemplate("large", "3g.40gb"))
	again := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }
	probe := append([]string{"info"}, untilRefused...)

	// One is made for the claim: its program sees it and nothing else, and its memory to the last byte.
	a := only(t, runPod(t, ctx, ns, testbed.Pod("a", probe, testbed.OnNode(dynamicNode), testbed.WithTemplate("small"))))
	info, err := bed.WaitProbe(patient(t, ctx), ns, "a", "main", "info")
	if err != nil {
		t.Fatal(err)
	}
	if info.Devices != 1 || !strings.HasSuffix(info.Name, "MIG 1g.10gb") || info.DeviceTotal != 9728<<20 {
		t.Errorf("the program sees %+v", info)
	}
	if sum := took(t, ctx, ns, "a", "main"); sum != 9728<<20 {
		t.Errorf("it took %d bytes", sum)
	}
	// One was there, and is given as it is.
	b := only(t, runPod(t, ctx, ns, testbed.Pod("b", probe, testbed.OnNode(dynamicNode), testbed.WithTemplate("large"), again)))
	if got := instances(t); got != "3g.40gb@0 1g.10gb@6" {
		t.Errorf("instances %s, given %s and %s", got, a.Device, b.Device)
	}
	// There is no place for another as long as the small one lives.
	create(t, ctx, ns, testbed.Pod("c", probe, testbed.OnNode(dynamicNode), testbed.WithTemplate("large"), again))
	if _, err := bed.WaitUnschedulable(patient(t, ctx), ns, "c"); err != nil {
		t.Error(err)
	}
	if _, err := bed.Cluster.Kubectl(ctx, "delete", "pod", "--namespace", ns, "a", "--wait=false"); err != nil {
		t.Fatal(err)
	}
	if _, err := bed.WaitPhase(patient(t, ctx), ns, "c", corev1.PodRunning); err != nil {
		t.Fatal(err)
	}
	if sum := took(t, ctx, ns, "c", "main"); sum != 40192<<20 {
		t.Errorf("c took %d bytes", sum)
	}
	if got := instances(t); got != "3g.40gb@0 3g.40gb@4" {
		t.Errorf("instances %s", got)
	}
	if err := bed.RestartDriver(ctx, dynamicNode); err != nil {
		t.Fatal(err)
	}
	if got := instances(t); got != "3g.40gb@0 3g.40gb@4" {
		t.Errorf("after a restart of the driver: instances %s", got)
	}

	// No instance outlives a reboot. What pods were given is made again, what was there as well.
	if err := bed.Cluster.Reboot(ctx, dynamicNode); err != nil {
		t.Fatal(err)
	}
	err = testbed.Until(patient(t, ctx), "both pods in the new boot", func() (bool, string, error) {
		made := instances(t)
		return strings.Count(made, "3g.40gb@") == 2 && strings.Contains(made, "@0") && strings.Contains(made, "@4"), made, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := bed.DeletePods(patient(t, ctx), ns); err != nil {
		t.Error(err)
	}
	err = testbed.Until(patient(t, ctx), "the end of all instances", func() (bool, string, error) {
		made := instances(t)
		return made == "", made, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A MIG device is made for whoever has quota for its memory, and for nobody else.
func TestMIGDevicesAreGivenWithinTheBudget(t *testing.T) {
	partitioned(t)
	ctx, ns := scenario(t)
	budgetOf(t, ctx, ns, "nvidia.com/gpu-memory", "12Gi", "{slicing: dynamic}")
	create(t, ctx, ns, migTemplate("small", "1g.10gb"))
	pod := func(name string) *corev1.Pod {
		return testbed.Pod(name, []string{"info", "hold"}, testbed.WithTemplate("small"), testbed.WithLabel("kueue.x-k8s.io/queue-name", "queue"))
	}
	sees := func(name string) {
		t.Helper()
		only(t, runPod(t, ctx, ns, pod(name)))
		info, err := bed.WaitProbe(patient(t, ctx), ns, name, "main", "info")
		if err != nil || info.Devices != 1 || !strings.HasSuffix(info.Name, "MIG 1g.10gb") {
			t.Errorf("%s sees %+v (%v)", name, info, err)
		}
	}
	sees("first")
	// A queue's status is written at most once a second.
	if err := testbed.Until(patient(t, ctx), "an instance's memory to be charged", func() (bool, string, error) {
		_, charged := holding(t, ctx, ns)
		return charged == "9728Mi", "charged: " + charged, nil
	}); err != nil {
		t.Error(err)
	}
	create(t, ctx, ns, pod("second"))
	_, err := bed.WaitWorkload(patient(t, ctx), ns, "second", "waiting for the budget", func(w testbed.Workload) bool {
		if w.Admitted {
			t.Errorf("beyond the budget: %+v", w)
		}
		return w.Admitted || strings.Contains(w.Why, "nvidia.com/gpu-memory")
	})
	if err != nil {
		t.Fatal(err)
	}
	if made := instances(t); strings.Count(made, "1g.10gb@") != 1 {
		t.Errorf("instances: %s", made)
	}
	if err := bed.Client.CoreV1().Pods(ns).Delete(ctx, "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := bed.WaitPhase(patient(t, ctx), ns, "second", corev1.PodRunning); err != nil {
		t.Error(err)
	}
}
