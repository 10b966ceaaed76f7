package scenarios

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// configure changes the configuration of the running drivers until the test ends.
func configure(t *testing.T, ctx context.Context, change func(config map[string]any)) {
	t.Helper()
	var before string
	err := bed.Configure(ctx, func(text string) string {
		before = text
		config := map[string]any{}
		if err := yaml.Unmarshal([]byte(text), &config); err != nil {
			t.Error(err)
		}
		change(config)
		after, err := yaml.Marshal(config)
		if err != nil {
			t.Error(err)
		}
		return string(after)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bed.Configure(context.WithoutCancel(ctx), func(string) string { return before }); err != nil {
			t.Error(err)
		}
	})
}

// cardsOf are the node's cards in published order.
func cardsOf(devices []resourcev1.Device) []string {
	var cards []string
	for _, d := range devices {
		if _, ok := d.Capacity["memory"]; ok {
			cards = append(cards, d.Name)
		}
	}
	return cards
}

// One change of the configuration has both, for each takes the kubelet and the driver a moment.
func TestARunningDriverFollowsItsConfigurationInWhatItKillsAndWhereItPlaces(t *testing.T) {
	ctx, ns := scenario(t)
	before, err := bed.Published(ctx, dynamicNode)
	if err != nil {
		t.Fatal(err)
	}
	pci := cardsOf(before)
	t.Cleanup(func() { // when the configuration is the old one again
		ctx := context.WithoutCancel(ctx)
		_, err := bed.WaitPublished(patient(t, ctx), dynamicNode, "the cards in PCI order", func(devices []resourcev1.Device) bool {
			return slices.Equal(cardsOf(devices), pci)
		})
		if err != nil {
			t.Error(err)
		}
	})
	forgetContexts(t, ctx)
	configure(t, ctx, func(config map[string]any) {
		config["violations"] = map[string]any{"policy": "kill", "after": "1s"}
		for _, group := range config["nodeGroups"].([]any) {
			if g := group.(map[string]any); g["name"] == "everything-else" {
				g["order"] = "spread"
			}
		}
	})
	create(t, ctx, ns, testbed.Template("slice", testbed.Capacity{Memory: "7Gi"}))

	// A share is placed on the card whose shares hold least. This comes first: the order changes at
	// once when it is new, and then once a minute at most.
	one := only(t, runPod(t, ctx, ns, testbed.Pod("one", []string{"hold"}, testbed.OnNode(dynamicNode), testbed.WithTemplate("slice"))))
	if _, err := bed.WaitPublished(patient(t, ctx), dynamicNode, "another card first", func(devices []resourcev1.Device) bool {
		cards := cardsOf(devices)
		return len(cards) == len(pci) && cards[0] != one.Device
	}); err != nil {
		t.Fatal(err)
	}
	two := only(t, runPod(t, ctx, ns, testbed.Pod("two", []string{"hold"}, testbed.OnNode(dynamicNode), testbed.WithTemplate("slice"))))
	if two.Device == one.Device {
		t.Errorf("both are on %s", one.Device)
	}

	// The driver's private tables are a way that no wrapper sees.
	past := testbed.Pod("past", []string{"table:9Gi", "hold"}, testbed.OnNode(dynamicNode), testbed.WithTemplate("slice"))
	past.Spec.RestartPolicy = corev1.RestartPolicyNever
	first := only(t, runPod(t, ctx, ns, past))
	said := ""
	err = testbed.Until(patient(t, ctx), "the claim to say that its programs hold more", func() (bool, string, error) {
		claim, err := bed.Client.ResourceV1().ResourceClaims(ns).Get(ctx, first.Claim, metav1.GetOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		for _, d := range claim.Status.Devices {
			for _, c := range d.Conditions {
				if c.Type == "WithinShare" {
					said += string(c.Status) + " "
				}
			}
		}
		return strings.Contains(said, "False"), fmt.Sprintf("%+v", claim.Status.Devices), nil
	})
	if err != nil {
		t.Error(err)
	}
	pod, err := bed.WaitPhase(patient(t, ctx), ns, "past", corev1.PodFailed)
	if err != nil {
		t.Fatal(err)
	}
	if ended := pod.Status.ContainerStatuses[0].State.Terminated; ended == nil || ended.ExitCode != 137 {
		t.Errorf("the container ended so: %+v", ended)
	}
	err = testbed.Until(patient(t, ctx), "the event of the kill", func() (bool, string, error) {
		events, err := bed.Events(ctx, ns, "past")
		text := strings.Join(events, "\n")
		return strings.Contains(text, "ProcessKilled: The pod was above its share of card "+first.Device), text, err
	})
	if err != nil {
		t.Error(err)
	}
}
