package controller

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/pricing"
)

// elastic says whether a flavor's nodes come when they are asked for.
func elastic(f *kueue.ResourceFlavor) bool {
	return f != nil && f.Annotations[ElasticAnnotation] == "true"
}

func sameGrowth(a, b *kueue.ResourceFlavor) bool {
	return elastic(a) == elastic(b) && a.Annotations[ElasticCardAnnotation] == b.Annotations[ElasticCardAnnotation]
}

// grows says whether nodes may come for the pods of a set.
func (c *core) grows(given *kueue.PodSetAssignment) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range flavorsOf(given) {
		if elastic(c.flavors[f]) {
			return true
		}
	}
	return false
}

// comingCards says whether nodes may come with cards that are not there yet, and
// how much memory the largest of them has, nil if a flavor does not tell.
func (c *core) comingCards() (largest *resource.Quantity, grow bool) {
	var most resource.Quantity
	known := true
	for _, f := range c.flavors {
		if !elastic(f) {
			continue
		}
		grow = true
		memory, err := resource.ParseQuantity(f.Annotations[ElasticCardAnnotation])
		if err != nil || memory.Sign() <= 0 {
			known = false
		} else if memory.Cmp(most) > 0 {
			most = memory
		}
	}
	if !grow || !known {
		return nil, grow
	}
	return &most, true
}

// expected is a card of the kind that a flavor's nodes will have, for prices while
// it has no node; false if its object does not tell.
func expected(f *kueue.ResourceFlavor) (pricing.Device, bool) {
	if !elastic(f) {
		return pricing.Device{}, false
	}
	memory, err := resource.ParseQuantity(f.Annotations[ElasticCardAnnotation])
	if err != nil || memory.Sign() <= 0 {
		return pricing.Device{}, false
	}
	shareable, kind := true, "gpu"
	whole := func(all, usual, least, step resource.Quantity) resourceapi.DeviceCapacity {
		return resourceapi.DeviceCapacity{Value: all, RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default: &usual, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &least, Step: &step},
		}}
	}
	zero, one, hundred := resource.MustParse("0"), resource.MustParse("1"), resource.MustParse("100")
	return pricing.Device{Pool: "expected", Node: "expected", Device: &resourceapi.Device{
		Name: "card", AllowMultipleAllocations: &shareable,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: &kind}},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			pricing.CapacityMemory: whole(memory, memory, resource.MustParse("256Mi"), resource.MustParse("1Mi")),
			pricing.CapacityCores:  whole(hundred, zero, zero, one),
		},
	}}, true
}
