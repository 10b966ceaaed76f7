package fit

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// The whole of one card is kept while a part of it is in use. The scheduler gives a
// half of the other card, as ever.
func TestACutCardThatIsKeptClosesNoOther(t *testing.T) {
	s := world(BinPack)
	addMIGs(s, "n1", 2)
	s.SetClaim(exclusive("c0", "n1", "card-0-40-0"), "ns/a")
	s.SetClaim(exclusive("c1", "n1", "card-1-10-0"), "ns/b")
	w, a := wanting(s, "ns/whole", 1, migProfile("7g.80gb"))
	kept(t, s, w, a)
	if got := s.workloads["ns/whole"].slots[0].devices[0].Device; got != "card-1-80-0" {
		t.Fatalf("kept is %s, where more has to go", got)
	}
	half, ha := wanting(s, "ns/half", 1, migProfile("3g.40gb"))
	p, no := s.Place(half, ha, nil)
	if no != nil {
		t.Fatalf("a half of the other card: %v", no)
	}
	s.Take("ns/half", p)
	if got := s.workloads["ns/half"].slots[0].devices[0].Device; got != "card-0-40-1" {
		t.Errorf("promised is %s", got)
	}
	// Events of the node do not take it away again.
	s.SetPod(bound("foreign", "n1", "1"), "")
	if _, no := s.Open("ns/half", &ha.PodSets[0], "p"); no != nil {
		t.Errorf("promised and not opened: %v", no)
	}
	if len(s.lost) > 0 {
		t.Error("the promise counts as lost")
	}
	s.SetClaim(exclusive("c2", "n1", "card-0-40-1"), "ns/half")
	s.Settle("ns/half", "p")
	// What is left is of the card that is kept.
	more, ma := wanting(s, "ns/more", 1, migProfile("3g.40gb"))
	if p, no := s.Place(more, ma, nil); no == nil {
		t.Errorf("promised %v of the card that is kept", p.Pods)
	}
	// Another whole card is kept beside it.
	other, oa := wanting(s, "ns/other", 1, migProfile("7g.80gb"))
	kept(t, s, other, oa)
	if got := s.workloads["ns/other"].slots[0].devices[0].Device; got != "card-0-80-0" {
		t.Errorf("kept for the second is %s", got)
	}
	s.RemoveClaim("c1")
	if p, no := s.Place(w, a, nil); no != nil || p.Pods[0].Node != "n1" {
		t.Errorf("the first, once his card is empty: %v, %v", p.Pods, no)
	}
}

// Of a pool in which a card is kept, who comes is promised what the scheduler would
// give him, unless that is of the card that is kept and would not leave enough.
func TestOfAPoolWithAKeptCardEverythingElseIsGivenAsEver(t *testing.T) {
	profiles := []string{"1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"}
	given := 0
	rapid.Check(t, func(rt *rapid.T) {
		r := draws{rt}
		s := world(BinPack)
		addMIGs(s, "n1", 2+r.pick("cards", 2))
		all := &stock{s: s, claims: map[types.UID]*resourceapi.ResourceClaim{}}
		serve := func(id, profile string) *resourceapi.ResourceClaim {
			claim := claimsOf([]resourceapi.ResourceClaimSpec{migProfile(profile)})[0]
			claim.Name, claim.UID = id, types.UID(id)
			got, err := all.allocate("n1", []*resourceapi.ResourceClaim{claim})
			if err != nil {
				rt.Fatal(err)
			}
			if got == nil {
				return nil
			}
			claim.Status.Allocation = &got[0]
			return claim
		}
		for i := range 4 + r.pick("busy", 8) {
			if c := serve(fmt.Sprint("busy", i), profiles[r.pick("size", 3)]); c != nil && !r.sometimes("ended", 3) {
				all.claims[c.UID] = c
				s.SetClaim(c, engine.WorkloadID("ns/"+c.Name))
			}
		}
		w, a := wanting(s, "ns/kept", 1, migProfile(profiles[2+r.pick("kept", 2)]))
		_, no := s.Place(w, a, nil)
		if no == nil {
			return
		}
		p, ok := no.Keep(w.ID)
		if !ok {
			return
		}
		s.Take("ns/kept", p)
		mine := s.workloads["ns/kept"].slots[0].devices[0].Device
		for i := range 3 {
			profile := profiles[r.pick("asked", 4)]
			id := engine.WorkloadID(fmt.Sprint("ns/new", i))
			w, a := wanting(s, id, 1, migProfile(profile))
			p, no := s.Place(w, a, nil)
			c := serve(fmt.Sprint("new", i), profile)
			if c == nil {
				if no == nil {
					rt.Fatalf("promised %v, where the scheduler has nothing", p.Pods)
				}
				return
			}
			got := c.Status.Allocation.Devices.Results[0].Device
			if strings.HasPrefix(got, mine[:len("card-0")]) {
				if no == nil && (strings.Contains(mine, "-80-") || profile == "7g.80gb") {
					rt.Fatalf("promised %v, and the scheduler would give %s while %s is kept", p.Pods, got, mine)
				}
				return
			}
			if no != nil {
				rt.Fatalf("%s of %s while %s is kept: %v", got, profile, mine, no)
			}
			s.Take(id, p)
			if promised := s.workloads[id].slots[0].devices[0].Device; promised != got {
				rt.Fatalf("promised is %s, the scheduler gives %s", promised, got)
			}
			if _, no := s.Open(id, &a.PodSets[0], types.UID(c.Name)); no != nil {
				rt.Fatalf("%s is promised and does not open: %v", got, no)
			}
			given++
			all.claims[c.UID] = c
			s.SetClaim(c, id)
			s.Settle(id, types.UID(c.Name))
		}
	})
	if given == 0 {
		t.Error("nobody was given anything")
	}
}
