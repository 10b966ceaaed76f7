package fit

import (
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/structured"
)

// exchange puts a slice in the place of an earlier one with the same devices, in
// name and order, and follows what has changed of single devices: a driver
// rewrites its slice whenever a card becomes sick or well. False means that more
// has changed, and that what is left of the node is to be computed anew.
func (s *State) exchange(old, slice *resourceapi.ResourceSlice) bool {
	n, first := s.exchangeable(old, slice)
	if n == nil {
		return false
	}
	views := []*view{n.base}
	if n.held != nil {
		views = append(views, n.held)
	}
	// Whether the pool is whole is the allocator's matter.
	changed := old.Spec.Pool != slice.Spec.Pool
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		listed := &n.cards[first+i]
		equal := sameDevice(listed.device, d)
		if equal {
			listed.device = d
		} else {
			changed = true
			*listed = cardOf(listed.key, d)
		}
		for _, v := range views {
			if left := &v.cards[first+i]; equal {
				left.device = d
			} else {
				left.become(listed, &v.state)
			}
		}
	}
	p := s.pools[poolKey{slice.Spec.Driver, slice.Spec.Pool.Name}]
	p.slices[slices.Index(p.slices, old)] = slice
	n.slices[slices.Index(n.slices, old)] = slice
	if changed {
		s.freed = true
		n.forgetKinds()
		for _, v := range views {
			v.refused, v.keys = nil, keysOf(n, v.cards)
		}
		s.mark(n)
	}
	return true
}

// become has a card be another device, of which the same is taken.
func (c *card) become(listed *card, state *structured.AllocatedState) {
	shares, whole, lent := c.shares, c.whole, c.lent
	*c = *listed
	c.shares, c.whole, c.lent = shares, whole, lent
	c.leave(state)
}

// exchangeable finds the node whose slice may be exchanged for another, and the
// first of its cards that is in it; nil if it is not a matter of single devices.
func (s *State) exchangeable(old, slice *resourceapi.ResourceSlice) (*node, int) {
	a, b := &old.Spec, &slice.Spec
	if a.NodeName == nil || b.NodeName == nil || *a.NodeName != *b.NodeName || a.Driver != b.Driver || a.Pool.Name != b.Pool.Name ||
		len(b.Devices) == 0 || len(a.Devices) != len(b.Devices) || len(a.SharedCounters)+len(b.SharedCounters) > 0 {
		return nil, 0
	}
	n, p := s.nodes[*b.NodeName], s.pools[poolKey{b.Driver, b.Pool.Name}]
	if n == nil || n.base == nil || len(n.cards) != len(n.base.cards) || p == nil || p.open > 0 || a.Pool.Generation != b.Pool.Generation && len(p.slices) > 1 {
		return nil, 0
	}
	for i := range b.Devices {
		if a.Devices[i].Name != b.Devices[i].Name || len(a.Devices[i].ConsumesCounters)+len(b.Devices[i].ConsumesCounters) > 0 {
			return nil, 0
		}
	}
	first := slices.IndexFunc(n.cards, func(c card) bool { return c.device == &a.Devices[0] })
	if first < 0 {
		return nil, 0
	}
	return n, first
}

// sameDevice says whether two devices are equal in everything. Those parts that
// few drivers use are left to reflection, which is slow.
func sameDevice(a, b *resourceapi.Device) bool {
	if a == b {
		return true
	}
	if a.Name != b.Name || !same(a.AllowMultipleAllocations, b.AllowMultipleAllocations) || !maps.EqualFunc(a.Attributes, b.Attributes, sameAttribute) ||
		!maps.EqualFunc(a.Capacity, b.Capacity, sameCapacity) || !slices.EqualFunc(a.Taints, b.Taints, sameTaint) {
		return false
	}
	if rare(a) || rare(b) {
		return apiequality.Semantic.DeepEqual(a, b)
	}
	return true
}

func rare(d *resourceapi.Device) bool {
	return len(d.ConsumesCounters) > 0 || d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil || d.BindsToNode != nil ||
		len(d.BindingConditions) > 0 || len(d.BindingFailureConditions) > 0 || len(d.NodeAllocatableResources) > 0
}

func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

func sameAttribute(a, b resourceapi.DeviceAttribute) bool {
	return same(a.IntValue, b.IntValue) && same(a.BoolValue, b.BoolValue) && same(a.StringValue, b.StringValue) && same(a.VersionValue, b.VersionValue) &&
		slices.Equal(a.IntValues, b.IntValues) && slices.Equal(a.BoolValues, b.BoolValues) &&
		slices.Equal(a.StringValues, b.StringValues) && slices.Equal(a.VersionValues, b.VersionValues)
}

func sameCapacity(a, b resourceapi.DeviceCapacity) bool {
	if a.Value.Cmp(b.Value) != 0 {
		return false
	}
	return a.RequestPolicy == b.RequestPolicy || samePolicy(a.RequestPolicy, b.RequestPolicy)
}

func samePolicy(a, b *resourceapi.CapacityRequestPolicy) bool {
	if a == nil || b == nil || len(a.ValidValues)+len(b.ValidValues) > 0 {
		return apiequality.Semantic.DeepEqual(a, b)
	}
	x, y := a.ValidRange, b.ValidRange
	if !sameQuantity(a.Default, b.Default) || (x == nil) != (y == nil) {
		return false
	}
	return x == nil || sameQuantity(x.Min, y.Min) && sameQuantity(x.Max, y.Max) && sameQuantity(x.Step, y.Step)
}

func sameTaint(a, b resourceapi.DeviceTaint) bool {
	return a.Key == b.Key && a.Value == b.Value && a.Effect == b.Effect && a.TimeAdded.Equal(b.TimeAdded)
}

func sameQuantity(a, b *resource.Quantity) bool {
	return a == b || a != nil && b != nil && a.Cmp(*b) == 0
}
