package pricing

import (
	"context"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Check says what is wrong with a claim that is being made, with the path of
// each mistake below at, and warns of what may be meant otherwise. The API server
// takes any capacity that a claim asks for; what the allocator makes of it may be
// nothing, or something else than was written.
//
// It is milder than [Fleet.Claim]: what only the devices of the moment cannot
// serve is no mistake, since devices come and go. Sizes are compared with the
// devices that the request selects, where there are any.
func (f *Fleet) Check(ctx context.Context, claim *resourceapi.DeviceClaim, at *field.Path) (mistakes field.ErrorList, warnings []string) {
	one := func(name string, r *resourceapi.ExactDeviceRequest, at *field.Path) {
		wrong, more := f.check(ctx, name, r, at)
		mistakes, warnings = append(mistakes, wrong...), append(warnings, more...)
	}
	for i := range claim.Requests {
		r, at := &claim.Requests[i], at.Child("requests").Index(i)
		if r.Exactly != nil {
			one(r.Name, r.Exactly, at.Child("exactly"))
		}
		for j := range r.FirstAvailable {
			s := &r.FirstAvailable[j]
			one(r.Name+"/"+s.Name, subRequest(s), at.Child("firstAvailable").Index(j))
		}
	}
	return mistakes, warnings
}

func (f *Fleet) check(ctx context.Context, name string, r *resourceapi.ExactDeviceRequest, at *field.Path) (mistakes field.ErrorList, warnings []string) {
	class := f.classes.Class(r.DeviceClassName)
	if class == nil {
		if strings.HasSuffix(r.DeviceClassName, DriverName) {
			warnings = append(warnings, fmt.Sprintf("request %q: DeviceClass %q does not exist", name, r.DeviceClassName))
		}
		return nil, warnings
	}
	all := append(slices.Clone(class.Spec.Selectors), r.Selectors...)
	var selected []Device
	for _, d := range f.devices {
		match, err := f.matches(ctx, all, d)
		if err != nil {
			return nil, []string{fmt.Sprintf("request %q: %v: no pod that uses it can be scheduled while there is such a device", name, err)}
		}
		if match {
			selected = append(selected, d)
		}
	}
	if len(selected) == 0 {
		if !ours(class, r) {
			return nil, nil
		}
		warnings = append(warnings, fmt.Sprintf("request %q: no device matches at the moment", name))
	}
	if r.Capacity != nil {
		for _, key := range sortedKeys(r.Capacity.Requests) {
			q := r.Capacity.Requests[key]
			wrong, large := checkCapacity(key, q, selected, at.Child("capacity", "requests").Key(string(key)))
			switch {
			case wrong != nil && large && f.comes(key, q):
				warnings = append(warnings, fmt.Sprintf("request %q: no device that it selects has %s of %s at the moment; it waits for a node of an elastic flavor", name, q.String(), key))
			case wrong != nil:
				mistakes = append(mistakes, wrong)
			}
		}
	}
	if w := takesAll(name, r, selected); w != "" {
		warnings = append(warnings, w)
	}
	return mistakes, warnings
}

// checkCapacity compares one asked capacity with what the devices allow. large says
// that it is more than any of them has.
func checkCapacity(key resourceapi.QualifiedName, q resource.Quantity, selected []Device, at *field.Path) (wrong *field.Error, large bool) {
	if domain, id, ok := strings.Cut(string(key), "/"); ok && domain == DriverName {
		return field.Invalid(at, key, fmt.Sprintf("a request names a capacity exactly as it is published, without its domain: write %q", id)), false
	}
	if q.Sign() < 0 || q.IsZero() && key == CapacityMemory {
		return field.Invalid(at, q.String(), "it must be more than zero"+allowed(key, selected)), false
	}
	if len(selected) == 0 {
		return nil, false
	}
	var have []capacityOf
	for _, d := range selected {
		if c, ok := d.Capacity[key]; ok {
			have = append(have, capacityOf{d, c})
		}
	}
	if len(have) == 0 {
		var names []string
		for _, k := range sortedKeys(selected[0].Capacity) {
			names = append(names, string(k))
		}
		return field.NotSupported(at, string(key), names), false
	}
	fits, low := false, true
	for _, c := range have {
		_, ok, err := consumed(&q, c.DeviceCapacity)
		fits = fits || ok && err == nil
		low = low && q.Cmp(c.least()) < 0
	}
	switch {
	case low:
		return field.Invalid(at, q.String(), "it is less than the least share"+allowed(key, selected)), false
	case !fits:
		return field.Invalid(at, q.String(), "no device that the request selects has as much"+allowed(key, selected)), true
	}
	return nil, false
}

// capacityOf is one capacity of a device.
type capacityOf struct {
	Device
	resourceapi.DeviceCapacity
}

// least is the smallest amount that is not rounded up to another: fixed sizes
// may be asked for by anything below them.
func (c capacityOf) least() resource.Quantity {
	if p := c.RequestPolicy; p != nil && p.ValidRange != nil && p.ValidRange.Min != nil {
		return *p.ValidRange.Min
	}
	return resource.Quantity{}
}

// most is the largest amount that can be asked for.
func (c capacityOf) most() resource.Quantity {
	p := c.RequestPolicy
	switch {
	case p != nil && p.ValidRange != nil && p.ValidRange.Max != nil && p.ValidRange.Max.Cmp(c.Value) < 0:
		return *p.ValidRange.Max
	case p != nil && len(p.ValidValues) > 0:
		return p.ValidValues[len(p.ValidValues)-1]
	}
	return c.Value
}

// allowed is the range of a capacity over the selected devices, as the end of a
// sentence; "" if none has it.
func allowed(key resourceapi.QualifiedName, selected []Device) string {
	var least, most resource.Quantity
	where := ""
	for _, d := range selected {
		published, ok := d.Capacity[key]
		if !ok {
			continue
		}
		c := capacityOf{d, published}
		if low := c.least(); where == "" || low.Cmp(least) < 0 {
			least = low
		}
		if high := c.most(); where == "" || high.Cmp(most) > 0 {
			most, where = high, d.Name()
		}
	}
	if where == "" {
		return ""
	}
	if least.IsZero() && key == CapacityMemory {
		// Of a fixed size, which everything below becomes.
		return fmt.Sprintf("; allowed is up to %s (%s)", most.String(), where)
	}
	return fmt.Sprintf("; allowed are %s to %s (%s)", least.String(), most.String(), where)
}

// takesAll warns of a request that names cores but no memory where that means
// all memory of a card: it is a whole card, whatever the cores.
func takesAll(name string, r *resourceapi.ExactDeviceRequest, selected []Device) string {
	if r.AdminAccess != nil && *r.AdminAccess || r.Capacity == nil {
		return ""
	}
	cores, named := r.Capacity.Requests[CapacityCores]
	if _, sized := r.Capacity.Requests[CapacityMemory]; !named || sized {
		return ""
	}
	for _, d := range selected {
		memory, ok := d.Capacity[CapacityMemory]
		if !ok || !d.Shareable() {
			continue
		}
		if got, ok, err := consumed(nil, memory); err == nil && ok && got.Cmp(memory.Value) >= 0 {
			return fmt.Sprintf("request %q names %s cores and no memory: it takes all memory of a card and is charged as a whole card, %s and %d%% cores on %s; name memory to share a card",
				name, cores.String(), FormatBytes(memory.Value.Value()), allCores(d.Device), d.Name())
		}
	}
	return ""
}
