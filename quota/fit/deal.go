package fit

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/sluice-gpu/sluice/quota/pricing"
)

// counting deals in plain numbers what the allocator would give for plain claims:
// each request for one device that only its class selects, memory and cores of
// it. It is a thousand times as fast as the allocator, which matters where every
// order is tried; a property compares the two.
type counting struct {
	cards []rest
	kinds map[string][]portions
	dealt [][]piece
}

// rest is what is left of a card.
type rest struct {
	open, shareable, touched bool
	memory, cores            int64
}

// portions are what one request takes of each card.
type portions []portion

type portion struct {
	ok            bool
	memory, cores int64
}

// mostPlain bounds the requests of one pod that are dealt in numbers.
const mostPlain = 3

// counting is nil where numbers do not tell.
func (s *State) counting(n *node, v *view, all []*slot) *counting {
	if len(s.shared) > 0 {
		return nil
	}
	c := &counting{kinds: map[string][]portions{}}
	for i := range v.cards {
		card := &v.cards[i]
		d := card.device
		if len(d.ConsumesCounters) > 0 || len(d.BindingConditions) > 0 || card.shareable && len(d.Capacity) != boolInt(card.memory >= 0)+boolInt(card.cores >= 0) {
			return nil
		}
		c.cards = append(c.cards, rest{open: card.open, shareable: card.shareable, touched: card.touched, memory: card.freeMemory, cores: card.freeCores})
	}
	for _, sl := range all {
		if _, known := c.kinds[sl.kind]; known {
			continue
		}
		asks, ok := s.plain(n, sl.claims)
		if !ok {
			return nil
		}
		c.kinds[sl.kind] = asks
	}
	return c
}

// plain is what claims take of each card of a node; false where numbers do not
// tell.
func (s *State) plain(n *node, claims []*resourceapi.ResourceClaim) ([]portions, bool) {
	var all []portions
	for _, claim := range claims {
		if len(claim.Spec.Devices.Constraints) > 0 {
			return nil, false
		}
		for i := range claim.Spec.Devices.Requests {
			r := claim.Spec.Devices.Requests[i].Exactly
			if r == nil || r.Count > 1 || len(r.Selectors) > 0 || len(r.Tolerations) > 0 || r.AdminAccess != nil && *r.AdminAccess ||
				r.AllocationMode != resourceapi.DeviceAllocationModeExactCount || len(all) == mostPlain {
				return nil, false
			}
			selected := s.selected(n, r.DeviceClassName)
			if selected == nil {
				return nil, false
			}
			p := make(portions, len(n.cards))
			for j := range n.cards {
				if !selected[j] || n.cards[j].tainted {
					continue
				}
				var known bool
				if p[j], known = n.cards[j].portion(r.Capacity); !known {
					return nil, false
				}
			}
			all = append(all, p)
		}
	}
	return all, true
}

// portion is what a request takes of a card; false where numbers do not tell.
func (c *card) portion(asked *resourceapi.CapacityRequirements) (portion, bool) {
	p := portion{ok: true}
	if asked != nil {
		for name, q := range asked.Requests {
			if name != pricing.CapacityMemory && name != pricing.CapacityCores || q.Sign() < 0 {
				return p, false
			}
			all, has := c.device.Capacity[name]
			p.ok = p.ok && has && q.Cmp(all.Value) <= 0
		}
	}
	if !c.shareable || !p.ok {
		return p, true
	}
	p.memory, p.ok = c.consumed(asked, pricing.CapacityMemory)
	if p.ok {
		p.cores, p.ok = c.consumed(asked, pricing.CapacityCores)
	}
	return p, true
}

func (c *card) consumed(asked *resourceapi.CapacityRequirements, name resourceapi.QualifiedName) (int64, bool) {
	all, has := c.device.Capacity[name]
	if !has {
		return 0, true
	}
	if asked != nil {
		if q, named := asked.Requests[name]; named {
			return pricing.Consumed(&q, all)
		}
	}
	return pricing.Consumed(nil, all)
}

// selected says which cards of a node a class selects, nil where that cannot be
// told.
func (s *State) selected(n *node, name string) []bool {
	if known, ok := n.selected[name]; ok {
		return known
	}
	var all []bool
	if class := s.classes[name]; class != nil {
		all = make([]bool, len(n.cards))
		for i := range n.cards {
			ok, err := s.selects(class, &n.cards[i])
			if err != nil {
				all = nil
				break
			}
			all[i] = ok
		}
	}
	if n.selected == nil {
		n.selected = map[string][]bool{}
	}
	n.selected[name] = all
	return all
}

func (s *State) selects(class *resourceapi.DeviceClass, c *card) (bool, error) {
	for _, sel := range class.Spec.Selectors {
		if sel.CEL == nil {
			return false, nil
		}
		compiled := s.cel.GetOrCompile(sel.CEL.Expression)
		if compiled.Error != nil {
			return false, compiled.Error
		}
		ok, _, err := compiled.DeviceMatches(context.Background(), cel.Device{
			Driver: c.key.driver, AllowMultipleAllocations: c.device.AllowMultipleAllocations,
			Attributes: c.device.Attributes, Capacity: c.device.Capacity,
		})
		if err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

func (c *counting) deal(sl *slot) ([]piece, bool) {
	got := make([]piece, 0, mostPlain)
	if !c.find(c.kinds[sl.kind], &got) {
		return nil, false
	}
	c.dealt = append(c.dealt, got)
	return got, true
}

// find gives every request the first card that leaves enough for those after it.
func (c *counting) find(asks []portions, got *[]piece) bool {
	if len(asks) == 0 {
		return true
	}
	for i := range c.cards {
		p, r := asks[0][i], &c.cards[i]
		if !p.ok || !r.has(p) {
			continue
		}
		took := piece{i, p.memory, p.cores, !r.shareable}
		r.take(took, 1)
		*got = append(*got, took)
		if c.find(asks[1:], got) {
			return true
		}
		*got = (*got)[:len(*got)-1]
		r.take(took, -1)
	}
	return false
}

func (c *counting) back() {
	last := len(c.dealt) - 1
	for _, p := range c.dealt[last] {
		c.cards[p.card].take(p, -1)
	}
	c.dealt = c.dealt[:last]
}

func (r *rest) has(p portion) bool {
	if !r.shareable {
		return r.open && !r.touched
	}
	return r.open && p.memory <= r.memory && p.cores <= r.cores
}

func (r *rest) take(p piece, times int64) {
	if p.whole {
		r.touched = times > 0
		return
	}
	r.memory -= times * p.memory
	r.cores -= times * p.cores
}
