package fit

import (
	"cmp"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/sluice-gpu/sluice/quota/engine"
)

type poolKey struct{ driver, name string }

// pool is the slices of a pool and the claims that hold devices of it.
type pool struct {
	key    poolKey
	slices []*resourceapi.ResourceSlice
	// nodes have slices of it of their own; open counts its slices that belong to
	// no single node, whose devices any node may use.
	nodes map[*node]int
	open  int
	taken map[types.UID]*holding
}

// holding is the devices of one allocated claim.
type holding struct {
	claim    types.UID
	workload engine.WorkloadID
	results  []device
}

// device is one result of an allocation.
type device struct {
	key poolKey
	id  structured.DeviceID
	*resourceapi.DeviceRequestAllocationResult
}

func devicesOf(results []resourceapi.DeviceRequestAllocationResult) []device {
	all := make([]device, len(results))
	for i := range results {
		r := &results[i]
		all[i] = device{poolKey{r.Driver, r.Pool}, structured.MakeDeviceID(r.Driver, r.Pool, r.Device), r}
	}
	return all
}

// devicesOfAll are those of several claims.
func devicesOfAll(results []resourceapi.AllocationResult) []device {
	var all []device
	for i := range results {
		all = append(all, devicesOf(results[i].Devices.Results)...)
	}
	return all
}

func (s *State) pool(key poolKey) *pool {
	p := s.pools[key]
	if p == nil {
		p = &pool{key: key, nodes: map[*node]int{}, taken: map[types.UID]*holding{}}
		s.pools[key] = p
	}
	return p
}

func (s *State) tidyPool(p *pool) {
	if len(p.slices) == 0 && len(p.taken) == 0 {
		delete(s.pools, p.key)
	}
}

// touchPool touches all nodes that can use a pool.
func (s *State) touchPool(key poolKey) {
	p := s.pools[key]
	if p == nil {
		return
	}
	if p.open > 0 {
		s.touchAll()
		return
	}
	for n := range p.nodes {
		s.touch(n)
	}
}

// SetSlice adds or changes a ResourceSlice of any driver.
func (s *State) SetSlice(slice *resourceapi.ResourceSlice) {
	s.setSlice(slice, s.tainted(slice))
}

func (s *State) setSlice(slice, tainted *resourceapi.ResourceSlice) {
	if old := s.listed(slice.Name); old != nil && s.exchange(old, tainted) {
		s.slices[slice.Name] = slice
		return
	}
	s.unlist(slice.Name)
	s.slices[slice.Name] = slice
	s.list(tainted)
	s.freed = true
}

// listed is a known slice with the taints that are on it now.
func (s *State) listed(name string) *resourceapi.ResourceSlice {
	slice := s.slices[name]
	if slice == nil {
		return nil
	}
	all := s.pools[poolKey{slice.Spec.Driver, slice.Spec.Pool.Name}].slices
	if i, ok := slices.BinarySearchFunc(all, name, func(a *resourceapi.ResourceSlice, name string) int { return cmp.Compare(a.Name, name) }); ok {
		return all[i]
	}
	return nil
}

// RemoveSlice forgets a ResourceSlice.
func (s *State) RemoveSlice(name string) {
	s.unlist(name)
	delete(s.slices, name)
	s.freed = true
}

// list puts a slice, with the taints of rules on it, where its devices are looked
// for.
func (s *State) list(slice *resourceapi.ResourceSlice) {
	p := s.pool(poolKey{slice.Spec.Driver, slice.Spec.Pool.Name})
	p.slices = insert(p.slices, slice)
	if slice.Spec.NodeName != nil {
		n := s.node(*slice.Spec.NodeName)
		n.slices, n.cards = insert(n.slices, slice), nil
		p.nodes[n]++
	} else {
		s.shared = insert(s.shared, slice)
		p.open++
		s.reroam()
	}
	s.touchPool(p.key)
}

func (s *State) unlist(name string) {
	old := s.slices[name]
	if old == nil {
		return
	}
	same := func(o *resourceapi.ResourceSlice) bool { return o.Name == name }
	p := s.pool(poolKey{old.Spec.Driver, old.Spec.Pool.Name})
	s.touchPool(p.key)
	p.slices = slices.DeleteFunc(p.slices, same)
	if old.Spec.NodeName == nil {
		s.shared = slices.DeleteFunc(s.shared, same)
		p.open--
		s.reroam()
	} else if n := s.nodes[*old.Spec.NodeName]; n != nil {
		n.slices, n.cards = slices.DeleteFunc(n.slices, same), nil
		if p.nodes[n]--; p.nodes[n] == 0 {
			delete(p.nodes, n)
		}
		s.tidy(n)
	}
	s.tidyPool(p)
}

func insert(all []*resourceapi.ResourceSlice, slice *resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	i, _ := slices.BinarySearchFunc(all, slice, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	return slices.Insert(all, i, slice)
}

// SetTaintRule adds or changes a DeviceTaintRule.
func (s *State) SetTaintRule(r *resourceapi.DeviceTaintRule) {
	s.rules[r.Name] = r
	s.rulesChanged()
}

// RemoveTaintRule forgets a DeviceTaintRule.
func (s *State) RemoveTaintRule(name string) {
	delete(s.rules, name)
	s.rulesChanged()
}

// rulesChanged looks which slices are tainted otherwise.
func (s *State) rulesChanged() {
	for _, name := range slices.Sorted(maps.Keys(s.slices)) {
		slice := s.slices[name]
		now, before := s.tainted(slice), s.listed(name)
		if now == before || slices.EqualFunc(now.Spec.Devices, before.Spec.Devices, func(a, b resourceapi.Device) bool {
			return slices.EqualFunc(a.Taints, b.Taints, sameTaint)
		}) {
			continue
		}
		s.setSlice(slice, now)
	}
}

// tainted is a slice with the taints that rules put on its devices, as the
// scheduler sees it (KEP-5055). A rule without a selector selects nothing.
func (s *State) tainted(slice *resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
	patched := slice
	for _, name := range slices.Sorted(maps.Keys(s.rules)) {
		r := s.rules[name]
		sel := r.Spec.DeviceSelector
		if sel == nil || !either(sel.Driver, slice.Spec.Driver) || !either(sel.Pool, slice.Spec.Pool.Name) {
			continue
		}
		for i := range slice.Spec.Devices {
			if !either(sel.Device, slice.Spec.Devices[i].Name) {
				continue
			}
			if patched == slice {
				patched = slice.DeepCopy()
			}
			patched.Spec.Devices[i].Taints = append(patched.Spec.Devices[i].Taints, r.Spec.Taint)
		}
	}
	return patched
}

func either(wanted *string, is string) bool { return wanted == nil || *wanted == is }

// SetClaim tells what a claim holds, and the workload that is charged for it
// ("" for claims older than the budget).
func (s *State) SetClaim(c *resourceapi.ResourceClaim, charged engine.WorkloadID) {
	if c.Status.Allocation == nil {
		s.RemoveClaim(c.UID)
		return
	}
	if old := s.claims[c.UID]; old != nil {
		s.drop(old)
	}
	h := &holding{claim: c.UID, workload: charged, results: devicesOf(c.Status.Allocation.Devices.Results)}
	s.claims[c.UID] = h
	if charged != "" {
		s.workload(charged).holdings[c.UID] = h
	}
	for i := range h.results {
		s.pool(h.results[i].key).taken[c.UID] = h
	}
	s.changeClaim(h, true)
}

// RemoveClaim says that a claim holds nothing any more.
func (s *State) RemoveClaim(uid types.UID) {
	if h := s.claims[uid]; h != nil {
		s.drop(h)
		s.freed = true
	}
}

func (s *State) drop(h *holding) {
	delete(s.claims, h.claim)
	if w := s.workloads[h.workload]; w != nil {
		delete(w.holdings, h.claim)
		s.forget(h.workload, w)
	}
	s.changeClaim(h, false)
	for i := range h.results {
		if p := s.pools[h.results[i].key]; p != nil {
			delete(p.taken, h.claim)
			s.tidyPool(p)
		}
	}
}

// changeClaim follows what a claim takes or gives back on the nodes concerned.
func (s *State) changeClaim(h *holding, taken bool) {
	seen := map[*node]bool{}
	for i := range h.results {
		p := s.pools[h.results[i].key]
		if p == nil {
			continue
		}
		if p.open > 0 {
			s.touchAll()
			return
		}
		for n := range p.nodes {
			if !seen[n] {
				seen[n] = true
				s.change(n, h.results, taken, false)
			}
		}
	}
}
