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
