package slicing

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sluice-gpu/sluice/driver/config"
)

// The scheduler takes the first device that fits, so the order in which cards
// are published places claims inside a node. PCI order packs: it never changes,
// and one card fills before the next is opened. A group can have its cards
// spread instead: then those come first that hold least. Cards of other groups
// keep their places, and those that are spread share theirs.
//
// It is an order of devices within one ResourceSlice. In which order the
// scheduler looks at the slices of a pool is promised nowhere, so a node with
// several has nothing to spread by.

// Holding is what the prepared shares of a card hold.
type Holding struct {
	MemoryMi int64
	Shares   int
}

// Spreads tells that the place of some cards depends on what they hold.
func (p *Plan) Spreads() bool {
	return slices.ContainsFunc(p.Cards, func(c Card) bool { return c.Spread })
}

// Spread is the order in which the cards that are spread should be published,
// by device name: least memory held first, then fewest shares, then PCI order.
// held lacks cards that hold nothing. present is the order in which they are
// published now; changed tells that it is another one.
func (p *Plan) Spread(held map[string]Holding, present []string) (next []string, changed bool) {
	present = p.settled(present)
	next = p.settled(nil)
	slices.SortStableFunc(next, func(a, b string) int {
		x, y := held[a], held[b]
		return cmp.Or(cmp.Compare(x.MemoryMi, y.MemoryMi), cmp.Compare(x.Shares, y.Shares))
	})
	return next, !slices.Equal(next, present)
}

// Arrange has the cards that are spread published in the given order. Cards that
// it does not name follow in PCI order, and names of other devices mean nothing.
func (p *Plan) Arrange(order []string) { p.order = p.settled(order) }

// settled makes an order one of all cards that are spread, and of no others.
func (p *Plan) settled(order []string) []string {
	var out []string
	add := func(device string) {
		if i, ok := p.byDevice[device]; ok && p.Cards[i].Spread && !slices.Contains(out, device) {
			out = append(out, device)
		}
	}
	for _, device := range order {
		add(device)
	}
	for _, c := range p.Cards {
		add(c.Device)
	}
	return out
}

// published are the cards in the order of their devices.
func (p *Plan) published() []Card {
	if len(p.order) == 0 {
		return p.Cards
	}
	out := slices.Clone(p.Cards)
	next := 0
	for i := range out {
		if out[i].Spread {
			out[i] = p.Cards[p.byDevice[p.order[next]]]
			next++
		}
	}
	return out
}

// checkOrder gives up to spread where the pool is several slices. Such cards
// are published with the reason.
func (p *Plan) checkOrder() error {
	if !p.Spreads() {
		return nil
	}
	pool := p.Slices()
	if len(pool) == 1 {
		return nil
	}
	e := &OrderError{Slices: len(pool)}
	for _, s := range pool {
		e.Devices += len(s.Devices)
	}
	for i := range p.Cards {
		c := &p.Cards[i]
		if !c.Spread {
			continue
		}
		e.Group = cmp.Or(e.Group, c.Group)
		c.Spread = false
		if c.Unfit == nil {
			c.Unfit = misconfigured(e)
		}
	}
	return e
}

// OrderError says that a group spreads claims over cards of a node whose
// devices take more than one ResourceSlice.
type OrderError struct {
	Group           string
	Devices, Slices int
}

func (e *OrderError) Where() (group, field string) { return e.Group, "order" }

func (e *OrderError) Error() string {
	return fmt.Sprintf("node group %q asks for order: %s, and the %d devices of the node take %d ResourceSlices (%d devices in one, counters of MIG devices in others): the scheduler keeps to the order of devices within a slice, and across slices none is promised; say order: %s",
		e.Group, config.Spread, e.Devices, e.Slices, maxDevices, config.Pack)
}
