package pricing

import (
	"context"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
)

// Claim prices everything that a claim asks of the driver. Requests for other
// drivers' devices cost nothing here. The error is an [*Impossible] where the
// fleet can never serve the claim.
func (f *Fleet) Claim(ctx context.Context, claim *resourceapi.DeviceClaim) (Price, error) {
	var total Price
	for i := range claim.Requests {
		r := &claim.Requests[i]
		p, err := f.request(ctx, r)
		if err != nil {
			return Price{}, err
		}
		total = total.Add(p)
	}
	return total, nil
}

// request prices one request; of alternatives the dearest that is possible, as
// the choice is the scheduler's.
func (f *Fleet) request(ctx context.Context, r *resourceapi.DeviceRequest) (Price, error) {
	if r.Exactly != nil {
		return f.exactly(ctx, r.Name, r.Exactly)
	}
	var dearest Price
	var first error
	possible := false
	for i := range r.FirstAvailable {
		s := &r.FirstAvailable[i]
		p, err := f.exactly(ctx, r.Name+"/"+s.Name, subRequest(s))
		if err != nil {
			if first == nil {
				first = err
			}
			continue
		}
		possible = true
		dearest = dearest.Max(p)
	}
	if !possible && first != nil {
		return Price{}, first
	}
	return dearest, nil
}

// subRequest is an alternative as if it were asked for alone.
func subRequest(s *resourceapi.DeviceSubRequest) *resourceapi.ExactDeviceRequest {
	return &resourceapi.ExactDeviceRequest{
		DeviceClassName: s.DeviceClassName,
		Selectors:       s.Selectors,
		AllocationMode:  s.AllocationMode,
		Count:           s.Count,
		Tolerations:     s.Tolerations,
		Capacity:        s.Capacity,
	}
}

func (f *Fleet) exactly(ctx context.Context, name string, r *resourceapi.ExactDeviceRequest) (Price, error) {
	if r.AdminAccess != nil && *r.AdminAccess {
		return Price{}, nil
	}
	impossible := func(format string, args ...any) error {
		return &Impossible{Request: name, Flavor: f.name, Detail: fmt.Sprintf(format, args...)}
	}
	class := f.classes.Class(r.DeviceClassName)
	if class == nil {
		return Price{}, impossible("DeviceClass %q does not exist", r.DeviceClassName)
	}
	if err := checkAmounts(r.Capacity); err != nil {
		return Price{}, impossible("%v", err)
	}
	all := append(slices.Clone(class.Spec.Selectors), r.Selectors...)

	node, nodeTotal, nodeCount := "", Price{}, int64(0)
	var dearest, dearestNode Price
	var most int64
	selected := 0
	var nearest refusal
	for _, d := range f.devices {
		match, err := f.matches(ctx, all, d)
		if err != nil {
			return Price{}, impossible("%v", err)
		}
		if !match {
			continue
		}
		selected++
		if d.Node != node {
			node, nodeTotal, nodeCount = d.Node, Price{}, 0
		}
		p, why, err := f.onDevice(ctx, r.Capacity, d)
		if err != nil {
			return Price{}, impossible("%v", err)
		}
		if why != nil {
			nearest.keep(*why)
			continue
		}
		dearest = dearest.Max(p)
		nodeTotal = nodeTotal.Add(p)
		nodeCount++
		dearestNode = dearestNode.Max(nodeTotal)
		most = max(most, nodeCount)
	}
	switch {
	case selected == 0 && !ours(class, r):
		return Price{}, nil
	case selected == 0:
		return Price{}, impossible("no device of class %q matches the selectors", r.DeviceClassName)
	case most == 0:
		return Price{}, impossible("%s", nearest.String())
	case r.AllocationMode == resourceapi.DeviceAllocationModeAll:
		return dearestNode, nil
	}
	count := r.Count
	if r.AllocationMode == "" && count == 0 {
		count = 1
	}
	if count <= 0 {
		return Price{}, impossible("a count of %d is asked", count)
	}
	if count > most {
		return Price{}, impossible("%d devices asked on one node, the node with most has %d", count, most)
	}
	return dearest.Times(count), nil
}

// ours says whether a class is meant for the driver although none of its
// devices matches just now: slices vanish while a kubelet restarts, and a
// request must not become free of charge then.
func ours(class *resourceapi.DeviceClass, r *resourceapi.ExactDeviceRequest) bool {
	if strings.HasSuffix(class.Name, DriverName) {
		return true
	}
	named := false
	for _, s := range append(slices.Clone(class.Spec.Selectors), r.Selectors...) {
		if s.CEL == nil {
			continue
		}
		if strings.Contains(s.CEL.Expression, DriverName) {
			return true
		}
		named = named || strings.Contains(s.CEL.Expression, "device.driver")
	}
	return !named
}

func (f *Fleet) matches(ctx context.Context, all []resourceapi.DeviceSelector, d Device) (bool, error) {
	for _, s := range all {
		if s.CEL == nil {
			return false, nil
		}
		compiled := f.cel.GetOrCompile(s.CEL.Expression)
		if compiled.Error != nil {
			return false, fmt.Errorf("selector %q: %w", s.CEL.Expression, compiled.Error)
		}
		ok, _, err := compiled.DeviceMatches(ctx, cel.Device{
			Driver:                   DriverName,
			AllowMultipleAllocations: d.AllowMultipleAllocations,
			Attributes:               d.Attributes,
			Capacity:                 d.Capacity,
		})
		if err != nil {
			return false, fmt.Errorf("selector %q on %s: %w", s.CEL.Expression, d.Name(), err)
		}
		if !ok {
			return false, nil
		}
	}
	return true, nil
}

// checkAmounts refuses what the allocator would take for the least amount or
// give up on.
func checkAmounts(c *resourceapi.CapacityRequirements) error {
	if c == nil {
		return nil
	}
	for _, key := range sortedKeys(c.Requests) {
		q := c.Requests[key]
		if q.Sign() < 0 || (q.IsZero() && key == CapacityMemory) {
			return fmt.Errorf("%s of %q asked, it must be more than zero", q.String(), key)
		}
	}
	return nil
}

// refusal is why one device cannot serve a request.
type refusal struct {
	key      resourceapi.QualifiedName
	unknown  bool
	asked    resource.Quantity
	has      resource.Quantity
	device   string
	hint     string
	occupied bool
}

// keep replaces the refusal by one that comes nearer to what was asked.
func (r *refusal) keep(other refusal) {
	if !r.occupied || (r.unknown && !other.unknown) || (r.unknown == other.unknown && other.has.Cmp(r.has) > 0) {
		*r = other
		r.occupied = true
	}
}

func (r refusal) String() string {
	if r.unknown {
		return fmt.Sprintf("capacity %q asked, %s publishes %s", r.key, r.device, r.hint)
	}
	return fmt.Sprintf("%s of %q asked, the largest device that matches gives %s (%s)", r.asked.String(), r.key, r.has.String(), r.device)
}

// onDevice prices a request on one device, or says why the device cannot serve
// it.
func (f *Fleet) onDevice(ctx context.Context, c *resourceapi.CapacityRequirements, d Device) (Price, *refusal, error) {
	asked := map[resourceapi.QualifiedName]resource.Quantity{}
	if c != nil {
		asked = c.Requests
	}
	for _, key := range sortedKeys(asked) {
		if _, ok := d.Capacity[key]; !ok {
			return Price{}, &refusal{key: key, unknown: true, device: d.Name(), hint: quoteKeys(sortedKeys(d.Capacity))}, nil
		}
	}
	if !d.Shareable() {
		for _, key := range sortedKeys(asked) {
			q, has := asked[key], d.Capacity[key].Value
			if q.Cmp(has) > 0 {
				return Price{}, &refusal{key: key, asked: q, has: has, device: d.Name()}, nil
			}
		}
		price, err := f.tariff.of(ctx, exclusive(d), d)
		return price, nil, err
	}
	price := Price{Devices: 1}
	for _, key := range sortedKeys(d.Capacity) {
		capacity := d.Capacity[key]
		var q *resource.Quantity
		if a, ok := asked[key]; ok {
			q = &a
		}
		got, ok, err := consumed(q, capacity)
		if err != nil {
			return Price{}, nil, fmt.Errorf("capacity %q: %w", key, err)
		}
		if !ok {
			has := capacity.Value
			if p := capacity.RequestPolicy; p != nil && p.ValidRange != nil && p.ValidRange.Max != nil && p.ValidRange.Max.Cmp(has) < 0 {
				has = *p.ValidRange.Max
			}
			if p := capacity.RequestPolicy; p != nil && len(p.ValidValues) > 0 {
				has = p.ValidValues[len(p.ValidValues)-1]
			}
			return Price{}, &refusal{key: key, asked: got, has: has, device: d.Name()}, nil
		}
		switch key {
		case CapacityMemory:
			price.Memory = got.Value()
		case CapacityCores:
			price.Cores = max(price.Cores, got.Value())
		}
	}
	price, err := f.tariff.of(ctx, Whole(price, d.Device), d)
	return price, nil, err
}

// Whole raises the cores of a share that takes all the memory of a device to
// all its cores: nobody can use what is left of the card.
func Whole(share Price, d *resourceapi.Device) Price {
	memory, ok := d.Capacity[CapacityMemory]
	if ok && share.Memory >= memory.Value.Value() {
		share.Cores = max(share.Cores, allCores(d))
	}
	return share
}

// exclusive is the price of a device that nobody else can use.
func exclusive(d Device) Price {
	memory := d.Capacity[CapacityMemory]
	return Price{Devices: 1, Memory: memory.Value.Value(), Cores: allCores(d.Device)}
}

func allCores(d *resourceapi.Device) int64 {
	if c, ok := d.Capacity[CapacityCores]; ok {
		return c.Value.Value()
	}
	return WholeCard
}

func sortedKeys[V any](m map[resourceapi.QualifiedName]V) []resourceapi.QualifiedName {
	keys := make([]resourceapi.QualifiedName, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func quoteKeys(keys []resourceapi.QualifiedName) string {
	quoted := make([]string, len(keys))
	for i, k := range keys {
		quoted[i] = fmt.Sprintf("%q", k)
	}
	return strings.Join(quoted, ", ")
}
