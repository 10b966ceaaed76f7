package fit

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// A place is kept on a card for when those have left who are on it. Whoever was promised
// what is free of it now does not wait for that.
func TestWhoWasPromisedRoomComesBesideAPlaceThatIsKeptForLater(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 40)
	s.SetClaim(allocated("a", "n1", "gpu-0", 20), "ns/running")
	promised := promise(t, s, "ns/promised", 20)
	w, a := wanting(s, "ns/waits", 1, spec(10))
	kept(t, s, w, a)
	s.SetPod(bound("foreign", "n1", "1"), "")
	if s.reindex(); len(s.lost) > 0 {
		t.Error("its place counts as lost")
	}
	if node, no := s.Open("ns/promised", promised, "p"); node != "n1" {
		t.Errorf("promised and not opened: %v", no)
	}
	// Nobody who comes anew is promised what is kept.
	more, ma := wanting(s, "ns/more", 1, spec(15))
	if p, no := s.Place(more, ma, nil); no == nil {
		t.Errorf("somebody new was promised %v", p.Pods)
	}
}

// Something becomes free of the card that is kept, and the scheduler would give that to
// a pod which was promised another. The card may be others' for days still.
func TestWhoWasPromisedRoomWaitsAMinuteForAPlaceThatIsKept(t *testing.T) {
	s := world(BinPack)
	now := time.Unix(1000, 0)
	s.searching.now = func() time.Time { return now }
	addNode(s, "n1", nil, 40, 20)
	s.SetClaim(allocated("a", "n1", "gpu-0", 30), "ns/a")
	s.SetClaim(allocated("b", "n1", "gpu-0", 10), "ns/b")
	five := promise(t, s, "ns/five", 5)
	w, a := wanting(s, "ns/large", 1, spec(40))
	kept(t, s, w, a)
	s.RemoveClaim("b")
	for _, after := range []time.Duration{0, 59 * time.Second} {
		now = time.Unix(1000, 0).Add(after)
		if _, no := s.Open("ns/five", five, "p"); no == nil {
			t.Fatalf("opened after %s, and would be given a part of the card that is kept", after)
		}
	}
	now = time.Unix(1060, 0)
	if node, no := s.Open("ns/five", five, "p"); node != "n1" {
		t.Errorf("after a minute: %v", no)
	}
}

// Workloads that ask alike wait as one. The place that is kept for one of them is his.
func TestAPlaceIsKeptForWhomItIsAskedNotForTheFirstWhoAskedAlike(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 40)
	s.SetClaim(allocated("a", "n1", "gpu-0", 20), "ns/a")
	first, a := wanting(s, "ns/first", 1, spec(40))
	second, _ := wanting(s, "ns/second", 1, spec(40))
	_, no := s.Place(first, a, nil)
	p, ok := no.Keep(second.ID)
	if !ok {
		t.Fatal("no place to keep")
	}
	s.Take(second.ID, p)
	s.RemoveClaim("a")
	if _, no := s.Place(second, a, nil); no != nil {
		t.Errorf("the second, for whom it is kept: %v", no)
	}
	if p, no := s.Place(first, a, nil); no == nil {
		t.Errorf("the first was promised %v, which is kept for the second", p.Pods)
	}
	// He takes it over with the rank that goes with it.
	rank := s.workloads[second.ID].kept
	if p, ok = no.Keep(first.ID, second.ID); !ok {
		t.Fatal("no place to take over")
	}
	s.Drop(second.ID)
	s.Take(first.ID, p)
	if got := s.workloads[first.ID].kept; got != rank {
		t.Errorf("the rank was %d and is %d", rank, got)
	}
	if _, no := s.Place(first, a, nil); no != nil {
		t.Errorf("the first, who has taken it over: %v", no)
	}
}

// evicting promises a workload the place of victims.
func evicting(t *testing.T, s *State, id engine.WorkloadID, gi int64, victims ...engine.WorkloadID) (*engine.Workload, engine.Assignment) {
	t.Helper()
	w, a := wanting(s, id, 1, spec(gi))
	p, no := s.Place(w, a, victims)
	if no != nil {
		t.Fatalf("%s has no room without %v: %v", id, victims, no)
	}
	s.Take(id, p)
	return w, a
}

// The scheduler gives somebody who stays a part of what was promised to a preemptor,
// and leaves him as much of another card. That one is his then, and nobody else's.
func TestAPreemptorsPlaceFollowsWhatIsGivenToOthers(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 40, 20)
	s.SetClaim(allocated("victim", "n1", "gpu-0", 20), "ns/victim")
	s.SetClaim(allocated("other", "n1", "gpu-1", 20), "ns/other")
	s.SetClaim(allocated("stays", "n1", "gpu-0", 15), "ns/stays")
	w, a := evicting(t, s, "ns/preemptor", 20, "ns/victim")
	s.RemoveClaim("other")
	s.RemoveClaim("victim")
	s.SetClaim(allocated("late", "n1", "gpu-0", 10), "ns/late")
	if _, no := s.Place(w, a, nil); no != nil {
		t.Fatalf("the preemptor: %v", no)
	}
	more, ma := wanting(s, "ns/more", 1, spec(20))
	if p, no := s.Place(more, ma, nil); no == nil {
		t.Errorf("somebody else was promised %v, which is all that is left for the preemptor", p.Pods)
	}
}

// A pod that is promised one card would be given another, of which a preemptor waits
// for a part: with those who stay there it would be too much.
func TestNothingIsPromisedThatWouldTakeAPreemptorsPlace(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 40, 20)
	s.SetClaim(allocated("stays", "n1", "gpu-0", 15), "ns/stays")
	s.SetClaim(allocated("victim", "n1", "gpu-0", 5), "ns/victim")
	s.SetClaim(allocated("here", "n1", "gpu-1", 10), "ns/here")
	w, a := evicting(t, s, "ns/preemptor", 25, "ns/victim")
	small, sa := wanting(s, "ns/small", 1, spec(10))
	if p, no := s.Place(small, sa, nil); no == nil {
		t.Errorf("promised %v, where the scheduler would give it what the preemptor waits for", p.Pods)
	}
	s.RemoveClaim(types.UID("victim"))
	if _, no := s.Place(w, a, nil); no != nil {
		t.Errorf("the preemptor: %v", no)
	}
}
