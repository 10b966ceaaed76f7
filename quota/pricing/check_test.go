package pricing

import (
	"context"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func TestMistakesInClaimsAreNamedAtCreation(t *testing.T) {
	dynamic := NewFleet("", stockClasses(), on("node-1", card("gpu-0", "24Gi", ""), card("gpu-1", "80Gi", "")), nil)
	fixed := NewFleet("", stockClasses(), on("node-1", card("gpu-0", "80000Mi", "20000Mi")), nil)
	empty := NewFleet("", stockClasses(), nil, nil)
	grows := NewFleet("", stockClasses(), on("node-1", card("gpu-0", "80Gi", "")), nil, Coming(ptr.To(resource.MustParse("141Gi"))))
	unknown := NewFleet("", stockClasses(), on("node-1", card("gpu-0", "80Gi", "")), nil, Coming(nil))
	keyed := func(key, q string) resourceapi.DeviceRequest {
		r := ask("gpu.sluice.dev", "", "", 1)
		r.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{resourceapi.QualifiedName(key): resource.MustParse(q)}}
		return r
	}
	small := ask("gpu.sluice.dev", "40Gi", "", 1)
	small.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.attributes["gpu.sluice.dev"].index == 0`}}}
	missing := ask("gpu.sluice.dev", "1Gi", "", 1)
	missing.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.attributes["gpu.sluice.dev"].speed == 0`}}}
	either := resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "big", DeviceClassName: "gpu.sluice.dev", Capacity: ask("", "900Gi", "", 1).Exactly.Capacity},
		{Name: "ok", DeviceClassName: "gpu.sluice.dev", Capacity: ask("", "9Gi", "", 1).Exactly.Capacity},
	}}
	const memory = "spec.devices.requests[0].exactly.capacity.requests[memory]: "
	for _, tc := range []struct {
		name           string
		fleet          *Fleet
		r              resourceapi.DeviceRequest
		wrong, warning string
	}{
		{"a size that fits", dynamic, ask("gpu.sluice.dev", "20Gi", "50", 1), "", ""},
		{"a key that nothing publishes", dynamic, keyed("memroy", "1Gi"), `Unsupported value: "memroy": supported values: "cores", "memory"`, ""},
		{"a key with its domain", dynamic, keyed("gpu.sluice.dev/memory", "1Gi"), `write "memory"`, ""},
		{"no memory", dynamic, ask("gpu.sluice.dev", "0", "", 1), memory + `Invalid value: "0": it must be more than zero; allowed are 256Mi to 80Gi (node-1/gpu-1)`, ""},
		{"less than nothing", dynamic, ask("gpu.sluice.dev", "-1Gi", "", 1), "it must be more than zero; allowed are 256Mi to 80Gi", ""},
		{"no cores are a share without a guarantee", dynamic, ask("gpu.sluice.dev", "1Gi", "0", 1), "", ""},
		{"less cores than none", dynamic, ask("gpu.sluice.dev", "1Gi", "-1", 1), "it must be more than zero; allowed are 0 to 100", ""},
		{"less than the least share", dynamic, ask("gpu.sluice.dev", "100Mi", "", 1), "less than the least share; allowed are 256Mi to 80Gi", ""},
		{"more than the largest card", dynamic, ask("gpu.sluice.dev", "90Gi", "", 1), "allowed are 256Mi to 80Gi (node-1/gpu-1)", ""},
		{"more than the largest card, where a larger may come", grows, ask("gpu.sluice.dev", "90Gi", "", 1), "", "waits for a node of an elastic flavor"},
		{"more than the largest card that may come", grows, ask("gpu.sluice.dev", "150Gi", "", 1), "allowed are 256Mi to 80Gi (node-1/gpu-0)", ""},
		{"more than the largest card, where any may come", unknown, ask("gpu.sluice.dev", "900Gi", "", 1), "", "waits for a node of an elastic flavor"},
		{"more cores than a card of any flavor has", unknown, ask("gpu.sluice.dev", "1Gi", "101", 1), "allowed are 0 to 100", ""},
		{"more than can be counted", dynamic, ask("gpu.sluice.dev", "100E", "", 1), "allowed are 256Mi to 80Gi", ""},
		{"more cores than a card has", dynamic, ask("gpu.sluice.dev", "1Gi", "101", 1), "allowed are 0 to 100", ""},
		{"more than what it selects", dynamic, small, "allowed are 256Mi to 24Gi (node-1/gpu-0)", ""},
		{"an alternative", dynamic, either, "spec.devices.requests[0].firstAvailable[0].capacity.requests[memory]", ""},
		{"less than a fixed size", fixed, ask("gpu.sluice.dev", "1Gi", "", 1), "", ""},
		{"more than a fixed size", fixed, ask("gpu.sluice.dev", "30Gi", "", 1), "allowed is up to 20000Mi (node-1/gpu-0)", ""},
		{"cores without memory", dynamic, ask("gpu.sluice.dev", "", "30", 1), "", "charged as a whole card, 24Gi and 100% cores"},
		{"cores without memory of a fixed size", fixed, ask("gpu.sluice.dev", "", "30", 1), "", ""},
		{"nothing there to compare with", empty, ask("gpu.sluice.dev", "900Gi", "", 1), "", "no device matches at the moment"},
		{"nonsense, whatever is there", empty, ask("gpu.sluice.dev", "-1Gi", "", 1), "more than zero", "no device matches"},
		{"a class that is not there yet", empty, ask("mine.gpu.sluice.dev", "", "", 1), "", `DeviceClass "mine.gpu.sluice.dev" does not exist`},
		{"others' devices", dynamic, ask("nic.example.com", "", "", 1), "", ""},
		{"a selector that fails", dynamic, missing, "", "no such key: speed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mistakes, warnings := tc.fleet.Check(context.Background(), claim(tc.r), field.NewPath("spec", "devices"))
			for _, is := range []struct{ got, want string }{{text(mistakes), tc.wrong}, {strings.Join(warnings, "\n"), tc.warning}} {
				if (is.got == "") != (is.want == "") || !strings.Contains(is.got, is.want) {
					t.Errorf("%q, want %q", is.got, is.want)
				}
			}
		})
	}
}

func text(all field.ErrorList) string {
	if len(all) == 0 {
		return ""
	}
	return all.ToAggregate().Error()
}
