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

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

// State is what is known of nodes, devices and who holds them.
type State struct {
	policy  Policy
	cel     *cel.Cache
	classes pricing.ClassMap

	nodes  map[string]*node
	slices map[string]*resourceapi.ResourceSlice
	rules  map[string]*resourceapi.DeviceTaintRule
	// pools are all slices of a pool and the nodes that can use it, shared the
	// slices that belong to no single node.
	pools  map[poolKey]*pool
	shared []*resourceapi.ResourceSlice
	// claims finds what a claim holds, pods what a bound pod takes.
	claims map[types.UID]*holding
	pods   map[types.UID]*podOnNode
	// roaming are the slots with devices of pools that belong to no single node.
	roaming map[*slot]struct{}
	// lost are the slots whose place somebody else was given.
	lost map[*slot]struct{}
	// awaiting are the slots that others have still, keeps counts the workloads for
	// which any were kept.
	awaiting map[*slot]struct{}
	keeps    int64
	// turn is where a pod begins to look among the places of others of its set.
	turn int

	flavors   map[engine.FlavorName]Flavor
	workloads map[engine.WorkloadID]*workload
	// asked counts the memory sizes that known workloads ask for on one card.
	asked sizes

	// indexes order the nodes of each flavor; "" is all nodes. stale are the
	// nodes that changed since they were put into order.
	indexes map[engine.FlavorName]*index
	stale   []*node
	// freed says that something may fit now which did not before.
	freed bool

	searching searching
	counts    Counts
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

// workload is what is known of one workload.
type workload struct {
	policy Policy
	sets   []PodSet
	sizes  []int64
	// slots are the places promised to it.
	slots []*slot
	// kept is its rank among those for whom a place is kept, 0 while none is.
	kept int64
	// holdings and bound are what it has already.
	holdings map[types.UID]*holding
	bound    map[types.UID]*podOnNode
}

// New makes an empty state. Workloads without a policy of their own are placed
// by the one given.
func New(policy Policy) *State {
	if policy == "" {
		policy = BinPack
	}
	return &State{
		policy:    policy,
		cel:       cel.NewCache(256, cel.Features{EnableConsumableCapacity: true}),
		classes:   pricing.ClassMap{},
		nodes:     map[string]*node{},
		slices:    map[string]*resourceapi.ResourceSlice{},
		rules:     map[string]*resourceapi.DeviceTaintRule{},
		pools:     map[poolKey]*pool{},
		claims:    map[types.UID]*holding{},
		pods:      map[types.UID]*podOnNode{},
		roaming:   map[*slot]struct{}{},
		lost:      map[*slot]struct{}{},
		awaiting:  map[*slot]struct{}{},
		flavors:   map[engine.FlavorName]Flavor{},
		workloads: map[engine.WorkloadID]*workload{},
		asked:     sizes{},
		indexes:   map[engine.FlavorName]*index{"": newIndex()},
		searching: searching{now: time.Now, tenants: map[string]*allowance{}},
		counts:    Counts{Refusals: map[Cause]uint64{}},
	}
}

// Freed says whether anything was freed, added or changed since the last call
// that may give room to somebody who had none, or take a promised place away.
// What somebody only takes does not count.
func (s *State) Freed() bool {
	freed := s.freed
	s.freed = false
	return freed
}

// SetNode adds or changes a node.
func (s *State) SetNode(o *corev1.Node) {
	n := s.node(o.Name)
	n.object = o
	s.freed = true
	if n.base != nil {
		// What is left stays the same, but not who may have it.
		n.base.refused = nil
	}
	s.mark(n)
}

// RemoveNode forgets a node. Its slices and pods are forgotten on their own.
func (s *State) RemoveNode(name string) {
	if n := s.nodes[name]; n != nil {
		n.object = nil
		s.freed = true
		s.mark(n)
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
	if n.object == nil && len(n.slices) == 0 && len(n.pods) == 0 && len(n.slots) == 0 {
		s.unindex(n)
		delete(s.nodes, n.name)
	}
}

// touch says that what is left of a node is to be computed anew.
func (s *State) touch(n *node) {
	n.base, n.held, n.could = nil, nil, nil
	s.mark(n)
}

// mark says that a node may have another place in the order.
func (s *State) mark(n *node) {
	if !n.stale {
		n.stale = true
		s.stale = append(s.stale, n)
	}
}

func (s *State) touchAll() {
	for _, n := range s.nodes {
		s.touch(n)
	}
}

// SetClass adds or changes a DeviceClass.
func (s *State) SetClass(c *resourceapi.DeviceClass) {
	s.classes[c.Name] = c
	s.classesChanged()
}

// RemoveClass forgets a DeviceClass.
func (s *State) RemoveClass(name string) {
	delete(s.classes, name)
	s.classesChanged()
}

// classesChanged drops what was concluded by the classes as they were.
func (s *State) classesChanged() {
	s.freed = true
	for _, n := range s.nodes {
		n.forgetKinds()
	}
	s.touchAll()
}

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

// SetFlavor adds or changes a flavor.
func (s *State) SetFlavor(name engine.FlavorName, f Flavor) {
	s.flavors[name] = f
	s.freed = true
	s.unlistFlavor(name)
	s.indexes[name] = newIndex()
	s.indexes[name].labels = f.NodeLabels
	s.touchAll()
}

// RemoveFlavor forgets a flavor.
func (s *State) RemoveFlavor(name engine.FlavorName) {
	delete(s.flavors, name)
	s.unlistFlavor(name)
	delete(s.indexes, name)
}

func (s *State) unlistFlavor(name engine.FlavorName) {
	old := s.indexes[name]
	if old == nil {
		return
	}
	for _, n := range s.nodes {
		n.in = slices.DeleteFunc(n.in, func(ix *index) bool { return ix == old })
	}
}

// SetWorkload tells what the pods of a workload need and by which policy they
// are placed ("" for the state's own); its reservations stay.
func (s *State) SetWorkload(id engine.WorkloadID, sets []PodSet, policy Policy) {
	w := s.workload(id)
	s.asked.remove(w.sizes)
	w.sets, w.policy, w.sizes = sets, policy, w.sizes[:0]
	for i := range sets {
		w.sizes = append(w.sizes, sizesOf(&sets[i])...)
	}
	s.asked.add(w.sizes)
}

// RemoveWorkload forgets a workload and what was reserved for it.
func (s *State) RemoveWorkload(id engine.WorkloadID) {
	w := s.workloads[id]
	if w == nil {
		return
	}
	s.asked.remove(w.sizes)
	w.sets, w.sizes, w.kept = nil, nil, 0
	s.setSlots(w, nil)
	s.forget(id, w)
}

func (s *State) workload(id engine.WorkloadID) *workload {
	w := s.workloads[id]
	if w == nil {
		w = &workload{holdings: map[types.UID]*holding{}, bound: map[types.UID]*podOnNode{}}
		s.workloads[id] = w
	}
	return w
}

// forget drops an entry that says nothing any more.
func (s *State) forget(id engine.WorkloadID, w *workload) {
	if w.sets == nil && len(w.slots) == 0 && len(w.holdings) == 0 && len(w.bound) == 0 {
		delete(s.workloads, id)
	}
}

// PolicyOf is the policy by which the pods of a workload are placed.
func (s *State) PolicyOf(id engine.WorkloadID) Policy {
	if w := s.workloads[id]; w != nil {
		return s.policyOf(w)
	}
	return s.policy
}

func (s *State) policyOf(w *workload) Policy {
	if w.policy != "" {
		return w.policy
	}
	return s.policy
}

// set finds what the pods of a set need.
func (w *workload) set(name string) *PodSet {
	for i := range w.sets {
		if w.sets[i].Name == name {
			return &w.sets[i]
		}
	}
	return nil
}
