package pricing

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// Tariff prices devices in the dimensions that are counted. The zero Tariff
// counts devices, memory and cores alone.
type Tariff struct {
	Dimensions *Dimensions
	// Flavor and NodeLabels are those of the flavor that is charged.
	Flavor     string
	NodeLabels map[string]string
}

func (t Tariff) variables() map[string]any {
	labels := t.NodeLabels
	if labels == nil {
		labels = map[string]string{}
	}
	return map[string]any{"name": t.Flavor, "nodeLabels": labels}
}

// of completes the price of a share of a device, or of a device taken whole.
func (t Tariff) of(ctx context.Context, share Price, d Device) (Price, error) {
	if t.Dimensions == nil {
		return share, nil
	}
	for i := range t.Dimensions.all {
		c := &t.Dimensions.all[i]
		n, err := c.amount(ctx, share, d, t)
		if err != nil {
			return share, fmt.Errorf("dimension %s on %s: %w", c.Name, d.Name(), err)
		}
		share.More[i] = n
	}
	return share, nil
}

// Score is what a whole card of the fleet costs in a dimension, the cheapest of
// those that it has; false if it has none that can be priced.
func (f *Fleet) Score(ctx context.Context, dimension string) (int64, bool) {
	at := -1
	for i, name := range f.tariff.Dimensions.Names() {
		if name == dimension {
			at = i
		}
	}
	if at < 0 {
		return 0, false
	}
	least, found := int64(0), false
	for _, d := range f.devices {
		if _, ok := d.Capacity[CapacityMemory]; !ok {
			// The device for monitoring is no card.
			continue
		}
		n, err := f.tariff.Dimensions.all[at].amount(ctx, exclusive(d), d, f.tariff)
		if err == nil && (!found || n < least) {
			least, found = n, true
		}
	}
	return least, found
}

// sample is a card as the driver publishes it.
func sample() Device {
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	version := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{VersionValue: &s} }
	number := func(n int64) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{IntValue: &n} }
	return Device{Pool: "sample", Node: "sample", Device: &resourceapi.Device{
		Name: "gpu-sample", AllowMultipleAllocations: ptr.To(true),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type": text("gpu"), "uuid": text("GPU-sample"), "productName": text("NVIDIA A100-SXM4-80GB"), "brand": text("Nvidia"),
			"architecture": text("Ampere"), "nvlinkDomain": text("sample"), "index": number(0), "smCount": number(108),
			"memoryBandwidth": number(2039), "fp16TFLOPS": number(312), "mig": {BoolValue: ptr.To(false)},
			"cudaComputeCapability": version("8.0.0"), "driverVersion": version("580.65.6"), "cudaDriverVersion": version("13.0.0"),
			"resource.kubernetes.io/pciBusID": text("0000:07:00.0"), "resource.kubernetes.io/pcieRoot": text("pci0000:00"), "resource.kubernetes.io/numaNode": number(0),
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			CapacityMemory: {Value: resource.MustParse("80Gi")},
			CapacityCores:  {Value: resource.MustParse("100")},
		},
	}}
}
