package slicing

import (
	"fmt"

	"github.com/sluice-gpu/sluice/driver/config"
)

// Misfit is an error that says that the configuration does not add up on the
// cards of this node. It is the configuration that has to change.
type Misfit interface {
	error
	// Where names the node group, and its field as the file has it.
	Where() (group, field string)
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

func (e *SizeError) Where() (group, field string) {
	if e.LargestMi < config.MinShareMi {
		return e.Group, "slices"
	}
	return e.Group, "memory"
}

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

func (e *DefaultError) Where() (group, field string) { return e.Group, "defaultMemory" }

func (e *DefaultError) Error() string {
	return fmt.Sprintf("node group %q gives %dMi to claims that name no memory, card %s (%s) has %dMi: the largest is defaultMemory: %dMi",
		e.Group, e.DefaultMi, e.Device, e.Product, e.LargestMi, e.LargestMi)
}

// SelectorError says that a group's expression fails on a card.
type SelectorError struct {
	Group  string
	Device string
	Cause  error
}

func (e *SelectorError) Where() (group, field string) { return e.Group, "deviceSelector.cel" }

func (e *SelectorError) Error() string {
	return fmt.Sprintf("the expression of node group %q fails on card %s: %v; it may read what all cards are published with, see the table of attributes in docs/user/devices.md",
		e.Group, e.Device, e.Cause)
}

func (e *SelectorError) Unwrap() error { return e.Cause }
