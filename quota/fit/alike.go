package fit

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/sluice-gpu/sluice/quota/pricing"
)

// Many pods ask alike. On each node the allocator is asked for the first of them;
// what it would give to those after it, as long as the node's devices and the
// classes stay what they are, plain numbers say where they can (see deal.go), which
// takes a tenth of the time.

// serve remembers the requests that the allocator served on a node, one for each
// device that it gave.
func (n *node) serve(q *query, sl *slot) {
	if q.key == "" {
		return
	}
	if n.served == nil || len(n.served) >= mostKnown {
		n.served = map[string][]string{}
	}
	requests := make([]string, len(sl.devices))
	for i := range sl.devices {
		requests[i] = sl.devices[i].Request
	}
	n.served[q.key] = requests
}

// again is the place of one more pod on a node where the allocator gave one to a
// pod like it, nil if there is none; false where numbers do not tell.
func (s *State) again(q *query, n *node, v *view) (*slot, bool) {
	requests, served := n.served[q.key]
	if !served || len(q.claims) == 0 {
		return nil, false
	}
	sl := q.slotOn(n, nil)
	c := s.counting(n, v, []*slot{sl})
	if c == nil {
		return nil, false
	}
	got, ok := c.deal(sl)
	if !ok {
		// Too many cards to look at, or no room.
		return nil, c.steps >= 0
	}
	if len(got) != len(requests) {
		return nil, false
	}
	for i, p := range got {
		sl.devices = append(sl.devices, v.cards[p.card].deviceOf(p, requests[i]))
	}
	return sl, true
}

// deviceOf is a piece of a card as the allocator says it, for a request.
func (c *card) deviceOf(p piece, request string) device {
	r := &resourceapi.DeviceRequestAllocationResult{Request: request, Driver: c.key.driver, Pool: c.key.name, Device: c.device.Name}
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
