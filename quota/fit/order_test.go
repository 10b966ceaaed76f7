package fit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// promise takes the place of a workload of one pod.
func promise(t *testing.T, s *State, id engine.WorkloadID, gi int64) *engine.PodSetAssignment {
	t.Helper()
	w, a := ask(s, id, 1, gi, nil)
	p, no := s.Place(w, a, nil)
	if no != nil {
		t.Fatalf("%s: %v", id, no)
	}
	s.Take(id, p)
	return &a.PodSets[0]
}

// 20Gi of 40Gi and 20Gi that are free would be given the first of them, which was
// promised to somebody whose pod is not there yet.
func TestWhatWasPromisedToOthersIsNotOvertaken(t *testing.T) {
	s := world(BinPack)
	now := time.Unix(1000, 0)
	s.searching.now = func() time.Time { return now }
	addNode(s, "n1", nil, 40, 20)
	forty := promise(t, s, "ns/forty", 40)
	twenty := promise(t, s, "ns/twenty", 20)
	if _, no := s.Open("ns/twenty", twenty, "p20"); no == nil || !strings.Contains(no.Reason, "has to come first") {
		t.Fatalf("the gate of the smaller: %v", no)
	}
	if node, no := s.Open("ns/forty", forty, "p40"); node != "n1" {
		t.Fatal(no)
	}
	s.SetClaim(allocated("c40", "n1", "gpu-0", 40), "ns/forty")
	s.Settle("ns/forty", "p40")
	if node, no := s.Open("ns/twenty", twenty, "p20"); node != "n1" {
		t.Errorf("when the larger has its card: %v", no)
	}
}

func TestWhoDoesNotComeIsWaitedForAMinuteOnly(t *testing.T) {
	s := world(BinPack)
	now := time.Unix(1000, 0)
	s.searching.now = func() time.Time { return now }
	addNode(s, "n1", nil, 40, 20)
	promise(t, s, "ns/forty", 40)
	twenty := promise(t, s, "ns/twenty", 20)
	for _, after := range []time.Duration{0, 59 * time.Second} {
		now = time.Unix(1000, 0).Add(after)
		if _, no := s.Open("ns/twenty", twenty, "p20"); no == nil {
			t.Fatalf("opened after %s", after)
		}
	}
	now = time.Unix(1060, 0)
	if node, no := s.Open("ns/twenty", twenty, "p20"); node != "n1" {
		t.Errorf("after a minute: %v", no)
	}
}

func TestAGateThatHasToWaitOnOneNodeOpensToAnother(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 40, 20)
	promise(t, s, "ns/forty", 40)
	twenty := promise(t, s, "ns/twenty", 20)
	addNode(s, "n2", nil, 80)
	if node, no := s.Open("ns/twenty", twenty, "p20"); node != "n2" {
		t.Errorf("opened to %q, %v", node, no)
	}
}

// What is on its way to a node may be given any card of it: nothing is promised
// that would be lost by that.
func TestNothingIsPromisedThatPodsOnTheirWayMayBeGiven(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 40, 20)
	s.SetClaim(allocated("other", "n1", "gpu-0", 30), "")
	twenty := promise(t, s, "ns/twenty", 20)
	if node, no := s.Open("ns/twenty", twenty, "p20"); node != "n1" {
		t.Fatal(no)
	}
	s.RemoveClaim("other")
	w, a := ask(s, "ns/forty", 1, 40, nil)
	if p, no := s.Place(w, a, nil); no == nil {
		t.Errorf("promised %v, although the pod on its way may be given it", p.Pods)
	}
}

// A card is kept for somebody who needs all of it. The scheduler would give a part
// of it to a pod that has room on the card behind it, so that pod does not come.
func TestWhatIsKeptForOneIsNotGivenToSmallerOnes(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80, 80)
	s.SetClaim(allocated("a", "n1", "gpu-0", 10), "ns/a")
	s.SetClaim(allocated("b", "n1", "gpu-1", 40), "ns/b")
	w, a := ask(s, "ns/whole", 1, 0, nil)
	_, no := s.Place(w, a, nil)
	kept, ok := no.Keep(w.ID)
	if !ok {
		t.Fatal("no place to keep")
	}
	s.Take("ns/whole", kept)
	small, sa := ask(s, "ns/small", 1, 20, nil)
	if p, no := s.Place(small, sa, nil); no == nil {
		t.Errorf("promised %v, which the scheduler would take of the card that is kept", p.Pods)
	}
	addNode(s, "n2", nil, 80)
	if p, no := s.Place(small, sa, nil); no != nil || p.Pods[0].Node != "n2" {
		t.Errorf("beside the node: %v, %v", p.Pods, no)
	}
	s.RemoveNode("n2")
	s.RemoveClaim("a")
	if p, no := s.Place(w, a, nil); no != nil || p.Pods[0].Node != "n1" {
		t.Errorf("the one who waited: %v, %v", p.Pods, no)
	}
}

// Who lost his place to somebody else does not keep those from theirs who were
// promised room as well.
func TestALostPlaceIsInNobodysWayWhoWasPromisedRoom(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 40)
	whole := promise(t, s, "ns/whole", 40)
	if node, no := s.Open("ns/whole", whole, "pw"); node != "n1" {
		t.Fatal(no)
	}
	addNode(s, "n2", nil, 40)
	five := promise(t, s, "ns/five", 5)
	s.SetClaim(allocated("foreign", "n1", "gpu-0", 10), "")
	s.RemoveNode("n2")
	if node, no := s.Open("ns/five", five, "p5"); node != "n1" {
		t.Errorf("five: %v", no)
	}
	w, a := ask(s, "ns/new", 1, 5, nil)
	if p, no := s.Place(w, a, nil); no == nil {
		t.Errorf("somebody new was promised %v, before those who were admitted have theirs", p.Pods)
	}
}

func TestWhoIsOnHisWayIsLookedAtAgainWhenOthersFillHisNode(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 40)
	_, a := ask(s, "ns/w", 1, 10, func(p *corev1.PodSpec) {
		p.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": quantity("1")}
	})
	if node, no := s.Open("ns/w", &a.PodSets[0], "p"); node != "n1" {
		t.Fatal(no)
	}
	addNode(s, "n2", nil, 40)
	s.Freed()
	s.SetPod(bound("foreign", "n1", "16"), "")
	if !s.Freed() {
		t.Error("nobody looks again")
	}
	if node, no := s.Open("ns/w", &a.PodSets[0], "p"); node != "n2" {
		t.Errorf("stays on %s, %v", node, no)
	}
}

// numbered is a node for which numbers may tell: of cards of several kinds, or of
// parts that draw from counters, of which some are taken.
func (r draws) numbered(s *State) *node {
	if r.sometimes("mig", 3) {
		addMIG(s, "n1")
	} else {
		var cards []int64
		for range 1 + r.pick("cards", 4) {
			cards = append(cards, []int64{10, 20, 40}[r.pick("size", 3)])
		}
		addNode(s, "n1", nil, cards...)
	}
	slice := s.slices["n1"].DeepCopy()
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		d.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"index": {IntValue: ptr.To(int64(i))}}
		memory := d.Capacity["memory"]
		switch r.pick("special", 9) {
		case 0:
			d.Taints = []resourceapi.DeviceTaint{{Key: "sick", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		case 1:
			d.AllowMultipleAllocations, d.Capacity = nil, map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: memory.Value}}
		case 2:
			delete(d.Capacity, "cores")
		case 3:
			memory.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: ptr.To(quantity("5Gi")), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(quantity("1Gi"))}}
			d.AllowMultipleAllocations, d.Capacity = ptr.To(true), map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": memory}
		}
	}
	if r.sometimes("incomplete", 15) {
		slice.Spec.Pool.ResourceSliceCount++
	}
	s.SetSlice(slice)
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		switch shared := d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations; {
		case !r.sometimes("taken", 4):
		case shared:
			s.SetClaim(allocated(d.Name, "n1", d.Name, int64(1+r.pick("taken", 9))), "")
		default:
			s.SetClaim(exclusive(d.Name, "n1", d.Name), "")
		}
	}
	s.reindex()
	return s.nodes["n1"]
}

// plainClaims are claims that numbers can tell of.
func (r draws) plainClaims() []*resourceapi.ResourceClaim {
	var specs []resourceapi.ResourceClaimSpec
	for range 1 + r.pick("claims", 2) {
		claim := spec(int64([]int{0, 3, 5, 10, 20}[r.pick("gi", 5)]))
		one := claim.Devices.Requests[0].Exactly
		if one.Capacity != nil && r.pick("cores", 3) == 0 {
			one.Capacity.Requests["cores"] = quantity([]string{"0", "25", "60"}[r.pick("percent", 3)])
		}
		if one.Capacity != nil && r.sometimes("fine", 6) {
			one.Capacity.Requests["memory"] = quantity("1234567890")
		}
		if r.sometimes("several", 4) {
			one.Count = int64(2 + r.pick("count", 2))
		}
		if r.sometimes("selective", 4) {
			one.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: []string{
				`device.attributes["gpu.sluice.dev"].index >= 1`, `device.allowMultipleAllocations == true`,
				`device.capacity["gpu.sluice.dev"].memory.compareTo(quantity("30Gi")) > 0`}[r.pick("selector", 3)]}}}
		}
		specs = append(specs, claim)
	}
	claims := claimsOf(specs)
	for j := range claims {
		claims[j].UID = "c"
		claims[j].Name = fmt.Sprintf("c%d", j)
	}
	return claims
}

// Numbers say what the allocator says, for all that they claim to know.
func TestNumbersDealAsTheAllocatorDoes(t *testing.T) {
	told := 0
	rapid.Check(t, func(rt *rapid.T) {
		r := draws{rt}
		s := world(BinPack)
		n := r.numbered(s)
		var all []*slot
		for i := range 1 + r.pick("pods", 6) {
			claims := r.plainClaims()
			all = append(all, &slot{workload: engine.WorkloadID(fmt.Sprintf("ns/w%d", i)), node: "n1", claims: claims, kind: signature(claims)})
		}
		numbers := s.counting(n, s.held(n), all)
		if numbers == nil {
			return
		}
		told++
		asks := &asking{s: s, n: n, v: s.bare(n, nil)}
		for range 12 {
			if len(asks.dealt) > 0 && r.pick("back", 3) == 0 {
				numbers.back()
				asks.back()
				continue
			}
			sl := all[r.pick("who", len(all))]
			got, ok := numbers.deal(sl)
			want, wantOK := asks.deal(sl)
			if ok != wantOK || fmt.Sprint(got) != fmt.Sprint(want) {
				rt.Fatalf("numbers deal %v %v, the allocator %v %v for %s", got, ok, want, wantOK, need(sl.claims))
			}
		}
	})
	if told == 0 {
		t.Error("numbers never told anything")
	}
}
