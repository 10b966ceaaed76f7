package fit

import "testing"

// A preemptor is promised a whole card that a victim has, and a pod a part of another
// card. Once the victim has left the scheduler would give the pod a part of the first:
// it must not be on its way by then.
func TestNobodyIsSentOnHisWayToTakeWhatAVictimLeavesForAPreemptor(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 20, 20)
	s.SetClaim(allocated("stays", "n1", "gpu-1", 5), "ns/stays")
	s.SetClaim(allocated("victim", "n1", "gpu-0", 20), "ns/victim")
	five := promise(t, s, "ns/five", 5)
	w, a := evicting(t, s, "ns/preemptor", 20, "ns/victim")
	if node, no := s.Open("ns/five", five, "p"); no == nil {
		t.Errorf("sent to %s, where it would be given a part of what the victim leaves", node)
	}
	s.RemoveClaim("victim")
	if _, no := s.Place(w, a, nil); no != nil {
		t.Fatalf("the preemptor: %v", no)
	}
}
