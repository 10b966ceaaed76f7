package pricing

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

type lister ClassMap

func (l lister) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }
func (l lister) Get(name string) (*resourceapi.DeviceClass, error) {
	if c := l[name]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("no class %q", name)
}

// allocate asks the scheduler's own allocator, beside what was given before.
func allocate(t *rapid.T, c *resourceapi.DeviceClaim, before []*resourceapi.AllocationResult, devices ...*resourceapi.Device) *resourceapi.AllocationResult {
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: DriverName, NodeName: ptr.To("node-1"), Pool: resourceapi.ResourcePool{Name: "node-1", ResourceSliceCount: 1},
	}}
	for _, d := range devices {
		slice.Spec.Devices = append(slice.Spec.Devices, *d)
	}
	state := structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: structured.NewConsumedCapacityCollection()}
	for _, b := range before {
		for _, r := range b.Devices.Results {
			id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			if r.ShareID == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		}
	}
	a, err := structured.NewAllocator(context.Background(), structured.Features{ConsumableCapacity: true, FractionalCapacityRange: true, PrioritizedList: true},
		state, lister(stockClasses()), []*resourceapi.ResourceSlice{slice}, cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	results, err := a.Allocate(context.Background(), node, []*resourceapi.ResourceClaim{{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: resourceapi.ResourceClaimSpec{Devices: *c}}})
	if err != nil || len(results) == 0 {
		return nil
	}
	return &results[0]
}

// policies draws a request policy that the API server would accept.
func drawCapacity(t *rapid.T, label string) resourceapi.DeviceCapacity {
	milli := func(n int64) resource.Quantity { return *resource.NewMilliQuantity(n, resource.DecimalSI) }
	unit := rapid.SampledFrom([]int64{1000, 500, 1}).Draw(t, label+" unit")
	switch rapid.IntRange(0, 2).Draw(t, label+" kind") {
	case 0:
		return resourceapi.DeviceCapacity{Value: milli(unit * rapid.Int64Range(1, 100).Draw(t, label+" value"))}
	case 1:
		min := rapid.Int64Range(0, 5).Draw(t, label+" min")
		step := rapid.Int64Range(1, 5).Draw(t, label+" step")
		steps := rapid.Int64Range(1, 12).Draw(t, label+" steps")
		value := milli(unit * (min + step*steps))
		r := &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(milli(unit * min)), Step: ptr.To(milli(unit * step))}
		if rapid.Bool().Draw(t, label+" has max") {
			r.Max = ptr.To(milli(unit * (min + step*rapid.Int64Range(1, steps).Draw(t, label+" max"))))
		}
		return resourceapi.DeviceCapacity{Value: value, RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: ptr.To(milli(unit * min)), ValidRange: r}}
	}
	values := []resource.Quantity{milli(unit * 2), milli(unit * 5), milli(unit * 9)}
	return resourceapi.DeviceCapacity{Value: milli(unit * 20), RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: ptr.To(values[rapid.IntRange(0, 2).Draw(t, label+" default")]), ValidValues: values}}
}

func TestRoundingIsTheAllocators(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := card("gpu-0", "1", "")
		d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			CapacityMemory: drawCapacity(t, "memory"),
			CapacityCores:  drawCapacity(t, "cores"),
		}
		r := ask("gpu.sluice.dev", "", "", 1)
		requests := map[resourceapi.QualifiedName]resource.Quantity{}
		for _, key := range []resourceapi.QualifiedName{CapacityMemory, CapacityCores} {
			if rapid.Bool().Draw(t, string(key)+" named") {
				requests[key] = *resource.NewMilliQuantity(rapid.SampledFrom([]int64{1, 500, 1000}).Draw(t, "scale")*rapid.Int64Range(1, 110).Draw(t, "asked"), resource.DecimalSI)
			}
		}
		r.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: requests}

		result := allocate(t, claim(r), nil, d)
		got, err := NewFleet("f", stockClasses(), on("node-1", d), nil).Claim(context.Background(), claim(r))
		if (result == nil) != (err != nil) {
			t.Fatalf("allocator gives %v, price %v, error %v", result, got, err)
		}
		if result == nil {
			return
		}
		want, err := Tariff{}.Allocated(context.Background(), result, func(string, string) *Device { return &on("node-1", d)[0] })
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Fatalf("price %+v, the allocator consumes %+v", got, want)
		}
	})
}

// drawRequest draws what one request asks for, on top of its class.
func drawRequest(t *rapid.T, label string) *resourceapi.ExactDeviceRequest {
	r := &resourceapi.ExactDeviceRequest{
		DeviceClassName: rapid.SampledFrom([]string{"gpu.sluice.dev", "gpu.sluice.dev", "mig.gpu.sluice.dev"}).Draw(t, label+" class"),
		AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
		Count:           rapid.Int64Range(1, 3).Draw(t, label+" count"),
	}
	if rapid.IntRange(0, 4).Draw(t, label+" all") == 0 {
		r.AllocationMode, r.Count = resourceapi.DeviceAllocationModeAll, 0
	}
	if rapid.Bool().Draw(t, label+" selects") {
		r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: rapid.SampledFrom([]string{
			`device.attributes["gpu.sluice.dev"].index < 2`, `device.allowMultipleAllocations == true`,
		}).Draw(t, label+" selector")}}}
	}
	requests := map[resourceapi.QualifiedName]resource.Quantity{}
	for _, key := range []resourceapi.QualifiedName{CapacityMemory, CapacityCores} {
		if rapid.IntRange(0, 4).Draw(t, label+" names "+string(key)) < map[resourceapi.QualifiedName]int{CapacityMemory: 3, CapacityCores: 2}[key] {
			requests[key] = *resource.NewMilliQuantity(rapid.SampledFrom([]int64{500, 1000}).Draw(t, "scale")*rapid.Int64Range(1, 24).Draw(t, "asked"), resource.DecimalSI)
		}
	}
	if len(requests) > 0 {
		r.Capacity = &resourceapi.CapacityRequirements{Requests: requests}
	}
	return r
}

// TestAPriceCoversWhateverTheAllocatorGives: of several requests, counts,
// alternatives and all devices of a node, on cards and instances that differ.
// What has no price is never allocated, and where there is no choice the price
// is what is consumed.
func TestAPriceCoversWhateverTheAllocatorGives(t *testing.T) {
	dimensions, err := Compile([]Dimension{{Name: "quota.sluice.dev/cards", Expression: Cards, Thousandths: true}, {Name: "example.com/x", Expression: "request.memory * 2.0 + request.cores"}})
	if err != nil {
		t.Fatal(err)
	}
	tariff := Tariff{Dimensions: dimensions}
	rapid.Check(t, func(t *rapid.T) {
		var devices []*resourceapi.Device
		alike := rapid.Bool().Draw(t, "alike")
		shared := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{CapacityMemory: drawCapacity(t, "memory"), CapacityCores: drawCapacity(t, "cores")}
		for i := range rapid.IntRange(1, 4).Draw(t, "cards") {
			d := card(fmt.Sprintf("gpu-%d", i), "1", "")
			d.Capacity = shared
			if !alike {
				d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{CapacityMemory: drawCapacity(t, "memory"), CapacityCores: drawCapacity(t, "cores")}
			}
			devices = append(devices, d)
		}
		for i := range rapid.IntRange(0, 2).Draw(t, "instances") {
			devices = append(devices, mig(fmt.Sprintf("mig-%d", i), fmt.Sprint(5+5*i)))
		}
		c := &resourceapi.DeviceClaim{}
		choice := !alike
		for i := range rapid.IntRange(1, 3).Draw(t, "requests") {
			name := fmt.Sprintf("r%d", i)
			r := resourceapi.DeviceRequest{Name: name}
			if rapid.IntRange(0, 3).Draw(t, "alternatives") == 0 {
				choice = true
				for j := range 2 {
					e := drawRequest(t, fmt.Sprint(name, j))
					r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{Name: fmt.Sprint("s", j), DeviceClassName: e.DeviceClassName,
						AllocationMode: e.AllocationMode, Count: e.Count, Selectors: e.Selectors, Capacity: e.Capacity})
				}
			} else {
				r.Exactly = drawRequest(t, name)
				choice = choice || r.Exactly.DeviceClassName != "gpu.sluice.dev"
			}
			c.Requests = append(c.Requests, r)
		}
		// Others may be there already, so that not the first alternative is given.
		var before []*resourceapi.AllocationResult
		for i := range rapid.IntRange(0, 3).Draw(t, "others") {
			if other := allocate(t, claim(resourceapi.DeviceRequest{Name: "o", Exactly: drawRequest(t, fmt.Sprint("other", i))}), before, devices...); other != nil {
				before = append(before, other)
			}
		}
		result := allocate(t, c, before, devices...)
		price, err := NewFleet("f", stockClasses(), on("node-1", devices...), nil, WithTariff(tariff)).Claim(context.Background(), c)
		if result == nil {
			return
		}
		if err != nil {
			t.Fatalf("allocated %v, and it has no price: %v", result.Devices.Results, err)
		}
		given, err := tariff.Allocated(context.Background(), result, func(_, name string) *Device {
			for _, d := range on("node-1", devices...) {
				if d.Device.Name == name {
					return &d
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if !price.Covers(given) || !choice && len(before) == 0 && price != given {
			t.Fatalf("price %+v, allocated %+v", price, given)
		}
	})
}
