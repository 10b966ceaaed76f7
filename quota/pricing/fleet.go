package pricing

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
)

// DriverName is the DRA driver whose devices are budgeted.
const DriverName = "gpu.sluice.dev"

// Device is a published device of the driver and where it is.
type Device struct {
	Pool, Node string
	*resourceapi.Device
}

// Name is the device for people: "node-2/gpu-5c2f1a90".
func (d Device) Name() string { return d.Pool + "/" + d.Device.Name }

// Shareable says whether several claims can have a part of the device each.
func (d Device) Shareable() bool {
	return d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
}

// Classes finds DeviceClasses.
type Classes interface {
	// Class returns the class of a name, nil if there is none.
	Class(name string) *resourceapi.DeviceClass
	// ForExtendedResource returns the class that serves an extended resource,
	// nil if none does.
	ForExtendedResource(name corev1.ResourceName) *resourceapi.DeviceClass
}

// ClassMap is a [Classes] over a fixed set, by name.
type ClassMap map[string]*resourceapi.DeviceClass

// Class implements [Classes].
func (m ClassMap) Class(name string) *resourceapi.DeviceClass { return m[name] }

// ForExtendedResource implements [Classes] with the scheduler's order of
// preference: the implicit name of a class, then the newest class, then the
// first by name.
func (m ClassMap) ForExtendedResource(name corev1.ResourceName) *resourceapi.DeviceClass {
	if class, ok := strings.CutPrefix(string(name), resourceapi.ResourceDeviceClassPrefix); ok {
		return m[class]
	}
	var best *resourceapi.DeviceClass
	for _, c := range m {
		if c.Spec.ExtendedResourceName == nil || *c.Spec.ExtendedResourceName != string(name) {
			continue
		}
		if best == nil || newer(c, best) {
			best = c
		}
	}
	return best
}

func newer(a, b *resourceapi.DeviceClass) bool {
	if order := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); order != 0 {
		return order > 0
	}
	return a.Name < b.Name
}

// Fleet is the devices of one flavor: those of the nodes that its labels
// select. It is read-only once made and may be used by several goroutines.
type Fleet struct {
	name    string
	classes Classes
	devices []Device
	tariff  Tariff
	cel     *cel.Cache
	// coming says that cards may come, with so much memory at most; nil for any.
	coming   bool
	comingAt *resource.Quantity
}

// NewFleet makes the fleet of a flavor. everywhere are the driver's devices in
// the whole cluster, from complete pools of the newest generation; a device is
// in the fleet if in says so of its node. Devices, memory and cores are priced, and
// what the options add.
func NewFleet(flavor string, classes Classes, everywhere []Device, in func(node string) bool, options ...Option) *Fleet {
	f := &Fleet{name: flavor, classes: classes, cel: selectors, tariff: Tariff{Flavor: flavor}}
	for _, o := range options {
		o(f)
	}
	for _, d := range everywhere {
		if in == nil || in(d.Node) {
			f.devices = append(f.devices, d)
		}
	}
	slices.SortStableFunc(f.devices, func(a, b Device) int { return cmp.Compare(a.Node, b.Node) })
	return f
}

// Option changes how a [Fleet] is priced.
type Option func(*Fleet)

// WithTariff prices a fleet in more dimensions.
func WithTariff(t Tariff) Option { return func(f *Fleet) { f.tariff = t } }

// Coming says that nodes with other cards may come, so that [Fleet.Check] takes
// memory sizes above those of today's. largest is the memory of the largest of
// them, nil if that is not known.
func Coming(largest *resource.Quantity) Option {
	return func(f *Fleet) { f.coming, f.comingAt = true, largest }
}

// comes says whether a card may come that has so much of a capacity.
func (f *Fleet) comes(key resourceapi.QualifiedName, q resource.Quantity) bool {
	return f.coming && key == CapacityMemory && (f.comingAt == nil || q.Cmp(*f.comingAt) <= 0)
}

// selectors caches compiled CEL for all fleets; expressions are few and their
// compilation is the dearest part of a price.
var selectors = cel.NewCache(256, cel.Features{EnableConsumableCapacity: true})

// Empty says that the flavor has no device at this moment.
func (f *Fleet) Empty() bool { return len(f.devices) == 0 }

// Impossible says that no device of a fleet could serve a request even if all
// of them were free.
type Impossible struct {
	// Request is the name of the request in its claim.
	Request string
	// Flavor is the fleet's name.
	Flavor string
	// Detail is what was asked and what was found, as one phrase.
	Detail string
}

func (e *Impossible) Error() string {
	if e.Flavor == "" {
		return fmt.Sprintf("request %q: %s", e.Request, e.Detail)
	}
	return fmt.Sprintf("request %q on flavor %q: %s", e.Request, e.Flavor, e.Detail)
}
