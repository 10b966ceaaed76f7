package fit

import (
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/sluice-gpu/sluice/quota/pricing"
)

// counting deals in plain numbers what the allocator would give for plain claims:
// each request for so many devices that its class and its own selectors select,
// memory and cores of them, and what they draw from counters of their pool. It is
// a thousand times as fast as the allocator, which matters where every order is
// tried; a property compares the two.
type counting struct {
	cards []rest
	// counters are what is left of those that cards draw from.
	counters []int64
	// kinds are what each kind of slot asks, one and the same for those that ask
	// alike in other words.
	kinds map[string]*demands
	dealt [][]piece
	// steps is how many cards may still be looked at.
	steps int
}

// mostSteps bounds how many cards are looked at to judge one line.
const mostSteps = 400_000

// rest is what is left of a card.
type rest struct {
	open, shareable, touched bool
	memory, cores            int64
	// shares counts those to whom it was dealt.
	shares int
	// draws are what it takes of counters as soon as somebody has any of it.
	draws []draw
}

// demands are the requests of one pod.
type demands []demand

// demand is one request: so many cards, and what it takes of each that it may have.
type demand struct {
	portions
	count int
}

// portions are what one request takes of each card.
type portions []portion

type portion struct {
	ok            bool
	memory, cores int64
}

func (a demands) equal(b demands) bool {
	return slices.EqualFunc(a, b, func(a, b demand) bool { return a.count == b.count && slices.Equal(a.portions, b.portions) })
}

// mostPlain bounds the requests of one pod that are dealt in numbers.
const mostPlain = 3

// counting is nil where numbers do not tell.
func (s *State) counting(n *node, v *view, all []*slot) *counting {
	if len(s.shared) > 0 || !n.counters.exact || !s.sound(n) {
		return nil
	}
	c := &counting{cards: make([]rest, 0, len(v.cards)), kinds: map[string]*demands{}, steps: mostSteps}
	for i := range v.cards {
		card := &v.cards[i]
		d := card.device
		if len(d.BindingConditions) > 0 || card.shareable && len(d.Capacity) != boolInt(card.memory >= 0)+boolInt(card.cores >= 0) {
			return nil
		}
		if card.shareable && card.whole > 0 || !card.shareable && card.shares > 0 {
			// It was another kind of device when that was given.
			return nil
		}
		c.cards = append(c.cards, rest{open: card.open, shareable: card.shareable, touched: card.touched, memory: card.freeMemory, cores: card.freeCores, draws: card.draws})
	}
	c.counters = n.counters.left(v.cards)
	if slices.ContainsFunc(c.counters, func(left int64) bool { return left < 0 }) {
		// Where more is taken than there is, nothing of the pool is given out.
		return nil
	}
	for _, sl := range all {
		if _, known := c.kinds[sl.kind]; known {
			continue
		}
		mine := s.plain(n, sl)
		if mine == nil {
			return nil
		}
		for _, others := range c.kinds {
			if others.equal(*mine) {
				mine = others
				break
			}
		}
		c.kinds[sl.kind] = mine
	}
	return c
}

// alike says that two slots ask the same.
func (c *counting) alike(a, b *slot) bool { return c.kinds[a.kind] == c.kinds[b.kind] }

// sound says that the node's pools are complete and name each device once, so that
// the allocator gives what is in them.
func (s *State) sound(n *node) bool {
	for _, own := range n.slices {
		is := own.Spec.Pool
		there := int64(0)
		for _, slice := range s.pools[poolKey{own.Spec.Driver, is.Name}].slices {
			switch {
			case slice.Spec.Pool.Generation > is.Generation:
				return false
			case slice.Spec.Pool.Generation == is.Generation:
				there++
			}
		}
		if there != is.ResourceSliceCount {
			return false
		}
	}
	names := make(map[structured.DeviceID]struct{}, len(n.cards))
	for i := range n.cards {
		names[n.cards[i].id] = struct{}{}
	}
	return len(names) == len(n.cards)
}

// mostKnown bounds how many kinds are remembered of one node.
const mostKnown = 64

// plain is what the claims of a slot take of each card of a node; nil where
// numbers do not tell.
func (s *State) plain(n *node, sl *slot) *demands {
	if known, ok := n.plain[sl.kind]; ok && sl.kind != "" {
		return known
	}
	var mine *demands
	if all, ok := s.asksOf(n, sl.claims); ok {
		mine = &all
	}
	if n.plain == nil || len(n.plain) >= mostKnown {
		n.plain = map[string]*demands{}
	}
	n.plain[sl.kind] = mine
	return mine
}

func (s *State) asksOf(n *node, claims []*resourceapi.ResourceClaim) (demands, bool) {
	var all demands
	for _, claim := range claims {
		if len(claim.Spec.Devices.Constraints) > 0 {
			return nil, false
		}
		results := int64(0)
		for i := range claim.Spec.Devices.Requests {
			r := claim.Spec.Devices.Requests[i].Exactly
			if r == nil || r.Count < 1 || len(r.Tolerations) > 0 || r.AdminAccess != nil && *r.AdminAccess ||
				r.AllocationMode != resourceapi.DeviceAllocationModeExactCount || len(all) == mostPlain {
				return nil, false
			}
			if results += r.Count; results > resourceapi.AllocationResultsMaxSize {
				return nil, false
			}
			selected := s.selected(n, r.DeviceClassName)
			if selected == nil {
				return nil, false
			}
			p := make(portions, len(n.cards))
			for j := range n.cards {
				if !selected[j] {
					continue
				}
				own, err := s.selects(r.Selectors, &n.cards[j])
				if err != nil {
					return nil, false
				}
				if !own || n.cards[j].tainted {
					continue
				}
				var known bool
				if p[j], known = n.cards[j].portion(r.Capacity); !known {
					return nil, false
				}
			}
			all = append(all, demand{p, int(r.Count)})
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
			ok, err := s.selects(class.Spec.Selectors, &n.cards[i])
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

func (s *State) selects(all []resourceapi.DeviceSelector, c *card) (bool, error) {
	for _, sel := range all {
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
	if !c.find(*c.kinds[sl.kind], 0, 0, &got) {
		return nil, false
	}
	c.dealt = append(c.dealt, got)
	return got, true
}

// find gives every request the first cards that leave enough for those after it.
// Of the first request done cards are given; the next is looked for from a card
// on, since no card serves a request twice.
func (c *counting) find(all demands, done, from int, got *[]piece) bool {
	if len(all) == 0 {
		return true
	}
	if done == all[0].count {
		return c.find(all[1:], 0, 0, got)
	}
	for i := from; i < len(c.cards); i++ {
		if c.steps--; c.steps < 0 {
			return false
		}
		p := all[0].portions[i]
		if !c.has(i, p) {
			continue
		}
		took := piece{i, p.memory, p.cores, !c.cards[i].shareable}
		c.take(took, 1)
		*got = append(*got, took)
		if c.find(all, done+1, i+1, got) {
			return true
		}
		*got = (*got)[:len(*got)-1]
		c.take(took, -1)
	}
	return false
}

func (c *counting) back() {
	last := len(c.dealt) - 1
	for _, p := range c.dealt[last] {
		c.take(p, -1)
	}
	c.dealt = c.dealt[:last]
}

// has says whether there is still so much of a card.
func (c *counting) has(i int, p portion) bool {
	r := &c.cards[i]
	used := r.touched || r.shares > 0
	switch {
	case !p.ok || !r.open:
		return false
	case !r.shareable && used:
		return false
	case r.shareable && (p.memory > r.memory || p.cores > r.cores):
		return false
	case used:
		// Its counters are paid.
		return true
	}
	for _, d := range r.draws {
		if d.much > c.counters[d.counter] {
			return false
		}
	}
	return true
}

func (c *counting) take(p piece, times int) {
	r := &c.cards[p.card]
	before := r.touched || r.shares > 0
	r.shares += times
	if after := r.touched || r.shares > 0; after != before {
		for _, d := range r.draws {
			c.counters[d.counter] -= int64(times) * d.much
		}
	}
	if !p.whole {
		r.memory -= int64(times) * p.memory
		r.cores -= int64(times) * p.cores
	}
}
