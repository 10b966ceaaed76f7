// Package slicing decides what a node offers: cards and policy in, devices
// out. It is pure. Same cards, labels and configuration give the same
// devices, byte for byte, in whatever order the cards come; the kubelet
// plugin relies on that to write ResourceSlices only when something changed.
//
// One card becomes one shareable device with two capacities, memory and
// cores, or in MIG mode a device for each instance (mig.go). A device's place
// in the list is the allocator's preference: it takes the first that fits, so
// PCI order fills one card before it opens the next; order.go has the other way.
package slicing

import (
	"cmp"
	"sync"

	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/gpu"
)

// Card is a physical card and the way it is offered.
type Card struct {
	gpu.GPU

	// Device is the name under which the card is published.
	Device string
	// Position is the card's place in PCI order on the node.
	Position int
	// Group is the name of the node group that offers it.
	Group string
	// MemoryMi is the memory that can be given out, in all. In an
	// oversubscribed group it is more than the card has.
	MemoryMi int64
	// LargestMi is the most that one share may take.
	LargestMi int64
	// SliceMi is the size of each slice in mode fixed, all of the card in mode
	// whole, 0 in mode dynamic.
	SliceMi int64
	// DefaultMi is what a claim takes that names no memory.
	DefaultMi int64
	// DefaultCores is the guarantee of a claim that names none.
	DefaultCores int64
	// CorePolicy and Enforcement are for shares that are told nothing else.
	CorePolicy  config.CorePolicy
	Enforcement config.Enforcement
	// Oversubscribed tells that shares are promised more memory than there is.
	Oversubscribed bool
	// Spread tells that the card's place in the list depends on what it holds.
	Spread bool
	// Unfit says why nothing may be placed on the card, empty if all is well.
	Unfit *Unfit
	// Instances are the devices of a card that is Partitioned.
	Instances []Instance

	partitioned bool
}

// Unfit is published as a taint: the card stays visible, with the reason, and
// nothing is scheduled to it.
type Unfit struct {
	// Key is the taint's key below the driver's domain.
	Key string
	// Reason is one sentence for people.
	Reason string
	// Dead tells that programs on the card cannot go on: pods that use it are
	// evicted, unless they tolerate it.
	Dead bool
	// Busy tells that nothing is wrong with the card: somebody else has it, or
	// the configuration is wrong.
	Busy bool
}

// Whole tells that a share of that much memory needs no limit: nobody else has
// a part of the card, and nothing of it is kept back.
func (c Card) Whole(memoryMi int64) bool {
	return !c.Oversubscribed && memoryMi >= c.UsableMi()
}

// Plan is what one node offers.
type Plan struct {
	// Cards are in PCI order.
	Cards []Card
	// Unwanted are cards that no node group selects; they are not offered.
	Unwanted []Card

	byDevice map[string]int
	order    []string // of the cards that are spread; nil: PCI order
}

// Card finds an offered card by device name. A card that is offered as MIG
// devices is none; see Instance.
func (p *Plan) Card(device string) (Card, bool) {
	i, ok := p.byDevice[device]
	if !ok || p.Cards[i].partitioned {
		return Card{}, false
	}
	return p.Cards[i], true
}

// Occupy marks a card as somebody else's. Reasons that lie in the card itself
// come first.
func (p *Plan) Occupy(device string, by Unfit) {
	if i, ok := p.byDevice[device]; ok && p.Cards[i].Unfit == nil {
		p.Cards[i].Unfit = &by
	}
}

// Make applies the configuration to the cards of a node with the given
// labels. A Misfit says that the configuration does not add up for one of them;
// there is a plan all the same, in which nothing is placed on such cards.
func Make(gpus []gpu.GPU, nodeLabels map[string]string, cfg *config.DriverConfiguration) (*Plan, error) {
	gpus = append([]gpu.GPU(nil), gpus...)
	gpu.SortByPCI(gpus)
	names := deviceNames(gpus)

	p := &Plan{byDevice: map[string]int{}}
	var misfit error
	for i, g := range gpus {
		c := Card{GPU: g, Device: names[i], Position: i}
		group, ok, err := groupOf(c, nodeLabels, cfg)
		if !ok && err == nil {
			p.Unwanted = append(p.Unwanted, c)
			continue
		}
		c.Group, c.DefaultCores, c.CorePolicy, c.Enforcement = group.Name, group.Cores, group.CorePolicy, group.Enforcement
		c.Spread = group.Order == config.Spread
		if err == nil {
			err = c.cut(group)
		}
		if err != nil {
			c.uncut(err)
			misfit = cmp.Or(misfit, err)
		}
		p.byDevice[c.Device] = len(p.Cards)
		p.Cards = append(p.Cards, c)
	}
	return p, cmp.Or(misfit, p.checkOrder())
}

// uncut is how a card is published for which the configuration does not add up.
func (c *Card) uncut(why error) {
	c.LargestMi = c.UsableMi()
	c.MemoryMi, c.DefaultMi, c.SliceMi = c.LargestMi, c.LargestMi, 0
	c.Oversubscribed = false
	if c.Unfit == nil {
		c.Unfit = misconfigured(why)
	}
}

func misconfigured(why error) *Unfit {
	return &Unfit{Key: "misconfigured", Reason: why.Error(), Busy: true}
}

// groupOf returns the first group that selects the card.
func groupOf(c Card, nodeLabels map[string]string, cfg *config.DriverConfiguration) (config.NodeGroup, bool, error) {
	device := sync.OnceValue(c.selectable)
	for _, group := range cfg.NodeGroups {
		if !matchesLabels(group.NodeSelector, nodeLabels) {
			continue
		}
		ok, err := group.DeviceSelector.Matches(c.ProductName, device)
		if err != nil {
			return group, false, &SelectorError{Group: group.Name, Device: c.Device, Cause: err}
		}
		if ok {
			return group, true, nil
		}
	}
	return config.NodeGroup{}, false, nil
}

func matchesLabels(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// deviceNames are made of the first eight digits of each UUID, never of the
// order of enumeration: a name means the same card after reboots and drains.
// Two cards of a node that agree in those digits (about one node in 10^8)
// use all 32.
func deviceNames(gpus []gpu.GPU) []string {
	count := map[string]int{}
	for _, g := range gpus {
		count[g.HexID()[:8]]++
	}
	names := make([]string, len(gpus))
	for i, g := range gpus {
		id := g.HexID()
		if count[id[:8]] == 1 {
			id = id[:8]
		}
		names[i] = "gpu-" + id
	}
	return names
}
