package fit

import (
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
)

// A place may be kept on a cut card of which a part is in use: more is drawn from the
// card's counters then than there is. Where the allocator finds that in a pool, it
// gives nothing of the whole pool, since such a thing is never the scheduler's doing.
// The scheduler, which knows nothing of places that are kept, would go on with the
// other cards of the pool, so they must not be closed for anybody.

// narrow is the slices and the state of a node as the allocator is to see them: of
// counters of which more is promised than there is, all cards that draw from them are
// closed, and no others.
func (s *State) narrow(n *node, state structured.AllocatedState) (structured.AllocatedState, []*resourceapi.ResourceSlice) {
	all := s.available(n)
	over := n.overdrawn(&state)
	if over == nil || n.counters.short(s.held(n).cards) {
		// What is in use already is too much for the scheduler as well.
		return state, all
	}
	state.AllocatedDevices = maps.Clone(state.AllocatedDevices)
	closed := map[structured.DeviceID]bool{}
	for i := range n.cards {
		c := &n.cards[i]
		if slices.ContainsFunc(c.draws, func(d draw) bool { return over.Has(n.counters.sets[d.counter]) }) {
			closed[c.id] = has(&state, c.id)
			state.AllocatedDevices.Insert(c.id)
		}
	}
	all = slices.Clone(all)
	for i, slice := range all {
		all[i] = withoutDraws(slice, over, closed)
	}
	return state, all
}

// overdrawn are the sets of a node's counters of which more is taken in a state than
// there is, nil if there are none.
func (n *node) overdrawn(state *structured.AllocatedState) sets.Set[counterSet] {
	if len(n.counters.all) == 0 || n.cards == nil {
		return nil
	}
	left := slices.Clone(n.counters.all)
	var over sets.Set[counterSet]
	for i := range n.cards {
		c := &n.cards[i]
		if len(c.draws) == 0 || !has(state, c.id) {
			continue
		}
		for _, d := range c.draws {
			if left[d.counter] -= d.much; left[d.counter] < 0 {
				if over == nil {
					over = sets.New[counterSet]()
				}
				over.Insert(n.counters.sets[d.counter])
			}
		}
	}
	return over
}

// short says that more is taken of some counter than there is.
func (t tally) short(cards []card) bool {
	return slices.ContainsFunc(t.left(cards), func(left int64) bool { return left < 0 })
}

// has says whether somebody has any of a device.
func has(state *structured.AllocatedState, id structured.DeviceID) bool {
	return state.AllocatedDevices.Has(id) || state.AllocatedSharedDeviceIDs.Has(oneShare(id))
}

// withoutDraws is a slice in which devices that are closed draw nothing from some
// sets, and nothing at all if nobody has any of them.
func withoutDraws(slice *resourceapi.ResourceSlice, over sets.Set[counterSet], closed map[structured.DeviceID]bool) *resourceapi.ResourceSlice {
	key := poolKey{slice.Spec.Driver, slice.Spec.Pool.Name}
	changed := slice
	for i := range slice.Spec.Devices {
		taken, is := closed[structured.MakeDeviceID(key.driver, key.name, slice.Spec.Devices[i].Name)]
		if !is {
			continue
		}
		if changed == slice {
			own := *slice
			own.Spec.Devices = slices.Clone(slice.Spec.Devices)
			changed = &own
		}
		d := &changed.Spec.Devices[i]
		if !taken {
			d.ConsumesCounters = nil
			continue
		}
		d.ConsumesCounters = slices.DeleteFunc(slices.Clone(d.ConsumesCounters), func(c resourceapi.DeviceCounterConsumption) bool {
			return over.Has(counterSet{key, c.CounterSet})
		})
	}
	return changed
}
