package fit

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// exclusive is a claim that has a device as a whole.
func exclusive(uid, node, device string) *resourceapi.ResourceClaim {
	c := allocated(uid, node, device, 0)
	r := &c.Status.Allocation.Devices.Results[0]
	r.ShareID, r.ConsumedCapacity = nil, nil
	return c
}

// addMIG adds a node with a card that is whole or cut into two, by counters.
func addMIG(s *State, name string) {
	addNode(s, name, nil)
	slice := s.slices[name].DeepCopy()
	memory := func(gi string) map[string]resourceapi.Counter {
		return map[string]resourceapi.Counter{"memory": {Value: quantity(gi)}}
	}
	for _, d := range []struct{ name, gi string }{{"half-0", "40Gi"}, {"half-1", "40Gi"}, {"whole", "80Gi"}} {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
			Name:             d.name,
			Capacity:         map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: quantity(d.gi)}},
			ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "card", Counters: memory(d.gi)}},
		})
	}
	slice.Spec.Pool.ResourceSliceCount = 2
	counters := slice.DeepCopy()
	counters.Name += "-counters"
	counters.Spec.Devices = nil
	counters.Spec.SharedCounters = []resourceapi.CounterSet{{Name: "card", Counters: memory("80Gi")}}
	s.SetSlice(slice)
	s.SetSlice(counters)
}

// Whatever happened, what is left of a node is what a fresh look gives, and the
// node stands in the index where that says.
func TestFollowingEventsGivesWhatAFreshLookGives(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s := world(BinPack)
		for n := range 3 {
			addNode(s, fmt.Sprintf("n%d", n), nil, 40, 80)
		}
		addMIG(s, "n3")
		s.reindex()
		pick := func(label string, n int) int { return rapid.IntRange(0, n-1).Draw(r, label) }
		for range 30 {
			node, id := fmt.Sprintf("n%d", pick("node", 4)), fmt.Sprintf("c%d", pick("claim", 5))
			owner := engine.WorkloadID(fmt.Sprintf("ns/w%d", pick("workload", 3)))
			device := fmt.Sprintf("gpu-%d", pick("card", 2))
			if node == "n3" {
				device = []string{"whole", "half-0", "half-1"}[pick("part", 3)]
			}
			switch pick("event", 12) {
			case 0, 1:
				if node == "n3" || pick("whole", 4) == 0 {
					s.SetClaim(exclusive(id, node, device), owner)
				} else {
					s.SetClaim(allocated(id, node, device, int64(1+pick("gi", 20))), owner)
				}
			case 2:
				s.RemoveClaim(allocated(id, node, device, 1).UID)
			case 3:
				s.SetPod(bound(id, node, fmt.Sprint(1+pick("cpu", 3))), owner)
			case 4:
				s.RemovePod(bound(id, node, "1").UID)
			case 5:
				w, a := ask(s, owner, int32(1+pick("pods", 2)), int64(pick("ask", 50)), nil)
				if p, no := s.Place(w, a, nil); no == nil {
					s.Take(owner, p)
				}
			case 6:
				s.Drop(owner)
			case 7:
				s.SetSlice(rewritten(s.slices[node], pick))
			case 8:
				o := s.nodes[node].object.DeepCopy()
				o.Labels["x"] = fmt.Sprint(pick("label", 2))
				s.SetNode(o)
				s.SetFlavor("labelled", Flavor{NodeLabels: map[string]string{"x": "1"}})
			case 9:
				if w := s.workloads[owner]; w != nil && w.set("main") != nil {
					s.Open(owner, &engine.PodSetAssignment{Name: "main", Count: 1}, types.UID(id))
				}
			case 10:
				w, a := ask(s, owner, 1, int64(20+pick("much", 60)), nil)
				if _, no := s.Place(w, a, nil); no != nil && no.Keep != nil {
					if p, ok := no.Keep(owner); ok {
						s.Take(owner, p)
					}
				}
			case 11:
				w, a := ask(s, owner, 1, int64(20+pick("much", 60)), nil)
				if p, no := s.Place(w, a, []engine.WorkloadID{engine.WorkloadID(fmt.Sprintf("ns/w%d", pick("victim", 3)))}); no == nil {
					s.Take(owner, p)
				}
			}
			if pick("look", 2) == 0 {
				s.reindex()
			}
		}
		s.reindex()
		for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
			n := s.nodes[name]
			fresh := s.afresh(n)
			if !n.at.equal(&fresh.keys) || !sameView(n.base, fresh) {
				r.Fatalf("%s is\n%+v, a fresh look gives\n%+v", name, n.base, fresh)
			}
			if held, fresh := s.held(n), s.sum(n, nil); !sameView(held, fresh) {
				r.Fatalf("without promises %s is\n%+v, a fresh look gives\n%+v", name, held, fresh)
			}
			for _, sl := range n.slots {
				without := &trial{skip: sl}
				less := s.less(n, without)
				if sum := s.with(n, s.bare(n, nil), slices.DeleteFunc(slices.Clone(n.slots), func(o *slot) bool { return o == sl })); less == nil || !sameView(less, sum) {
					r.Fatalf("without the slot on %v %s is\n%+v, a fresh look gives\n%+v", sl.devices, name, less, sum)
				}
				mine := s.lookFor(sl)
				var others []*slot
				for _, o := range n.slots {
					if mine.takes(o) {
						others = append(others, o)
					}
				}
				if seen, sum := s.view(n, mine), s.with(n, s.bare(n, nil), others); !sameView(seen, sum) {
					r.Fatalf("for whom the slot on %v was promised %s is\n%+v, a fresh look gives\n%+v", sl.devices, name, seen, sum)
				}
			}
			for _, ix := range s.indexes {
				if slices.Contains(ix.free, n) != ix.selects(n) {
					r.Fatalf("%s is in an index that does not select it, or missing in one that does", name)
				}
			}
		}
	})
}

// afresh is what is left of a node, by what is known of it alone.
func (s *State) afresh(n *node) *view {
	base, held := n.base, n.held
	defer func() { n.base, n.held = base, held }()
	n.base, n.held, n.cards = nil, nil, nil
	return s.compute(n, &trial{})
}

// rewritten is a slice as a driver may write it anew.
func rewritten(slice *resourceapi.ResourceSlice, pick func(string, int) int) *resourceapi.ResourceSlice {
	slice = slice.DeepCopy()
	d := &slice.Spec.Devices[pick("which", len(slice.Spec.Devices))]
	switch pick("what", 8) {
	case 0:
		d.Taints = []resourceapi.DeviceTaint{{Key: "sick", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	case 1:
		d.Taints = nil
	case 2:
		c := d.Capacity["memory"]
		c.Value = quantity([]string{"30Gi", "50Gi"}[pick("size", 2)])
		d.Capacity["memory"] = c
	case 3:
		d.AllowMultipleAllocations = ptr.To(pick("shareable", 2) == 0)
	case 4:
		d.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"index": {IntValue: ptr.To(int64(pick("index", 2)))}}
	case 5:
		slice.Spec.Pool.Generation += int64(pick("generation", 2))
	case 6:
		if c, ok := d.Capacity["cores"]; ok && c.RequestPolicy != nil {
			c.RequestPolicy.Default = ptr.To(quantity([]string{"0", "10"}[pick("default", 2)]))
		}
	}
	return slice
}

func sameView(a, b *view) bool {
	for name := range b.used {
		if x, y := a.used[name], b.used[name]; x.Cmp(y) != 0 {
			return false
		}
	}
	for i := range a.cards {
		x, y := a.cards[i], b.cards[i]
		if !apiequality.Semantic.DeepEqual(x.device, y.device) || x.memory != y.memory || x.usualMemory != y.usualMemory || x.usualCores != y.usualCores ||
			x.tainted != y.tainted || x.shareable != y.shareable || x.touched != y.touched || x.over != y.over {
			return false
		}
		if x.open != y.open || x.freeMemory != y.freeMemory || x.freeCores != y.freeCores || x.shares != y.shares || x.whole != y.whole {
			return false
		}
	}
	if a.pods != b.pods || !a.state.AllocatedDevices.Equal(b.state.AllocatedDevices) || !a.state.AllocatedSharedDeviceIDs.Equal(b.state.AllocatedSharedDeviceIDs) {
		return false
	}
	if len(a.state.AggregatedCapacity) != len(b.state.AggregatedCapacity) {
		return false
	}
	for id, sum := range b.state.AggregatedCapacity {
		for name, q := range sum {
			if x := a.state.AggregatedCapacity[id][name]; x == nil || x.Cmp(*q) != 0 {
				return false
			}
		}
	}
	return true
}

// The index leaves out no node on which the allocator finds room.
func TestTheIndexLeavesOutNoNodeWithRoom(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		pick := func(label string, n int) int { return rapid.IntRange(0, n-1).Draw(r, label) }
		s := world(Policies[pick("policy", len(Policies))])
		for n := range 4 {
			addNode(s, fmt.Sprintf("n%d", n), nil, 24, 40, 80)
		}
		addMIG(s, "mig")
		for i := range pick("claims", 20) {
			if pick("mig", 4) == 0 {
				s.SetClaim(exclusive(fmt.Sprintf("c%d", i), "mig", fmt.Sprintf("half-%d", i%2)), "")
				continue
			}
			s.SetClaim(allocated(fmt.Sprintf("c%d", i), fmt.Sprintf("n%d", pick("node", 4)), fmt.Sprintf("gpu-%d", pick("card", 3)), int64(1+pick("gi", 20))), "")
		}
		if pick("taint", 3) == 0 {
			s.SetTaintRule(&resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: ptr.To("n1"), Device: ptr.To("gpu-2")},
				Taint:          resourceapi.DeviceTaint{Key: "sick", Effect: resourceapi.DeviceTaintEffectNoSchedule},
			}})
		}
		claim := spec(int64(pick("ask", 82)))
		request := claim.Devices.Requests[0].Exactly
		request.Count = int64(1 + pick("count", 3))
		if pick("tolerant", 3) == 0 {
			request.Tolerations = []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
		}
		if pick("cores", 3) == 0 && request.Capacity != nil {
			request.Capacity.Requests["cores"] = quantity("50")
		}
		s.SetWorkload("w", []PodSet{{Name: "main", Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}, Claims: []resourceapi.ResourceClaimSpec{claim}}}, "")
		a := engine.Assignment{PodSets: []engine.PodSetAssignment{{Name: "main", Count: 1}}}
		_, no := s.Place(&engine.Workload{ID: "w"}, a, nil)
		trial := s.look("w")
		for name, n := range s.nodes {
			results, err := s.allocate("w", n, s.view(n, trial).state, []*resourceapi.ResourceClaim{{Spec: claim}})
			if err != nil {
				r.Fatal(err)
			}
			if results != nil && no != nil {
				r.Fatalf("%s has room, but %v", name, no)
			}
		}
	})
}

// The scheduler gives the cards of a node to pods in the order in which they
// come, which is not the order in which places were promised. However it does, a
// node is never thought to have more room than claims and promises leave of it.
func TestPodsServedInAnotherOrderLeaveNoMoreRoomThanThereIs(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80, 80)
	_, a := ask(s, "ns/a", 4, 40, nil)
	w, b := ask(s, "ns/b", 1, 40, nil)
	p, no := s.Place(&engine.Workload{ID: "ns/a"}, a, nil)
	if no != nil {
		t.Fatal(no)
	}
	s.Take("ns/a", p)
	for i := range 4 {
		if _, no := s.Open("ns/a", &a.PodSets[0], types.UID(fmt.Sprint("p", i))); no != nil {
			t.Fatal(no)
		}
	}
	// The one that was promised the last piece comes first, and gets the first.
	for i, pod := range []string{"p3", "p2", "p1", "p0"} {
		c := allocated("c-"+pod, "n1", fmt.Sprintf("gpu-%d", i/2), 40)
		s.SetClaim(c, "ns/a")
		s.Equipped("ns/a", types.UID(pod), "n1")
		if _, no := s.Place(w, b, nil); no == nil {
			t.Fatalf("after %s: room is seen on a node that is full of claims and promises", pod)
		}
	}
}
