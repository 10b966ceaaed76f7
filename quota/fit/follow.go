package fit

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// take adds a device to what is taken, without saying what is left of the cards.
func (v *view) take(d device) *card {
	c := v.card(d)
	if c == nil {
		take(&v.state, d)
		return nil
	}
	v.own(c)
	take(&v.state, d)
	if d.ShareID == nil {
		c.whole++
	} else {
		c.shares++
	}
	return c
}

// card is the card of a node that a result names, nil if it is none of the node's
// own or takes nothing of it.
func (v *view) card(d device) *card {
	if d.AdminAccess != nil && *d.AdminAccess {
		return nil
	}
	return v.cardOf(d.id)
}

func (v *view) cardOf(id structured.DeviceID) *card {
	for i := range v.cards {
		if v.cards[i].id == id {
			return &v.cards[i]
		}
	}
	return nil
}

// own has what is taken of a card be this view's alone, before it changes.
func (v *view) own(c *card) {
	if !c.lent {
		return
	}
	c.lent = false
	if sum, ok := v.state.AggregatedCapacity[c.id]; ok {
		v.state.AggregatedCapacity[c.id] = sum.Clone()
	}
}

// giveBack is the inverse of take.
func (v *view) giveBack(d device) *card {
	c := v.card(d)
	if c == nil {
		return nil
	}
	if d.ShareID == nil {
		if c.whole--; c.whole == 0 {
			v.state.AllocatedDevices.Delete(c.id)
		}
		return c
	}
	v.own(c)
	for name, q := range d.ConsumedCapacity {
		if sum := v.state.AggregatedCapacity[c.id][name]; sum != nil {
			sum.Sub(q)
		}
	}
	if c.shares--; c.shares == 0 {
		v.state.AllocatedSharedDeviceIDs.Delete(oneShare(c.id))
		delete(v.state.AggregatedCapacity, c.id)
	}
	return c
}

// change follows, in what is left of a node, that devices are taken or given
// back: by a promise, or by who has them. It leaves to compute what is more than
// a matter of single cards.
func (s *State) change(n *node, devices []device, taken, promised bool) {
	if !promised && n.held != nil && !n.held.follow(n, devices, taken) {
		n.held = nil
	}
	if n.base != nil && !n.base.follow(n, devices, taken) {
		n.base = nil
	}
	s.mark(n)
}

// follow takes devices of a node, or gives them back. False means that more than
// single cards is concerned.
func (v *view) follow(n *node, devices []device, taken bool) bool {
	for _, d := range devices {
		if d.AdminAccess != nil && *d.AdminAccess || !n.has(d.key) {
			continue
		}
		var c *card
		if taken {
			c = v.take(d)
		} else {
			c = v.giveBack(d)
		}
		if c == nil {
			return false
		}
		if c.leave(&v.state); len(c.draws) > 0 {
			v.reopen(c)
		}
	}
	n.counters.shut(v)
	v.refused = nil
	v.keys = keysOf(n, v.cards)
	return true
}

// has says whether a node has slices of a pool.
func (n *node) has(key poolKey) bool {
	return slices.ContainsFunc(n.slices, func(o *resourceapi.ResourceSlice) bool {
		return o.Spec.Driver == key.driver && o.Spec.Pool.Name == key.name
	})
}

// burden follows the same for what a pod takes besides devices.
func (s *State) burden(n *node, requests corev1.ResourceList, taken, promised bool) {
	if !promised && n.held != nil {
		n.held.burden(requests, taken)
	}
	if n.base != nil {
		n.base.burden(requests, taken)
	}
	s.mark(n)
}

func (v *view) burden(requests corev1.ResourceList, taken bool) {
	if taken {
		addAll(v.used, requests)
		v.pods++
		return
	}
	for name, q := range requests {
		total := v.used[name]
		total.Sub(q)
		v.used[name] = total
	}
	v.pods--
}

func (s *State) takePool(v *view, key poolKey, without map[engine.WorkloadID]bool) {
	p := s.pools[key]
	if p == nil {
		return
	}
	for _, h := range p.taken {
		if without[h.workload] {
			continue
		}
		for i := range h.results {
			if h.results[i].key == key {
				v.take(h.results[i])
			}
		}
	}
}
