package fit

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/sluice-gpu/sluice/quota/engine"
)

func TestBinPackLeavesLeastThatNothingAskedForFitsInto(t *testing.T) {
	for _, tc := range []struct {
		name string
		// free is what is left of the card of each node.
		free  []int64
		asked []int64
		gi    int64
		want  string
	}{
		{"an exact hole", []int64{80, 20, 30}, []int64{10}, 20, "n1"},
		{"a rest that is useful rather than a smaller one that is not", []int64{25, 32}, []int64{10}, 20, "n1"},
		{"the smallest hole with a useful rest", []int64{80, 50, 40}, []int64{10}, 20, "n2"},
		{"the smallest rest where all are useless", []int64{35, 26, 28}, []int64{20}, 20, "n1"},
		{"the largest hole stays whole", []int64{80, 40}, []int64{1}, 40, "n1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := world(BinPack)
			for i, gi := range tc.free {
				name := fmt.Sprintf("n%d", i)
				addNode(s, name, nil, 80)
				if gi < 80 {
					s.SetClaim(allocated("held-"+name, name, "gpu-0", 80-gi), "")
				}
			}
			for _, gi := range tc.asked {
				ask(s, engine.WorkloadID(fmt.Sprintf("ns/waits-%d", gi)), 1, gi, nil)
			}
			if got := place(t, s, "w", 1, tc.gi); got != tc.want {
				t.Errorf("placed on %s, want %s", got, tc.want)
			}
		})
	}
}

func TestAPolicyOfItsOwnGoesBeforeTheCommonOne(t *testing.T) {
	s := world(BinPack)
	addNode(s, "idle", nil, 80)
	addNode(s, "busy", nil, 80)
	s.SetClaim(allocated("a", "busy", "gpu-0", 30), "")
	w, a := ask(s, "w", 1, 20, nil)
	for policy, want := range map[Policy]string{"": "busy", Spread: "idle", None: "busy"} {
		s.SetWorkload("w", s.workloads["w"].sets, policy)
		p, no := s.Place(w, a, nil)
		if no != nil || p.Pods[0].Node != want {
			t.Errorf("%q places on %v, %v; want %s", policy, p.Pods, no, want)
		}
	}
}

// links names the NVLink domain of each card of a node.
func links(s *State, node string, domains ...string) {
	slice := s.slices[node].DeepCopy()
	for i, domain := range domains {
		slice.Spec.Devices[i].Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"nvlinkDomain": {StringValue: ptr.To(domain)}}
	}
	s.SetSlice(slice)
}

func TestNVLinkPrefersNodesWhereThePodsCardsAreLinked(t *testing.T) {
	s := world(NVLink)
	addNode(s, "apart", nil, 40, 40)
	links(s, "apart", "a", "b")
	addNode(s, "linked", nil, 80, 80)
	links(s, "linked", "c", "c")
	pair := spec(40)
	pair.Devices.Requests[0].Exactly.Count = 2
	put := func(id engine.WorkloadID, claim resourceapi.ResourceClaimSpec) string {
		w, a := ask(s, id, 1, -1, nil)
		s.workloads[id].sets[0].Claims = []resourceapi.ResourceClaimSpec{claim}
		p, no := s.Place(w, a, nil)
		if no != nil {
			return no.String()
		}
		s.Take(id, p)
		return p.Pods[0].Node
	}
	if got := put("ns/pair", pair); got != "linked" {
		t.Errorf("a pair of cards goes to %s", got)
	}
	if got := put("ns/one", spec(40)); got != "apart" {
		t.Errorf("one card, which has nobody to be linked with, goes to %s", got)
	}
	s.Drop("ns/one")
	s.RemoveNode("linked")
	if got := put("ns/other", pair); got != "apart" {
		t.Errorf("where no cards are linked a pair goes to %s", got)
	}
}

func TestTaintsOfDevicesKeepPodsAwayWhoDoNotTolerateThem(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80)
	s.SetTaintRule(&resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To("gpu.sluice.dev"), Pool: ptr.To("n1")},
		Taint:          resourceapi.DeviceTaint{Key: "example.com/sick", Effect: resourceapi.DeviceTaintEffectNoSchedule},
	}})
	if got := place(t, s, "plain", 1, 10); !strings.HasPrefix(got, "no card has 10Gi free") {
		t.Errorf("placed: %s", got)
	}
	w, a := ask(s, "tolerant", 1, 10, nil)
	s.workloads["tolerant"].sets[0].Claims[0].Devices.Requests[0].Exactly.Tolerations = []resourceapi.DeviceToleration{{Key: "example.com/sick", Operator: resourceapi.DeviceTolerationOpExists}}
	if _, no := s.Place(w, a, nil); no != nil {
		t.Errorf("tolerant: %v", no)
	}
	// Rules of other devices, and those that select nothing, are none of ours.
	s.SetTaintRule(&resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{Taint: resourceapi.DeviceTaint{Key: "x", Effect: resourceapi.DeviceTaintEffectNoSchedule}}})
	if got := place(t, s, "plain", 1, 10); got != "n1" {
		t.Errorf("after the rule was changed: %s", got)
	}
}

func TestCountersThatAreUsedUpCloseTheOtherPartsOfACard(t *testing.T) {
	s := world(BinPack)
	addMIG(s, "mig")
	if got := place(t, s, "whole", 1, 60); got != "mig" {
		t.Fatal(got)
	}
	if n := s.view(s.nodes["mig"], s.look("")).keys; n.spare != 0 || len(n.holes) > 0 && n.holes[len(n.holes)-1] > 0 {
		t.Errorf("with the whole card promised the index still offers %+v", n)
	}
	if got := place(t, s, "half", 1, 30); got == "mig" {
		t.Error("a half of a card that is given as a whole was given too")
	}
	s.Drop("whole")
	for _, id := range []engine.WorkloadID{"half-a", "half-b"} {
		if got := place(t, s, id, 1, 30); got != "mig" {
			t.Errorf("%s: %s", id, got)
		}
	}
	if got := place(t, s, "whole", 1, 60); got == "mig" {
		t.Error("the whole card was given beside its halves")
	}
}

// The best place to keep is the card that others have least of. Small pods do not
// get it any more, and the one it is kept for does when it is free.
func TestAKeptPlaceIsTheOneThatIsFreeSoonest(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80, 80)
	addNode(s, "n2", nil, 80, 80)
	for i, where := range []string{"n1/gpu-0", "n1/gpu-1", "n2/gpu-0", "n2/gpu-1"} {
		node, card, _ := strings.Cut(where, "/")
		s.SetClaim(allocated(fmt.Sprintf("c%d", i), node, card, []int64{40, 30, 20, 50}[i]), engine.WorkloadID(fmt.Sprintf("ns/small-%d", i)))
	}
	w, a := ask(s, "ns/whole", 1, 0, nil)
	_, no := s.Place(w, a, nil)
	if no == nil || no.Keep == nil {
		t.Fatalf("placed, or no place to keep: %v", no)
	}
	p, ok := no.Keep(w.ID)
	if !ok || p.Pods[0].Node != "n2" {
		t.Fatalf("kept %v, %v", p.Pods, ok)
	}
	s.Take("ns/whole", p)
	if got := place(t, s, "ns/thirty", 1, 30); got == "n2" && s.workloads["ns/thirty"].slots[0].devices[0].Device == "gpu-0" {
		t.Error("a small pod got the place that is kept")
	}
	s.Drop("ns/thirty")
	// Asked again it stays where it is, though another card is emptier by now.
	s.RemoveClaim("c1")
	s.SetClaim(allocated("c1", "n1", "gpu-1", 10), "ns/small-1")
	if _, no = s.Place(w, a, nil); no == nil {
		t.Fatal("placed on a card that is in use")
	}
	if again, _ := no.Keep(w.ID); again.Pods[0].Node != "n2" {
		t.Errorf("kept on %s now", again.Pods[0].Node)
	}
	s.RemoveClaim("c2")
	if p, no := s.Place(w, a, nil); no != nil || p.Pods[0].Node != "n2" {
		t.Errorf("when it is free: %v, %v", p.Pods, no)
	}
	// A node that goes is exchanged.
	s.SetClaim(allocated("c2", "n2", "gpu-0", 20), "ns/small-2")
	s.RemoveNode("n2")
	_, no = s.Place(w, a, nil)
	if again, ok := no.Keep(w.ID); !ok || again.Pods[0].Node != "n1" {
		t.Errorf("after its node is gone: %v, %v", again.Pods, ok)
	}
}

// Without many, the node is taken that needs the fewest of them gone, and only
// those are named.
func TestAPlacementNamesWhoHasToGoForIt(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80)
	addNode(s, "n2", nil, 80)
	var all []engine.WorkloadID
	for i, node := range []string{"n1", "n1", "n1", "n2"} {
		id := engine.WorkloadID(fmt.Sprintf("ns/v%d", i))
		s.SetClaim(allocated(fmt.Sprint(i), node, "gpu-0", 20), id)
		all = append(all, id)
	}
	w, a := ask(s, "ns/w", 1, 70, nil)
	p, no := s.Place(w, a, all)
	if no != nil || p.Pods[0].Node != "n2" || len(p.Displaces) != 1 || p.Displaces[0] != "ns/v3" {
		t.Errorf("placed on %v displacing %v, %v", p.Pods, p.Displaces, no)
	}
}

// Kinds of claims that read alike in a sentence are told apart by their selectors.
func TestOrderCountsForClaimsThatDifferInASelectorOnly(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 20, 20)
	links(s, "n1", "a", "b")
	picky := spec(20)
	picky.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.attributes["gpu.sluice.dev"].nvlinkDomain == "a"`}}}
	_, any := ask(s, "ns/any", 1, 20, nil)
	_, one := ask(s, "ns/picky", 1, -1, nil)
	s.workloads["ns/picky"].sets[0].Claims = []resourceapi.ResourceClaimSpec{picky}
	if node, no := s.Open("ns/picky", &one.PodSets[0], "p1"); node != "n1" {
		t.Fatal(no)
	}
	if _, no := s.Open("ns/any", &any.PodSets[0], "p2"); no == nil || !strings.Contains(no.Reason, "another order") {
		t.Errorf("any card, which may take the only one that the other can have: %v", no)
	}
}

func TestAPlaceThatWillNotDoAnyMoreIsExchangedWhileAnotherIsThere(t *testing.T) {
	for name, spoil := range map[string]func(*State){
		"cordoned": func(s *State) {
			n := s.nodes["n1"].object.DeepCopy()
			n.Spec.Unschedulable = true
			s.SetNode(n)
		},
		"deleted":         func(s *State) { s.RemoveNode("n1") },
		"full":            func(s *State) { s.SetClaim(allocated("foreign", "n1", "gpu-0", 30), "") },
		"without devices": func(s *State) { s.RemoveSlice("n1") },
	} {
		t.Run(name, func(t *testing.T) {
			s := world(BinPack)
			addNode(s, "n1", nil, 30)
			_, a := ask(s, "w", 1, 30, nil)
			if node, no := s.Open("w", &a.PodSets[0], "pod"); node != "n1" {
				t.Fatal(no)
			}
			spoil(s)
			if node, _ := s.Open("w", &a.PodSets[0], "pod"); node != "n1" {
				t.Errorf("moved to %q although there is nothing else", node)
			}
			addNode(s, "n2", nil, 80)
			if !s.Freed() {
				t.Error("nobody is told that there is room")
			}
			if node, _ := s.Open("w", &a.PodSets[0], "pod"); node != "n2" || s.Counts().Moved != 1 {
				t.Errorf("it stays on %q", node)
			}
			if len(s.workloads["w"].slots) != 1 {
				t.Errorf("%d slots", len(s.workloads["w"].slots))
			}
		})
	}
}

// A driver that publishes two devices of one name makes its node useless, and no
// other.
func TestAPoolThatIsPublishedWronglySpeaksAgainstItsNodeAlone(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 40, 40)
	broken := s.slices["n1"].DeepCopy()
	broken.Spec.Devices[1].Name = broken.Spec.Devices[0].Name
	s.SetSlice(broken)
	addNode(s, "n2", nil, 80)
	if where := place(t, s, "ns/w", 1, 40); where != "n2" {
		t.Errorf("placed on %q", where)
	}
}
