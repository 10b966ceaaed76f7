package slicing

import (
	"fmt"

	"github.com/sluice-gpu/sluice/driver/config"
)

// cut sizes the card by its group. One share takes what the card has less the
// reserve, at most; all of them together take that times the oversubscription.
func (c *Card) cut(group config.NodeGroup) error {
	usable := c.UsableMi() - group.ReserveMi()
	c.LargestMi = max(usable, 0)
	c.MemoryMi = c.LargestMi * group.Factor() / 1000
	c.Oversubscribed = group.Factor() > 1000
	c.DefaultMi = c.LargestMi
	switch {
	case usable < config.MinShareMi:
		c.Unfit = &Unfit{Key: "no-memory", Reason: fmt.Sprintf("the driver reports %dMi of usable memory", c.UsableMi())}
		if group.ReserveMi() > 0 {
			c.Unfit.Reason += fmt.Sprintf(" and %dMi are kept back", group.ReserveMi())
		}
		return nil
	case c.Fault != "":
		c.Unfit = &Unfit{Key: "faulty", Reason: c.Fault + "; it is offered again when the NVIDIA driver was loaded anew"}
	case c.MIG:
		c.Unfit = &Unfit{Key: "mig-mode", Reason: "the card is in MIG mode, in which it cannot be shared as a whole"}
	case group.Mode == config.MIG:
		c.Unfit = &Unfit{Key: "mig-mode", Reason: "the node group offers MIG instances and the card is not in MIG mode"}
	}
	switch group.Mode {
	case config.Whole:
		c.SliceMi = c.LargestMi
		return nil
	case config.Fixed:
		return c.cutFixed(group)
	}
	if d := group.DefaultMemoryMi(); d > 0 {
		if d > c.LargestMi {
			return &DefaultError{Group: group.Name, DefaultMi: d, Device: c.Device, Product: c.ProductName, LargestMi: c.LargestMi}
		}
		c.DefaultMi = d
	}
	return nil
}

func (c *Card) cutFixed(group config.NodeGroup) error {
	largest := min(c.MemoryMi/group.Slices, c.LargestMi)
	c.SliceMi = group.SliceMi()
	if c.SliceMi == 0 {
		c.SliceMi = largest
	}
	if c.SliceMi > largest || c.SliceMi < config.MinShareMi {
		return &SizeError{
			Group: group.Name, Slices: group.Slices, SliceMi: c.SliceMi,
			Device: c.Device, Product: c.ProductName, UsableMi: c.MemoryMi, LargestMi: largest,
		}
	}
	c.LargestMi, c.DefaultMi = c.SliceMi, c.SliceMi
	c.MemoryMi = c.SliceMi * group.Slices
	return nil
}

// Misfit is an error that says that a node group does not add up on the cards
// of this node.
type Misfit interface {
	error
	// NodeGroup is the group's name.
	NodeGroup() string
}

// SizeError says that a fixed group asks more of a card than it has.
type SizeError struct {
	Group   string
	Slices  int64
	SliceMi int64
	Device  string
	Product string
	// UsableMi is what may be given out in all, LargestMi the largest slice.
	UsableMi, LargestMi int64
}

func (e *SizeError) NodeGroup() string { return e.Group }

func (e *SizeError) Error() string {
	if e.LargestMi < config.MinShareMi {
		return fmt.Sprintf("node group %q asks for %d slices of card %s (%s), which has %dMi usable: %d slices of at least %dMi are the most that fit",
			e.Group, e.Slices, e.Device, e.Product, e.UsableMi, e.UsableMi/config.MinShareMi, config.MinShareMi)
	}
	return fmt.Sprintf("node group %q asks for %d slices of %dMi, card %s (%s) has %dMi usable: the largest is memory: %dMi, or say memory: auto",
		e.Group, e.Slices, e.SliceMi, e.Device, e.Product, e.UsableMi, e.LargestMi)
}

// DefaultError says that a group's default is more than a card has.
type DefaultError struct {
	Group     string
	DefaultMi int64
	Device    string
	Product   string
	LargestMi int64
}

func (e *DefaultError) NodeGroup() string { return e.Group }

func (e *DefaultError) Error() string {
	return fmt.Sprintf("node group %q gives %dMi to claims that name no memory, card %s (%s) has %dMi: the largest is defaultMemory: %dMi",
		e.Group, e.DefaultMi, e.Device, e.Product, e.LargestMi, e.LargestMi)
}
