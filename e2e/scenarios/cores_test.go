package scenarios

import (
	"context"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sluice-gpu/sluice/e2e/fakegpu"
	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// hard is a template of shares that get no idle time.
func hard(name string, capacity testbed.Capacity) *resourcev1.ResourceClaimTemplate {
	t := testbed.Template(name, capacity)
	t.Spec.Spec.Devices.Config = []resourcev1.DeviceClaimConfiguration{{DeviceConfiguration: resourcev1.DeviceConfiguration{
		Opaque: &resourcev1.OpaqueDeviceConfiguration{
			Driver:     testbed.DeviceClass,
			Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion": "gpu.sluice.dev/v1alpha1", "kind": "SliceConfig", "corePolicy": "hard"}`)},
		},
	}}}
	return t
}

// timeOf waits until each pod has used a card, lets them go on for a while, and returns the part of
// a card, in percent, that each had in the second half of it, by the cards' own logs.
func timeOf(t *testing.T, ctx context.Context, in *fakegpu.Installed, half time.Duration, pods ...string) map[string]float64 {
	t.Helper()
	var now uint64
	err := testbed.Until(patient(t, ctx), "all pods to use their cards", func() (bool, string, error) {
		ran := map[string]bool{}
		usage, err := in.Usage()
		if err != nil {
			return false, "", err
		}
		for _, card := range usage {
			now = card.NowNs
			for _, p := range card.Processes {
				if p.BusyNs > 0 {
					ran[p.Host] = true
				}
			}
		}
		for _, pod := range pods {
			if !ran[pod] {
				return false, pod + " has not", nil
			}
		}
		return true, "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * half)
	if _, err := in.Usage(); err != nil { // brings the logs up to date
		t.Fatal(err)
	}
	from, until := now+uint64(half), now+uint64(2*half)
	runs, err := in.Log(now)
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]float64{}
	for _, r := range runs {
		if a, b := max(r.StartNs, from), min(r.EndNs, until); a < b {
			parts[r.Host] += 100 * float64(b-a) / float64(until-from)
		}
	}
	return parts
}

// TestPodsGetTheirCoresOfACard: two that want all of one card, and one that is alone on another and
// gets no idle time. How much they get at least depends on how busy this machine is; it is the
// limits and what one gets beside the other that are checked.
func TestPodsGetTheirCoresOfACard(t *testing.T) {
	ctx, ns := scenario(t)
	in, err := bed.Cards(dynamicNode)
	if err != nil {
		t.Fatal(err)
	}
	create(t, ctx, ns,
		testbed.Template("thirty", testbed.Capacity{Memory: "5Gi", Cores: "30"}),
		testbed.Template("seventy", testbed.Capacity{Memory: "5Gi", Cores: "70"}),
		hard("fifty", testbed.Capacity{Memory: "5Gi", Cores: "50"}))
	devices := map[string]string{}
	// In this order: the first two fill a card, so the third goes to another.
	for _, p := range []struct{ name, kernels string }{{"thirty", "20ms,1ms"}, {"seventy", "2ms"}, {"fifty", "5ms"}} {
		pod := testbed.Pod(p.name, []string{"work:launch:" + p.kernels + ":300s"}, testbed.OnNode(dynamicNode), testbed.WithTemplate(p.name))
		devices[p.name] = only(t, runPod(t, ctx, ns, pod)).Device
	}
	if devices["thirty"] != devices["seventy"] || devices["fifty"] == devices["thirty"] {
		t.Fatalf("this shows nothing on devices %v", devices)
	}
	got := timeOf(t, ctx, in, 4*time.Second, "thirty", "seventy", "fifty")
	t.Logf("percent of a card: %v", got)
	if a, b := got["thirty"], got["seventy"]; a > 38 || a/(a+b) > 0.4 || a < 5 {
		t.Errorf("30 cores had %.1f %% of the card beside 70 cores with %.1f %%", a, b)
	}
	if alone := got["fifty"]; alone > 54 || alone < 20 {
		t.Errorf("50 cores, hard and alone, had %.1f %% of the card", alone)
	}
}
