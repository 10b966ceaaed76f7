package pricing

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

const gi = int64(1) << 30

func TestAClaimCostsWhatTheAllocatorWillConsume(t *testing.T) {
	dynamic := NewFleet("dynamic", stockClasses(), on("node-1", card("gpu-0", "80Gi", ""), card("gpu-1", "80Gi", "")), nil)
	fixed := NewFleet("fixed", stockClasses(), on("node-1", card("gpu-0", "80000Mi", "20000Mi")), nil)
	mixed := NewFleet("mixed", stockClasses(), append(on("node-1", card("gpu-0", "24Gi", "")), on("node-2", card("gpu-0", "80Gi", ""))...), nil)
	migs := NewFleet("mig", stockClasses(), on("node-1", mig("mig-0", "10Gi"), mig("mig-1", "20Gi")), nil)

	all := ask("mig.gpu.sluice.dev", "", "", 0)
	all.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	admin := ask("gpu.sluice.dev", "", "", 1)
	admin.Exactly.AdminAccess = ptr.To(true)
	either := resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "big", DeviceClassName: "gpu.sluice.dev", Count: 1, Capacity: ask("", "60Gi", "", 1).Exactly.Capacity},
		{Name: "fast", DeviceClassName: "gpu.sluice.dev", Count: 1, Capacity: ask("", "10Gi", "80", 1).Exactly.Capacity},
		{Name: "never", DeviceClassName: "gpu.sluice.dev", Count: 1, Capacity: ask("", "900Gi", "", 1).Exactly.Capacity},
	}}
	shareOnly := ask("gpu.sluice.dev", "1Gi", "", 1)
	shareOnly.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.allowMultipleAllocations == true"}}}

	for _, tc := range []struct {
		name  string
		fleet *Fleet
		claim *resourceapi.DeviceClaim
		want  Price
	}{
		{"memory and cores", dynamic, claim(ask("gpu.sluice.dev", "20Gi", "50", 1)), Price{Devices: 1, Memory: 20 * gi, Cores: 50}},
		{"memory alone guarantees no cores", dynamic, claim(ask("gpu.sluice.dev", "20Gi", "", 1)), Price{Devices: 1, Memory: 20 * gi, Cores: 0}},
		{"nothing named is a whole card and all its cores", dynamic, claim(ask("gpu.sluice.dev", "", "", 1)), Price{Devices: 1, Memory: 80 * gi, Cores: 100}},
		{"all memory named is a whole card too", dynamic, claim(ask("gpu.sluice.dev", "80Gi", "10", 1)), Price{Devices: 1, Memory: 80 * gi, Cores: 100}},
		{"bytes round up to the step", dynamic, claim(ask("gpu.sluice.dev", "1073741825", "", 1)), Price{Devices: 1, Memory: gi + 1<<20, Cores: 0}},
		{"less than the least is the least", dynamic, claim(ask("gpu.sluice.dev", "1Mi", "", 1)), Price{Devices: 1, Memory: 256 << 20, Cores: 0}},
		{"a count multiplies", dynamic, claim(ask("gpu.sluice.dev", "20Gi", "50", 2)), Price{Devices: 2, Memory: 40 * gi, Cores: 100}},
		{"requests add up", dynamic, claim(ask("gpu.sluice.dev", "20Gi", "", 1), ask("gpu.sluice.dev", "", "", 1)), Price{Devices: 2, Memory: 100 * gi, Cores: 100}},
		{"a fixed slice is not a whole card", fixed, claim(ask("gpu.sluice.dev", "", "", 1)), Price{Devices: 1, Memory: 20000 << 20, Cores: 0}},
		{"memory below a fixed slice becomes the slice", fixed, claim(ask("gpu.sluice.dev", "1Gi", "", 1)), Price{Devices: 1, Memory: 20000 << 20, Cores: 0}},
		{"the dearest card of a flavor decides", mixed, claim(ask("gpu.sluice.dev", "", "", 1)), Price{Devices: 1, Memory: 80 * gi, Cores: 100}},
		{"the dearest alternative in each dimension", dynamic, claim(either), Price{Devices: 1, Memory: 60 * gi, Cores: 80}},
		{"an exclusive device costs all it has", migs, claim(ask("mig.gpu.sluice.dev", "5Gi", "", 1)), Price{Devices: 1, Memory: 20 * gi, Cores: 14}},
		{"all devices of the largest node", migs, claim(all), Price{Devices: 2, Memory: 30 * gi, Cores: 28}},
		{"admin access is free", dynamic, claim(admin), Price{}},
		{"other drivers' devices are not ours to price", dynamic, claim(ask("nic.example.com", "", "", 1)), Price{}},
		{"selectors may ask for shareable devices", dynamic, claim(shareOnly), Price{Devices: 1, Memory: gi, Cores: 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := tc.fleet.Claim(context.Background(), tc.claim)
			if err != nil {
				t.Fatal(err)
			}
			if got != tc.want {
				t.Errorf("price %v, want %v", got, tc.want)
			}
		})
	}
}

func TestWhatNoDeviceCanServeIsRefusedWithTheNearest(t *testing.T) {
	fleet := NewFleet("a100", stockClasses(), on("node-2", card("gpu-0", "79Gi", ""), card("gpu-1", "79Gi", "")), nil)
	fixed := NewFleet("fixed", stockClasses(), on("node-1", card("gpu-0", "80000Mi", "20000Mi")), nil)
	empty := NewFleet("gone", stockClasses(), nil, nil)
	foreignKey := ask("gpu.sluice.dev", "", "", 1)
	foreignKey.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"gpu.sluice.dev/memory": resource.MustParse("1Gi")}}

	for _, tc := range []struct {
		name  string
		fleet *Fleet
		r     resourceapi.DeviceRequest
		want  string
	}{
		{"too large", fleet, ask("gpu.sluice.dev", "90Gi", "", 1), `90Gi of "memory" asked, the largest device that matches gives 79Gi (node-2/gpu-0)`},
		{"larger than a fixed slice", fixed, ask("gpu.sluice.dev", "30Gi", "", 1), `30Gi of "memory" asked, the largest device that matches gives 20000Mi`},
		{"more cores than a card has", fleet, ask("gpu.sluice.dev", "1Gi", "101", 1), `101 of "cores" asked`},
		{"more devices than a node has", fleet, ask("gpu.sluice.dev", "1Gi", "", 3), "3 devices asked on one node, the node with most has 2"},
		{"a count that would overflow", fleet, ask("gpu.sluice.dev", "1Gi", "", math.MaxInt64), "devices asked on one node"},
		{"a negative count", fleet, ask("gpu.sluice.dev", "1Gi", "", -1), "a count of -1 is asked"},
		{"negative memory", fleet, ask("gpu.sluice.dev", "-1Gi", "", 1), `-1Gi of "memory" asked, it must be more than zero`},
		{"negative cores", fleet, ask("gpu.sluice.dev", "1Gi", "-5", 1), `-5 of "cores" asked`},
		{"no memory", fleet, ask("gpu.sluice.dev", "0", "", 1), "must be more than zero"},
		{"memory beyond counting", fleet, ask("gpu.sluice.dev", "100E", "", 1), `"memory"`},
		{"a key that nothing publishes", fleet, foreignKey, `capacity "gpu.sluice.dev/memory" asked, node-2/gpu-0 publishes "cores", "memory"`},
		{"a class that does not exist", fleet, ask("gone.example.com", "", "", 1), `DeviceClass "gone.example.com" does not exist`},
		{"slices that are away are not free of charge", empty, ask("gpu.sluice.dev", "1Gi", "", 1), "no device of class"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := tc.fleet.Claim(context.Background(), claim(tc.r))
			var impossible *Impossible
			if !errors.As(err, &impossible) {
				t.Fatalf("price %v, error %v, want an Impossible", got, err)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %q does not say %q", err, tc.want)
			}
		})
	}
}

func TestPricesSaturateInsteadOfWrapping(t *testing.T) {
	big := Price{Devices: 1, Memory: math.MaxInt64 - 1, Cores: 1}
	if got := big.Add(big); got.Memory != math.MaxInt64 || got.Devices != 2 {
		t.Errorf("sum %+v", got)
	}
	if got := big.Times(math.MaxInt64); got.Memory != math.MaxInt64 || got.Cores != math.MaxInt64 {
		t.Errorf("product %+v", got)
	}
	if got := big.Times(-3); !got.IsZero() {
		t.Errorf("a negative count costs %+v", got)
	}
}

func TestAnAllocatedWholeCardStillCostsAllCores(t *testing.T) {
	d := card("gpu-0", "80Gi", "")
	a := &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
		{Driver: DriverName, Pool: "node-1", Device: "gpu-0", ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
			CapacityMemory: resource.MustParse("80Gi"), CapacityCores: resource.MustParse("0")}},
		{Driver: "nic.example.com", Pool: "node-1", Device: "nic-0"},
		{Driver: DriverName, Pool: "node-1", Device: "monitor", AdminAccess: ptr.To(true)},
	}}}
	got, err := Tariff{}.Allocated(context.Background(), a, func(pool, name string) *Device { return &Device{Pool: pool, Device: d} })
	if err != nil {
		t.Fatal(err)
	}
	if want := (Price{Devices: 1, Memory: 80 * gi, Cores: 100}); got != want {
		t.Errorf("charged %v, want %v", got, want)
	}
}
