package fit

import (
	"context"

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
func take(state *structured.AllocatedState, r *resourceapi.DeviceRequestAllocationResult) {
	if r.AdminAccess != nil && *r.AdminAccess {
		return
	}
	id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
	if r.ShareID == nil {
		state.AllocatedDevices.Insert(id)
		return
	}
	state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
	if r.ConsumedCapacity != nil {
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
	}
}

// allocate asks the allocator for claims on one node, in a given state. It
// returns nil where there is no room, errTooMany where the search was given up,
// and another error where the claims can be served nowhere, such as a selector
// that fails. The search is drawn from the allowance of a workload's namespace.
func (s *State) allocate(id engine.WorkloadID, n *node, state structured.AllocatedState, claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	if len(claims) == 0 {
		return []resourceapi.AllocationResult{}, nil
	}
	available := n.slices
	if len(s.shared) > 0 {
		available = append(append([]*resourceapi.ResourceSlice{}, n.slices...), s.shared...)
	}
	a, err := structured.NewAllocator(context.Background(), features, state, s, available, s.cel)
	if err != nil {
		return nil, err
	}
	object := n.object
	if object == nil {
		object = &corev1.Node{}
	}
	return s.search(namespaceOf(id), claims, func(ctx context.Context) ([]resourceapi.AllocationResult, error) {
		return a.Allocate(ctx, object, claims)
	})
}
