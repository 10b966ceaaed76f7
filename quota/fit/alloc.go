package fit

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// features are those that a scheduler of the supported Kubernetes versions has
// on by default; others cannot be relied on.
var features = structured.Features{
	AdminAccess:            true,
	ConsumableCapacity:     true,
	DeviceBindingAndStatus: true,
	DeviceTaints:           true,
	PartitionableDevices:   true,
	PrioritizedList:        true,
}

func newAllocated() structured.AllocatedState {
	return structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
}

// take adds one result to what is allocated. Admin access takes nothing.
func take(state *structured.AllocatedState, d device) {
	if d.AdminAccess != nil && *d.AdminAccess {
		return
	}
	if d.ShareID == nil {
		state.AllocatedDevices.Insert(d.id)
		return
	}
	// The allocator only asks whether there is any share of a device, and walks
	// them all to find out: one that stands for all is enough.
	state.AllocatedSharedDeviceIDs.Insert(oneShare(d.id))
	if d.ConsumedCapacity == nil {
		return
	}
	sum := state.AggregatedCapacity[d.id]
	if sum == nil {
		sum = structured.ConsumedCapacity{}
		state.AggregatedCapacity[d.id] = sum
	}
	for name, q := range d.ConsumedCapacity {
		if total := sum[name]; total != nil {
			total.Add(q)
		} else {
			q := q.DeepCopy()
			sum[name] = &q
		}
	}
}

func oneShare(id structured.DeviceID) structured.SharedDeviceID {
	return structured.SharedDeviceID{Driver: id.Driver, Pool: id.Pool, Device: id.Device}
}

// allocate asks the allocator for claims on one node, in a given state. It
// returns nil where there is no room, errTooMany where the search was given up,
// and another error where the claims can be served nowhere, such as a selector
// that fails. A pool of the node that is published wrongly, with two devices of
// one name say, speaks against that node alone, as it does with the scheduler. The
// search is drawn from the allowance of a workload's namespace.
func (s *State) allocate(id engine.WorkloadID, n *node, state structured.AllocatedState, claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	if len(claims) == 0 {
		return []resourceapi.AllocationResult{}, nil
	}
	state, slices := s.narrow(n, state)
	a, err := structured.NewAllocator(context.Background(), features, state, s, slices, s.cel)
	if err != nil {
		return nil, err
	}
	object := n.object
	if object == nil {
		object = &corev1.Node{}
	}
	results, err := s.search(namespaceOf(id), claims, func(ctx context.Context) ([]resourceapi.AllocationResult, error) {
		return a.Allocate(ctx, object, claims)
	})
	if errors.Is(err, structured.ErrFailedAllocationOnNode) {
		return nil, nil
	}
	return results, err
}

// available lists the slices that the allocator needs for a node: its own, those
// that belong to no single node, and the others of the same pools, without which
// a pool would look incomplete.
func (s *State) available(n *node) []*resourceapi.ResourceSlice {
	all, own := n.slices, true
	for _, slice := range n.slices {
		p := s.pools[poolKey{slice.Spec.Driver, slice.Spec.Pool.Name}]
		for _, other := range p.slices {
			if other.Spec.NodeName == nil || *other.Spec.NodeName == n.name || slices.Contains(all, other) {
				continue
			}
			if own {
				all, own = slices.Clone(all), false
			}
			all = append(all, other)
		}
	}
	if len(s.shared) > 0 {
		all = slices.Concat(all, s.shared)
	}
	return all
}
