package fit

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

// hole is what is left of one shareable card.
type hole struct {
	where         string
	memory, cores int64
}

// holes lists what is left of the cards of a node, largest memory first. Cards
// that are allocated as a whole or tainted have nothing left.
func (s *State) holes(n *node, t *trial) []hole {
	state := s.allocated(n, t)
	var left []hole
	for _, slice := range n.slices {
		if slice.Spec.Driver != pricing.DriverName {
			continue
		}
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			if d.AllowMultipleAllocations == nil || !*d.AllowMultipleAllocations || len(d.Taints) > 0 {
				continue
			}
			id := structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, d.Name)
			if state.AllocatedDevices.Has(id) {
				continue
			}
			used := state.AggregatedCapacity[id]
			left = append(left, hole{
				where:  n.name + "/" + d.Name,
				memory: remaining(d, pricing.CapacityMemory, used),
				cores:  remaining(d, pricing.CapacityCores, used),
			})
		}
	}
	slices.SortStableFunc(left, func(a, b hole) int { return cmp.Compare(b.memory, a.memory) })
	return left
}

func remaining(d *resourceapi.Device, key resourceapi.QualifiedName, used structured.ConsumedCapacity) int64 {
	c, ok := d.Capacity[key]
	if !ok {
		return 0
	}
	left := c.Value.DeepCopy()
	if u := used[key]; u != nil {
		left.Sub(*u)
	}
	return max(0, left.Value())
}

func (s *State) freeMemory(n *node, t *trial) int64 {
	var sum int64
	for _, h := range s.holes(n, t) {
		sum += h.memory
	}
	return sum
}

// noRoom explains that no node takes one more pod: by the cards of the nodes
// that would accept it, or by why none would.
func (s *State) noRoom(set *PodSet, claims []*resourceapi.ResourceClaim, accepted []*node, why refusals, t *trial) *engine.NoRoom {
	if len(s.nodes) == 0 {
		return &engine.NoRoom{Reason: "there are no nodes"}
	}
	if len(accepted) == 0 {
		return &engine.NoRoom{Reason: fmt.Sprintf("no node accepts a pod of set %q (%s)", set.Name, why)}
	}
	no := &engine.NoRoom{Reason: fmt.Sprintf("no card has %s free", s.need(claims))}
	if len(why) > 0 {
		no.Reason += fmt.Sprintf(" (%s)", why)
	}
	var left []hole
	for _, n := range accepted {
		left = append(left, s.holes(n, t)...)
	}
	slices.SortStableFunc(left, func(a, b hole) int { return cmp.Compare(b.memory, a.memory) })
	for _, h := range left {
		if h.memory > 0 {
			no.Holes = append(no.Holes, engine.Hole{Where: h.where, Resource: pricing.ResourceMemory, Size: engine.Amount(h.memory)})
		}
	}
	return no
}

// need describes what the claims of one pod ask for.
func (s *State) need(claims []*resourceapi.ResourceClaim) string {
	text := ""
	for _, c := range claims {
		for i := range c.Spec.Devices.Requests {
			r := &c.Spec.Devices.Requests[i]
			if text != "" {
				text += " and "
			}
			text += describe(r)
		}
	}
	if text == "" {
		return "what the pod asks for"
	}
	return text
}

func describe(r *resourceapi.DeviceRequest) string {
	if r.Exactly == nil {
		return fmt.Sprintf("one of %d alternatives of request %q", len(r.FirstAvailable), r.Name)
	}
	text := ""
	if r.Exactly.Capacity != nil {
		if m, ok := r.Exactly.Capacity.Requests[pricing.CapacityMemory]; ok {
			text = m.String()
		}
		if c, ok := r.Exactly.Capacity.Requests[pricing.CapacityCores]; ok {
			if text != "" {
				text += " with "
			}
			text += c.String() + "% cores"
		}
	}
	if text == "" {
		text = "a share of " + r.Exactly.DeviceClassName
	}
	if n := r.Exactly.Count; n > 1 {
		text = fmt.Sprintf("%d times %s", n, text)
	}
	return text
}
