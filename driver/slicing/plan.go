// Package slicing decides what a node offers: cards and policy in, devices
// out. It is pure. Same cards, labels and configuration give the same
// devices, byte for byte, in whatever order the cards come; the kubelet
// plugin relies on that to write ResourceSlices only when something changed.
//
// One card becomes one shareable device with two capacities, memory and
// cores. A device's place in the list is the allocator's preference: it
// takes the first that fits, so PCI order fills one card before it opens the
// next.
package slicing

import (
	"path"

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
	// Unfit says why nothing may be placed on the card, empty if all is well.
	Unfit *Unfit
}

// Unfit is published as a taint: the card stays visible, with the reason, and
// nothing is scheduled to it.
type Unfit struct {
	// Key is the taint's key below the driver's domain.
	Key string
	// Reason is one sentence for people.
	Reason string
	// Busy tells that nothing is wrong with the card: somebody else has it.
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
	Unwanted []gpu.GPU

	byDevice map[string]int
}

// Card finds an offered card by device name.
func (p *Plan) Card(device string) (Card, bool) {
	i, ok := p.byDevice[device]
	if !ok {
		return Card{}, false
	}
	return p.Cards[i], true
}

// Occupy marks a card as somebody else's. Reasons that lie in the card itself
// come first.
func (p *Plan) Occupy(device, key, reason string) {
	if i, ok := p.byDevice[device]; ok && p.Cards[i].Unfit == nil {
		p.Cards[i].Unfit = &Unfit{Key: key, Reason: reason, Busy: true}
	}
}

// Make applies the configuration to the cards of a node with the given
// labels. It fails when a group's slices do not fit on a card it selects;
// the error names the largest size that does.
func Make(gpus []gpu.GPU, nodeLabels map[string]string, cfg *config.DriverConfiguration) (*Plan, error) {
	gpus = append([]gpu.GPU(nil), gpus...)
	gpu.SortByPCI(gpus)
	names := deviceNames(gpus)

	p := &Plan{byDevice: map[string]int{}}
	for i, g := range gpus {
		group, ok := groupOf(g, nodeLabels, cfg)
		if !ok {
			p.Unwanted = append(p.Unwanted, g)
			continue
		}
		c := Card{
			GPU: g, Device: names[i], Position: i,
			Group: group.Name, DefaultCores: group.Cores, CorePolicy: group.CorePolicy, Enforcement: group.Enforcement,
		}
		if err := c.cut(group); err != nil {
			return nil, err
		}
		p.byDevice[c.Device] = len(p.Cards)
		p.Cards = append(p.Cards, c)
	}
	return p, nil
}

// groupOf returns the first group that selects the card.
func groupOf(g gpu.GPU, nodeLabels map[string]string, cfg *config.DriverConfiguration) (config.NodeGroup, bool) {
	for _, group := range cfg.NodeGroups {
		if matchesLabels(group.NodeSelector, nodeLabels) && matchesDevice(group.DeviceSelector, g) {
			return group, true
		}
	}
	return config.NodeGroup{}, false
}

func matchesLabels(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

func matchesDevice(s *config.DeviceSelector, g gpu.GPU) bool {
	if s == nil {
		return true
	}
	ok, err := path.Match(s.Product, g.ProductName)
	return err == nil && ok
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
