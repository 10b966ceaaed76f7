package fit

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

// Policy chooses among nodes that have room.
type Policy string

const (
	// BinPack takes the node with least free GPU memory, so that large holes
	// stay whole. It is the default ("").
	BinPack Policy = "binpack"
	// Spread takes the node with most free GPU memory.
	Spread Policy = "spread"
)

// State is what is known of nodes, devices and who holds them.
type State struct {
	policy  Policy
	cel     *cel.Cache
	classes pricing.ClassMap

	nodes  map[string]*node
	slices map[string]*resourceapi.ResourceSlice
	// shared are the slices that belong to no single node.
	shared []*resourceapi.ResourceSlice
	// taken are the devices that allocated claims hold, by pool.
	taken map[poolKey]map[types.UID]*holding
	// claims finds what a claim holds.
	claims map[types.UID]*holding
	pods   map[types.UID]*podOnNode

	flavors   map[engine.FlavorName]Flavor
	workloads map[engine.WorkloadID]*workload

	searching searching
}

type poolKey struct{ driver, pool string }

// holding is the devices of one allocated claim.
type holding struct {
	claim    types.UID
	workload engine.WorkloadID
	results  []resourceapi.DeviceRequestAllocationResult
}

// Flavor is where the pods of a flavor may run.
type Flavor struct {
	NodeLabels  map[string]string
	Tolerations []corev1.Toleration
}

// PodSet is what the pods of one set of a workload need.
type PodSet struct {
	Name string
	// Spec is the pod as the user wrote it: flavors add to it.
	Spec corev1.PodSpec
	// Claims are made for each pod of its own.
	Claims []resourceapi.ResourceClaimSpec
	// Shared are claims by name that all pods of the set use together. Those that
	// are allocated bind the pods to where they are.
	Shared []*resourceapi.ResourceClaim
}

type workload struct {
	sets []PodSet
	// slots are the places promised to it.
	slots []*slot
}

// New makes an empty state.
func New(policy Policy) *State {
	return &State{
		policy:    policy,
		cel:       cel.NewCache(256, cel.Features{EnableConsumableCapacity: true}),
		classes:   pricing.ClassMap{},
		nodes:     map[string]*node{},
		slices:    map[string]*resourceapi.ResourceSlice{},
		taken:     map[poolKey]map[types.UID]*holding{},
		claims:    map[types.UID]*holding{},
		pods:      map[types.UID]*podOnNode{},
		flavors:   map[engine.FlavorName]Flavor{},
		workloads: map[engine.WorkloadID]*workload{},
		searching: searching{now: time.Now, tenants: map[string]*allowance{}},
	}
}

// SetNode adds or changes a node.
func (s *State) SetNode(n *corev1.Node) {
	known := s.node(n.Name)
	known.object = n
}

// RemoveNode forgets a node. Its slices and pods are forgotten on their own.
func (s *State) RemoveNode(name string) {
	if n := s.nodes[name]; n != nil {
		n.object = nil
		s.tidy(n)
	}
}

// node finds or makes the entry of a node, which may be known by its slices
// or pods before it is known itself.
func (s *State) node(name string) *node {
	n := s.nodes[name]
	if n == nil {
		n = &node{name: name, pods: map[types.UID]*podOnNode{}}
		s.nodes[name] = n
	}
	return n
}

func (s *State) tidy(n *node) {
	if n.object == nil && len(n.slices) == 0 && len(n.pods) == 0 {
		delete(s.nodes, n.name)
	}
}

// SetSlice adds or changes a ResourceSlice of any driver.
func (s *State) SetSlice(slice *resourceapi.ResourceSlice) {
	if old := s.slices[slice.Name]; old != nil {
		s.unlist(old)
	}
	s.slices[slice.Name] = slice
	if slice.Spec.NodeName != nil {
		n := s.node(*slice.Spec.NodeName)
		n.slices = append(n.slices, slice)
		slices.SortFunc(n.slices, bySliceName)
		return
	}
	s.shared = append(s.shared, slice)
	slices.SortFunc(s.shared, bySliceName)
}

func bySliceName(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) }

// RemoveSlice forgets a ResourceSlice.
func (s *State) RemoveSlice(name string) {
	if old := s.slices[name]; old != nil {
		s.unlist(old)
		delete(s.slices, name)
	}
}

func (s *State) unlist(slice *resourceapi.ResourceSlice) {
	same := func(o *resourceapi.ResourceSlice) bool { return o.Name == slice.Name }
	if slice.Spec.NodeName == nil {
		s.shared = slices.DeleteFunc(s.shared, same)
		return
	}
	if n := s.nodes[*slice.Spec.NodeName]; n != nil {
		n.slices = slices.DeleteFunc(n.slices, same)
		s.tidy(n)
	}
}

// SetClass adds or changes a DeviceClass.
func (s *State) SetClass(c *resourceapi.DeviceClass) { s.classes[c.Name] = c }

// RemoveClass forgets a DeviceClass.
func (s *State) RemoveClass(name string) { delete(s.classes, name) }

// Classes are the known DeviceClasses.
func (s *State) Classes() pricing.ClassMap { return s.classes }

// List implements the allocator's DeviceClassLister.
func (s *State) List() ([]*resourceapi.DeviceClass, error) {
	all := make([]*resourceapi.DeviceClass, 0, len(s.classes))
	for _, c := range s.classes {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *resourceapi.DeviceClass) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// Get implements the allocator's DeviceClassLister.
func (s *State) Get(name string) (*resourceapi.DeviceClass, error) {
	if c := s.classes[name]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("DeviceClass %q does not exist", name)
}

// SetClaim tells what a claim holds, and the workload that is charged for it
// ("" for claims older than the budget).
func (s *State) SetClaim(c *resourceapi.ResourceClaim, charged engine.WorkloadID) {
	s.RemoveClaim(c.UID)
	if c.Status.Allocation == nil {
		return
	}
	h := &holding{claim: c.UID, workload: charged, results: c.Status.Allocation.Devices.Results}
	s.claims[c.UID] = h
	for i := range h.results {
		key := poolKey{h.results[i].Driver, h.results[i].Pool}
		if s.taken[key] == nil {
			s.taken[key] = map[types.UID]*holding{}
		}
		s.taken[key][c.UID] = h
	}
}

// RemoveClaim says that a claim holds nothing any more.
func (s *State) RemoveClaim(uid types.UID) {
	h := s.claims[uid]
	if h == nil {
		return
	}
	delete(s.claims, uid)
	for i := range h.results {
		key := poolKey{h.results[i].Driver, h.results[i].Pool}
		delete(s.taken[key], uid)
		if len(s.taken[key]) == 0 {
			delete(s.taken, key)
		}
	}
}

// SetFlavor adds or changes a flavor.
func (s *State) SetFlavor(name engine.FlavorName, f Flavor) { s.flavors[name] = f }

// RemoveFlavor forgets a flavor.
func (s *State) RemoveFlavor(name engine.FlavorName) { delete(s.flavors, name) }

// SetWorkload tells what the pods of a workload need; its reservations stay.
func (s *State) SetWorkload(id engine.WorkloadID, sets []PodSet) {
	w := s.workloads[id]
	if w == nil {
		w = &workload{}
		s.workloads[id] = w
	}
	w.sets = sets
}

// RemoveWorkload forgets a workload and what was reserved for it.
func (s *State) RemoveWorkload(id engine.WorkloadID) { delete(s.workloads, id) }

// allocated collects the state of the devices that a node can use, as the
// allocator wants it: what claims hold and what is reserved, without the
// workloads that are left out of account.
func (s *State) allocated(n *node, t *trial) structured.AllocatedState {
	state := newAllocated()
	seen := map[poolKey]bool{}
	for _, list := range [][]*resourceapi.ResourceSlice{n.slices, s.shared} {
		for _, slice := range list {
			key := poolKey{slice.Spec.Driver, slice.Spec.Pool.Name}
			if seen[key] {
				continue
			}
			seen[key] = true
			for _, h := range s.taken[key] {
				if t.without[h.workload] {
					continue
				}
				for i := range h.results {
					if r := &h.results[i]; (poolKey{r.Driver, r.Pool}) == key {
						take(&state, r)
					}
				}
			}
		}
	}
	for _, sl := range t.slots {
		for i := range sl.results {
			for j := range sl.results[i].Devices.Results {
				if r := &sl.results[i].Devices.Results[j]; seen[poolKey{r.Driver, r.Pool}] {
					take(&state, r)
				}
			}
		}
	}
	return state
}
