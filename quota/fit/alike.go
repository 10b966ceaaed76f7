package fit

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/sluice-gpu/sluice/quota/pricing"
)

// A gang is many pods that ask alike. On each node the allocator is asked for the
// first of them; what it would give to those after it, plain numbers say where they
// can (see deal.go), which takes a tenth of the time.

// found remembers what the allocator gave on a node.
func (q *query) found(n *node, sl *slot) {
	if q.gave == nil {
		q.gave = map[*node]*slot{}
	}
	q.gave[n] = sl
}

// again is the place of one more pod on a node where the allocator gave one to a
// pod like it, nil if there is none; false where numbers do not tell.
func (s *State) again(q *query, n *node, v *view) (*slot, bool) {
	first := q.gave[n]
	if first == nil || q.key == "" || len(q.claims) == 0 {
		return nil, false
	}
	sl := &slot{workload: q.workload, set: q.set.Name, node: n.name, requests: q.needs, claims: q.claims, kind: q.key}
	c := s.counting(n, v, []*slot{sl})
	if c == nil {
		return nil, false
	}
	got, ok := c.deal(sl)
	if !ok {
		// Too many cards to look at, or no room.
		return nil, c.steps >= 0
	}
	if len(got) != len(first.devices) {
		return nil, false
	}
	for i, p := range got {
		sl.devices = append(sl.devices, v.cards[p.card].deviceOf(p, first.devices[i].DeviceRequestAllocationResult))
	}
	return sl, true
}

// deviceOf is a piece of a card as the allocator says it, for a request to which it
// gave another.
func (c *card) deviceOf(p piece, like *resourceapi.DeviceRequestAllocationResult) device {
	r := &resourceapi.DeviceRequestAllocationResult{Request: like.Request, Driver: c.key.driver, Pool: c.key.name, Device: c.device.Name}
	if !p.whole {
		r.ShareID = ptr.To(types.UID("trial"))
		for _, part := range []struct {
			name      resourceapi.QualifiedName
			all, much int64
		}{{pricing.CapacityMemory, c.memory, p.memory}, {pricing.CapacityCores, c.cores, p.cores}} {
			if part.all < 0 {
				continue
			}
			if r.ConsumedCapacity == nil {
				r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
			}
			r.ConsumedCapacity[part.name] = *resource.NewQuantity(part.much, resource.BinarySI)
		}
	}
	return device{c.key, c.id, r}
}
