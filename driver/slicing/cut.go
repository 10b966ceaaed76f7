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
		c.Unfit = &Unfit{Key: "faulty", Reason: c.Fault + "; " + c.Clears, Dead: c.Dead}
	case c.MIG && group.Mode != config.MIG:
		c.Unfit = &Unfit{Key: "mig-mode", Reason: "the card is in MIG mode, in which it cannot be shared as a whole; a node group of mode mig offers its instances"}
	case !c.MIG && group.Mode == config.MIG:
		c.Unfit = &Unfit{Key: "mig-mode", Reason: "the node group offers MIG instances and the card is not in MIG mode; nvidia-smi -mig 1 switches it on"}
	}
	switch group.Mode {
	case config.MIG:
		if c.MIG && c.Partition != nil {
			c.partition(group)
		}
		return nil
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
