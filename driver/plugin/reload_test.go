package plugin

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/state"
)

// configure writes the configuration's file as a volume is replaced.
func (n *node) configure(groups string) {
	n.t.Helper()
	if err := state.WriteFile(n.path("driver.yaml"), []byte("apiVersion: gpu.sluice.dev/v1alpha1\nkind: DriverConfiguration\nnodeGroups:\n"+groups), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// startFromFile runs a driver that reads its configuration from the file.
func (n *node) startFromFile() *instance {
	n.t.Helper()
	c := n.instanceConfig()
	var err error
	if c.File, c.Configuration, err = config.Open(n.path("driver.yaml")); err != nil {
		n.t.Fatal(err)
	}
	return n.startWith(c)
}

// memory is what a device offers: all, and what a claim gets that names none.
func memory(d resourceapi.Device) string {
	m := d.Capacity["memory"]
	return m.Value.String() + " default " + m.RequestPolicy.Default.String()
}

func offers(want string) func([]resourceapi.Device) bool {
	return func(devices []resourceapi.Device) bool {
		return memory(devices[0]) == want && len(devices[0].Taints) == 0
	}
}

// said are the reasons and messages of events about the node whose reasons
// begin with about.
func (n *node) said(about string) []string {
	n.t.Helper()
	list, err := n.client.CoreV1().Events("default").List(n.t.Context(), metav1.ListOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	var out []string
	for _, e := range list.Items {
		if e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == "n1" && strings.HasPrefix(e.Reason, about) {
			out = append(out, e.Type+" "+e.Reason+": "+e.Message)
		}
	}
	return out
}

func (n *node) eventuallySaid(words ...string) {
	n.t.Helper()
	eventually(n.t, fmt.Sprintf("an event with %q", words), func() bool {
		for _, text := range n.said("") {
			all := true
			for _, w := range words {
				all = all && strings.Contains(text, w)
			}
			if all {
				return true
			}
		}
		return false
	})
}

func TestAChangedConfigurationIsFollowedAndDisturbsNoShare(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	n.configure("- {name: a, mode: dynamic}\n")
	d := n.startFromFile()
	n.pool(offers(fmt.Sprintf("%dMi default %dMi", a100Mi, a100Mi)))
	running := n.claim("running", share{card: 0, memory: "30Gi"})
	allocated := n.claim("allocated", share{card: 0, memory: "10Gi"})
	given := d.mustPrepare(running)
	spec, checkpoint := n.spec(running), d.checkpoint()

	n.configure("- {name: a, mode: fixed, slices: 4, memory: 20000Mi}\n")
	n.pool(offers("80000Mi default 20000Mi"))
	n.eventuallySaid("Normal ConfigurationRead")
	if !reflect.DeepEqual(n.spec(running), spec) || !reflect.DeepEqual(d.checkpoint().Claims(), checkpoint.Claims()) {
		t.Error("a prepared share was changed")
	}
	if again := d.mustPrepare(running); !reflect.DeepEqual(again[0].CdiDeviceIds, given[0].CdiDeviceIds) {
		t.Errorf("asked again: %v, before %v", again, given)
	}
	// The scheduler gave this one out before the change; it fits the card as ever.
	d.mustPrepare(allocated)

	// Nobody wants the card any more: what runs on it runs on, and is well.
	n.configure("- {name: a, nodeSelector: {gpu-type: h100}}\n")
	n.pool(func(devices []resourceapi.Device) bool { return len(devices) == 0 })
	d.mustPrepare(running)
	report, _ := d.health.report()
	for _, h := range report.Devices {
		if h.DeviceName == device(0) && h.Message != "" {
			t.Errorf("the card is reported as %s: %s", h.Health, h.Message)
		}
	}
	d.unprepare(running, allocated)
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestAWrongConfigurationKeepsTheLastGoodOne(t *testing.T) {
	for name, tc := range map[string]struct {
		groups string
		want   []string
	}{
		"by itself":    {"- {name: a, mode: fixed, slices: 0}\n", []string{"driver.yaml: line 4 (", "nodeGroups[0].slices", "last good configuration stays"}},
		"on the cards": {"- name: a\n  mode: fixed\n  slices: 2\n  memory: 50000Mi\n", []string{"driver.yaml: line 7 (memory: 50000Mi)", "the largest is memory: 40704Mi", "last good configuration stays"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, a100)
			n.configure("- {name: a, mode: fixed, slices: 4, memory: 20000Mi}\n")
			d := n.startFromFile()
			n.pool(offers("80000Mi default 20000Mi"))
			n.configure(tc.groups)
			n.eventuallySaid(append(tc.want, "Warning ConfigurationRefused")...)
			n.pool(offers("80000Mi default 20000Mi"))
			d.mustPrepare(n.claim("c", share{card: 0, memory: "20000Mi"}))

			n.configure("- {name: a, mode: fixed, slices: 2, memory: auto}\n")
			n.pool(offers("81408Mi default 40704Mi"))
			eventually(t, "the event of the success", func() bool { return len(n.said("Configuration")) > 1 })
			if said := n.said("Configuration"); len(said) != 2 {
				t.Errorf("said %q, want one refusal and one success", said)
			}
		})
	}
}

// D29
func TestAConfigurationThatDoesNotAddUpIsRefusedAtStart(t *testing.T) {
	n := newNode(t, a100)
	n.configure("- name: a\n  mode: fixed\n  slices: 2\n  memory: 50000Mi\n")
	c := n.instanceConfig()
	var err error
	if c.File, c.Configuration, err = config.Open(n.path("driver.yaml")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = New(c).Run(ctx)
	if err == nil {
		t.Fatal("the driver serves")
	}
	for _, want := range []string{"driver.yaml: line 7 (memory: 50000Mi)", "2 slices of 50000Mi", "the largest is memory: 40704Mi, or say memory: auto"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error is\n%v\nwant %q in it", err, want)
		}
	}
	n.eventuallySaid("ConfigurationRefused", "line 7", "does not start")
}

func TestTheNodesLabelsAreFollowed(t *testing.T) {
	n := newNode(t, a100)
	n.config = "nodeGroups:\n- {name: a, nodeSelector: {gpu-type: a100}, mode: fixed, slices: 4, memory: 20000Mi}\n" +
		"- {name: large, nodeSelector: {gpu-type: large}, mode: fixed, slices: 4, memory: 40000Mi}\n- {name: rest}\n"
	d := n.start()
	n.pool(offers("80000Mi default 20000Mi"))
	c := n.claim("c", share{card: 0, memory: "20000Mi"})
	d.mustPrepare(c)
	n.label("other")
	n.pool(offers(fmt.Sprintf("%dMi default %dMi", a100Mi, a100Mi)))

	// A label that asks for what the card does not have: nothing new is placed.
	n.label("large")
	n.pool(func(devices []resourceapi.Device) bool {
		return len(devices[0].Taints) == 1 && devices[0].Taints[0].Key == "gpu.sluice.dev/misconfigured"
	})
	n.eventuallySaid("ConfigurationRefused", "4 slices of 40000Mi", "nothing new is placed")
	d.mustPrepare(c)
	n.label("a100")
	n.pool(offers("80000Mi default 20000Mi"))
}

// label gives the node another gpu-type.
func (n *node) label(gpuType string) {
	n.t.Helper()
	node, err := n.client.CoreV1().Nodes().Get(n.t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	node.Labels = map[string]string{"gpu-type": gpuType}
	if _, err := n.client.CoreV1().Nodes().Update(n.t.Context(), node, metav1.UpdateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// A share of a whole card has no limit, so nothing can be beside it, however
// often the card's memory is given out since.
func TestACardThatIsGivenOutWholeIsNotSharedAfterAChange(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	n.configure("- {name: a}\n")
	d := n.startFromFile()
	n.pool(offers(fmt.Sprintf("%dMi default %dMi", a100Mi, a100Mi)))
	all := n.claim("all", whole(0))
	d.mustPrepare(all)

	n.configure("- {name: a, oversubscription: 2}\n")
	n.pool(offers(fmt.Sprintf("159Gi default %dMi", a100Mi)))
	small := n.claim("small", share{card: 0, memory: "1Gi"})
	d.refused(small, "whole", "team/all")
	d.mustPrepare(all) // asked again, it keeps what it has
	d.unprepare(all)
	d.mustPrepare(small)
}
