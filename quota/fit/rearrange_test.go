package fit

import (
	"testing"
	"time"
)

// One was promised a part of the second card, and somebody else is given it. What is
// free of the first, where places are kept for others, is all that is left for him: it
// is his then, and not promised to whom a place is kept for.
func TestWhosePromisedCardIsTakenHasOneThatIsOnlyKeptForOthers(t *testing.T) {
	s := world(BinPack)
	now := time.Unix(1000, 0)
	s.searching.now = func() time.Time { return now }
	addNode(s, "n1", nil, 20, 20)
	s.SetClaim(allocated("all", "n1", "gpu-0", 20), "ns/all")
	five := promise(t, s, "ns/five", 5)
	promise(t, s, "ns/fifteen", 15)
	first, a := wanting(s, "ns/first", 1, spec(5))
	kept(t, s, first, a)
	second, b := wanting(s, "ns/second", 1, spec(15))
	kept(t, s, second, b)
	s.RemoveClaim("all")
	s.SetClaim(allocated("most", "n1", "gpu-0", 15), "ns/most")
	s.SetClaim(allocated("foreign", "n1", "gpu-1", 5), "")
	if s.reindex(); len(s.lost) > 0 {
		t.Error("his place counts as lost")
	}
	if p, no := s.Place(first, a, nil); no == nil {
		t.Errorf("promised to another as well: %v", p.Pods)
	}
	for _, after := range []time.Duration{0, time.Minute} {
		// A place that is kept is made way for, for so long.
		now = time.Unix(1000, 0).Add(after)
		if node, no := s.Open("ns/five", five, "p"); after > 0 && node != "n1" {
			t.Errorf("promised and not opened: %v", no)
		}
	}
}

// Two who evict were promised a whole card and parts of another. The part of the first
// is given to a third, who has as much on either: the two change cards.
func TestTwoPreemptorsChangeCardsWhereOneAloneCannotMove(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 40, 40)
	s.SetClaim(allocated("v", "n1", "gpu-0", 40), "ns/v")
	s.SetClaim(allocated("u", "n1", "gpu-1", 40), "ns/u")
	evicting(t, s, "ns/whole", 40, "ns/v")
	evicting(t, s, "ns/part", 5, "ns/u", "ns/v")
	if whole, part := s.workloads["ns/whole"].slots[0], s.workloads["ns/part"].slots[0]; whole.devices[0].Device != "gpu-0" || part.devices[0].Device != "gpu-1" {
		t.Fatalf("promised %s and %s", whole.devices[0].Device, part.devices[0].Device)
	}
	s.RemoveClaim("v")
	s.SetClaim(allocated("third", "n1", "gpu-0", 10), "ns/third")
	s.reindex()
	if whole, part := s.workloads["ns/whole"].slots[0], s.workloads["ns/part"].slots[0]; whole.devices[0].Device != "gpu-1" || part.devices[0].Device != "gpu-0" {
		t.Errorf("%s and %s are promised, where only the other way round both have room", whole.devices[0].Device, part.devices[0].Device)
	}
}

// He who had a place has none: the rank that he gives up opens to the next what is kept
// for those after him.
func TestARankWithoutAPlaceThatIsGivenUpFreesRoom(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 20)
	s.SetClaim(allocated("a", "n1", "gpu-0", 20), "ns/a")
	w, a := wanting(s, "ns/first", 1, spec(5))
	kept(t, s, w, a)
	s.setSlots(s.workloads["ns/first"], nil) // as one who outranks him would
	s.Freed()
	s.Drop("ns/first")
	if !s.Freed() {
		t.Error("nobody is told")
	}
}

// The victim has left, and the card of a promise is given to somebody else in part. What
// he had is all that is left for it; the preemptor has room on the other card.
func TestAPromiseAndAPreemptorChangeCards(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 40, 40)
	s.SetClaim(allocated("v", "n1", "gpu-1", 40), "ns/v")
	promise(t, s, "ns/promised", 35)
	evicting(t, s, "ns/preemptor", 30, "ns/v")
	s.RemoveClaim("v")
	s.SetClaim(allocated("foreign", "n1", "gpu-0", 10), "")
	s.reindex()
	if mine, his := s.workloads["ns/promised"].slots[0], s.workloads["ns/preemptor"].slots[0]; mine.lost || mine.devices[0].Device != "gpu-1" || his.devices[0].Device != "gpu-0" {
		t.Errorf("promised is %s (lost: %t), and %s to the preemptor; both have room", mine.devices[0].Device, mine.lost, his.devices[0].Device)
	}
}
