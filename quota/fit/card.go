package fit

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/sluice-gpu/sluice/quota/pricing"
)

// card is one device of a node and what is left of it, in plain numbers: enough
// to see at once that a request cannot be served. Whether it can, the allocator
// says.
type card struct {
	device *resourceapi.Device
	key    poolKey
	id     structured.DeviceID
	// shareable devices may be taken in parts.
	shareable bool
	// tainted devices take only requests that tolerate it.
	tainted bool
	// memory and cores are all of it, -1 where the device has no such capacity;
	// usual is what a request takes that names none.
	memory, cores           int64
	usualMemory, usualCores int64

	// draws are what it takes of counters.
	draws []draw

	// shares and whole count those who have a part of it, or all.
	shares, whole int
	// open says that something may still be taken of it, freeMemory and freeCores
	// how much, touched that somebody has some of it.
	open                  bool
	touched               bool
	freeMemory, freeCores int64
	// over says that more is taken than there is: a promise was overtaken.
	over bool
	// lent says that another view shares what is taken of it.
	lent bool
}

// cardsOf lists the devices that a node offers by itself, in the order in which
// the allocator tries them: by pool, then by slice. Of each pool only the newest
// generation counts.
func cardsOf(own []*resourceapi.ResourceSlice) []card {
	newest := map[poolKey]int64{}
	for _, slice := range own {
		key := poolKey{slice.Spec.Driver, slice.Spec.Pool.Name}
		newest[key] = max(newest[key], slice.Spec.Pool.Generation)
	}
	var cards []card
	for _, slice := range own {
		key := poolKey{slice.Spec.Driver, slice.Spec.Pool.Name}
		if slice.Spec.Pool.Generation != newest[key] {
			continue
		}
		for i := range slice.Spec.Devices {
			cards = append(cards, cardOf(key, &slice.Spec.Devices[i]))
		}
	}
	slices.SortStableFunc(cards, func(a, b card) int {
		return cmp.Or(cmp.Compare(a.key.driver, b.key.driver), cmp.Compare(a.key.name, b.key.name))
	})
	return cards
}

func cardOf(key poolKey, d *resourceapi.Device) card {
	c := card{
		device: d, key: key, id: structured.MakeDeviceID(key.driver, key.name, d.Name),
		shareable: d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations,
	}
	for i := range d.Taints {
		switch d.Taints[i].Effect {
		case resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute:
			c.tainted = true
		}
	}
	c.memory, c.usualMemory = capacityOf(d, pricing.CapacityMemory)
	c.cores, c.usualCores = capacityOf(d, pricing.CapacityCores)
	return c
}

// capacityOf is a capacity of a device, -1 if it has none, and what a request
// consumes of it that does not name it.
func capacityOf(d *resourceapi.Device, name resourceapi.QualifiedName) (all, usual int64) {
	c, ok := d.Capacity[name]
	if !ok {
		return -1, 0
	}
	all = c.Value.Value()
	if c.RequestPolicy != nil && c.RequestPolicy.Default != nil {
		return all, c.RequestPolicy.Default.Value()
	}
	return all, all
}

// leave says what is left of a card.
func (c *card) leave(state *structured.AllocatedState) {
	used, some := state.AggregatedCapacity[c.id]
	c.touched = some || c.whole > 0 || c.shares > 0
	c.open = c.whole == 0 && (c.shareable || !c.touched)
	c.freeMemory, c.freeCores = 0, 0
	c.over = c.whole > 1 || c.whole > 0 && c.shares > 0
	for name, sum := range used {
		if all, ok := c.device.Capacity[name]; ok && sum.Cmp(all.Value) > 0 {
			c.over = true
		}
	}
	if c.open {
		c.freeMemory = left(c.device, pricing.CapacityMemory, used)
		c.freeCores = left(c.device, pricing.CapacityCores, used)
	}
}

// left is rounded up: a card is never thought to have less than it has.
func left(d *resourceapi.Device, name resourceapi.QualifiedName, used structured.ConsumedCapacity) int64 {
	c, ok := d.Capacity[name]
	if !ok {
		return 0
	}
	u := used[name]
	if u == nil {
		return c.Value.Value()
	}
	rest := c.Value.DeepCopy()
	rest.Sub(*u)
	return max(0, rest.Value())
}

// draw is what a card takes of one of its node's counters as soon as somebody has
// any of it.
type draw struct {
	counter int
	much    int64
}

// tally is the counters that a node's cards draw from, as if nobody had any.
// Amounts that are no whole numbers are rounded so that a card is never thought to
// have less than it has; exact says that there are none.
type tally struct {
	all []int64
	// sets says of each in which set it is.
	sets  []counterSet
	exact bool
}

// counterSet is a set of counters of a pool.
type counterSet struct {
	pool poolKey
	name string
}

// tallyOf numbers the counters of a node's own slices and says what each of its
// cards draws from them.
func tallyOf(cards []card, own []*resourceapi.ResourceSlice) tally {
	t := tally{exact: true}
	var totals map[counter]resource.Quantity
	places := map[counter]int{}
	for i := range cards {
		c := &cards[i]
		if c.draws = nil; len(c.device.ConsumesCounters) == 0 {
			continue
		}
		if totals == nil {
			totals = counters(own)
		}
		for name, much := range consumption(c) {
			total, ok := totals[name]
			if !ok {
				t.exact = false
				continue
			}
			place, known := places[name]
			if !known {
				place = len(t.all)
				n, whole := total.AsInt64()
				if !whole {
					n, t.exact = total.Value(), false
				}
				places[name], t.all, t.sets = place, append(t.all, n), append(t.sets, counterSet{name.pool, name.set})
			}
			n, whole := much.AsInt64()
			if !whole {
				n, t.exact = max(0, much.Value()-1), false
			}
			c.draws = append(c.draws, draw{place, n})
		}
	}
	return t
}

// left is what is left of the counters. A card of which somebody has a share has
// paid already.
func (t tally) left(cards []card) []int64 {
	left := slices.Clone(t.all)
	for i := range cards {
		if cards[i].touched {
			for _, d := range cards[i].draws {
				left[d.counter] -= d.much
			}
		}
	}
	return left
}

// shut closes the cards of which nothing is left because the counters are used up.
func (t tally) shut(v *view) {
	if len(t.all) == 0 {
		return
	}
	left := t.left(v.cards)
	for i := range v.cards {
		c := &v.cards[i]
		for _, d := range c.draws {
			switch {
			case c.touched && left[d.counter] < 0:
				c.over = true
			case !c.touched && left[d.counter] < d.much:
				c.open, c.freeMemory, c.freeCores = false, 0, 0
			}
		}
	}
}

// reopen looks anew at the cards that draw from the same counters as one that has
// changed, before shut.
func (v *view) reopen(changed *card) {
	for i := range v.cards {
		c := &v.cards[i]
		if slices.ContainsFunc(c.draws, func(d draw) bool {
			return slices.ContainsFunc(changed.draws, func(o draw) bool { return o.counter == d.counter })
		}) {
			c.leave(&v.state)
		}
	}
}

type counter struct {
	pool      poolKey
	set, name string
}

// counters are those of the pools' newest generations, unused.
func counters(own []*resourceapi.ResourceSlice) map[counter]resource.Quantity {
	newest := map[poolKey]int64{}
	for _, slice := range own {
		key := poolKey{slice.Spec.Driver, slice.Spec.Pool.Name}
		newest[key] = max(newest[key], slice.Spec.Pool.Generation)
	}
	all := map[counter]resource.Quantity{}
	for _, slice := range own {
		key := poolKey{slice.Spec.Driver, slice.Spec.Pool.Name}
		if slice.Spec.Pool.Generation != newest[key] {
			continue
		}
		for i := range slice.Spec.SharedCounters {
			set := &slice.Spec.SharedCounters[i]
			for name, c := range set.Counters {
				all[counter{key, set.Name, name}] = c.Value.DeepCopy()
			}
		}
	}
	return all
}

func consumption(c *card) map[counter]resource.Quantity {
	all := map[counter]resource.Quantity{}
	for i := range c.device.ConsumesCounters {
		set := &c.device.ConsumesCounters[i]
		for name, n := range set.Counters {
			all[counter{c.key, set.CounterSet, name}] = n.Value
		}
	}
	return all
}
