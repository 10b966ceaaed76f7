package slicing

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/sluice-gpu/sluice/driver"
	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/gpu"
)

// maxDevices is the most one ResourceSlice holds when any of its devices has
// a taint. It is used always, so that a taint never moves devices between
// slices.
const maxDevices = 64

// Slices are the ResourceSlices of the node's pool, at least one: an empty
// slice says "the driver runs and there is nothing", no slice says nothing.
func (p *Plan) Slices() []resourceslice.Slice {
	devices := p.Devices()
	if len(devices) == 0 {
		return []resourceslice.Slice{{}}
	}
	var out []resourceslice.Slice
	for chunk := range slices.Chunk(devices, maxDevices) {
		out = append(out, resourceslice.Slice{Devices: chunk})
	}
	return append(out, p.counterSlices()...)
}

// Devices are the cards in PCI order, but for those that are arranged in
// another, and, if there are cards, the monitor device. All of them carry the same set of attributes: a CEL selector that
// reads one that is missing aborts the scheduling of its pod everywhere.
func (p *Plan) Devices() []resourceapi.Device {
	if len(p.Cards) == 0 {
		return nil
	}
	out := make([]resourceapi.Device, 0, len(p.Cards)+1)
	for _, c := range p.published() {
		if c.partitioned {
			out = append(out, c.instanceDevices()...)
			continue
		}
		out = append(out, c.device())
	}
	return append(out, p.monitor())
}

// selectable is the card as selectors of node groups see it: what does not
// depend on the group.
func (c Card) selectable() cel.Device {
	a := attributes(driver.TypeGPU, c.Device, c.GPU, c.Position, false)
	delete(a, "oversubscribed")
	return cel.Device{
		Driver:                   driver.Name,
		AllowMultipleAllocations: ptr.To(true),
		Attributes:               a,
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			driver.CapacityMemory: {Value: mi(c.UsableMi())},
			driver.CapacityCores:  {Value: *resource.NewQuantity(driver.AllCores, resource.DecimalSI)},
		},
	}
}

func (c Card) device() resourceapi.Device {
	d := resourceapi.Device{
		Name:                     c.Device,
		Attributes:               attributes(driver.TypeGPU, c.Device, c.GPU, c.Position, c.Oversubscribed),
		AllowMultipleAllocations: ptr.To(true),
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			driver.CapacityMemory: c.memory(),
			driver.CapacityCores:  c.cores(),
		},
	}
	if c.Unfit != nil {
		d.Taints = []resourceapi.DeviceTaint{c.Unfit.taint()}
	}
	return d
}

func (u Unfit) taint() resourceapi.DeviceTaint {
	effect := resourceapi.DeviceTaintEffectNoSchedule
	if u.Dead {
		effect = resourceapi.DeviceTaintEffectNoExecute
	}
	return resourceapi.DeviceTaint{Key: driver.Name + "/" + u.Key, Value: "true", Effect: effect}
}

// memory is all of the card, or the group's default, for a claim that names no
// size in mode dynamic, and one slice, the only size there is, in mode fixed.
// What is given out in all may be more than the largest share: then the largest
// is said as well.
func (c Card) memory() resourceapi.DeviceCapacity {
	capacity := resourceapi.DeviceCapacity{Value: mi(c.MemoryMi)}
	if c.SliceMi > 0 {
		capacity.RequestPolicy = &resourceapi.CapacityRequestPolicy{
			Default:     ptr.To(mi(c.SliceMi)),
			ValidValues: []resource.Quantity{mi(c.SliceMi)},
		}
		return capacity
	}
	capacity.RequestPolicy = &resourceapi.CapacityRequestPolicy{
		Default: ptr.To(mi(c.DefaultMi)),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{
			Min:  ptr.To(mi(min(config.MinShareMi, c.LargestMi))),
			Step: ptr.To(mi(1)),
		},
	}
	if c.LargestMi < c.MemoryMi {
		capacity.RequestPolicy.ValidRange.Max = ptr.To(mi(c.LargestMi))
	}
	return capacity
}

// cores is the guaranteed part of the card's time. 0 is a valid share: it
// has no guarantee and runs when nobody else does.
func (c Card) cores() resourceapi.DeviceCapacity {
	var least int64
	if c.CorePolicy == config.Hard {
		least = 1 // with no cores and no more than those it could not run
	}
	return resourceapi.DeviceCapacity{
		Value: *resource.NewQuantity(driver.AllCores, resource.DecimalSI),
		RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default: resource.NewQuantity(c.DefaultCores, resource.DecimalSI),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{
				Min:  resource.NewQuantity(least, resource.DecimalSI),
				Step: resource.NewQuantity(1, resource.DecimalSI),
			},
		},
	}
}

// monitor is exclusive and has no capacity: a claim with admin access gets it
// however full the cards are. (Admin access to a shareable device must still
// fit the default of each capacity.)
func (p *Plan) monitor() resourceapi.Device {
	first := p.Cards[0]
	node := gpu.GPU{ // what is true of the node as such
		UUID: "", PCIBusID: "", NUMANode: -1,
		DriverVersion: first.DriverVersion, CUDAVersion: first.CUDAVersion,
	}
	return resourceapi.Device{
		Name:       driver.MonitorDevice,
		Attributes: attributes(driver.TypeMonitor, driver.MonitorDevice, node, -1, false),
	}
}

// attributes use the names of NVIDIA's DRA driver where it has one, so that
// selectors written for it work unchanged. Unknown values are neutral but
// never equal to those of another card where equality means nearness.
func attributes(kind, device string, g gpu.GPU, position int, oversubscribed bool) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	numa := int64(g.NUMANode)
	if numa < 0 {
		numa = int64(-101 - position)
	}
	root := g.PCIeRoot
	if root == "" {
		root = "unknown-" + device
	}
	link := g.NVLinkDomain
	if link == "" {
		link = "none-" + device
	}
	return map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"type":                  text(kind),
		"uuid":                  text(g.UUID),
		"index":                 number(int64(position)),
		"productName":           text(g.ProductName),
		"brand":                 text(g.Brand),
		"architecture":          text(g.Architecture),
		"cudaComputeCapability": version(g.ComputeCapability),
		"driverVersion":         version(g.DriverVersion),
		"cudaDriverVersion":     version(g.CUDAVersion),
		"smCount":               number(int64(g.SMCount)),
		"memoryBandwidth":       number(g.MemoryBandwidth),
		"fp16TFLOPS":            number(g.FP16TFLOPS),
		"mig":                   {BoolValue: ptr.To(g.MIG)},
		"nvlinkDomain":          text(link),
		"ecc":                   {BoolValue: ptr.To(g.ECC)},
		"oversubscribed":        {BoolValue: ptr.To(oversubscribed)},
		"profile":               text(""),
		"parentUUID":            text(""),
		deviceattribute.StandardDeviceAttributePCIBusID: text(g.PCIBusID),
		deviceattribute.StandardDeviceAttributePCIeRoot: text(root),
		deviceattribute.StandardDeviceAttributeNUMANode: number(numa),
	}
}

func mi(n int64) resource.Quantity { return *resource.NewQuantity(n*gpu.Mi, resource.BinarySI) }

func number(n int64) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{IntValue: &n}
}

// text keeps to the API's limit of 64 bytes.
func text(s string) resourceapi.DeviceAttribute {
	if len(s) > resourceapi.DeviceAttributeMaxValueLength {
		s = strings.ToValidUTF8(s[:resourceapi.DeviceAttributeMaxValueLength], "")
	}
	return resourceapi.DeviceAttribute{StringValue: &s}
}

// version makes a semantic version of up to three dotted numbers: 12.8 is
// 12.8.0, and 535.104.05 is 535.104.5, since semver knows no leading zeros.
// What is no version is 0.0.0.
func version(s string) resourceapi.DeviceAttribute {
	var parts [3]uint64
	for i, field := range strings.SplitN(s, ".", 4) {
		n, err := strconv.ParseUint(field, 10, 32)
		if err != nil || i == len(parts) {
			break
		}
		parts[i] = n
	}
	return resourceapi.DeviceAttribute{VersionValue: ptr.To(fmt.Sprintf("%d.%d.%d", parts[0], parts[1], parts[2]))}
}
