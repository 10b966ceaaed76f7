package fit

import "testing"

// A pod that takes the place which was promised to it frees nothing: whoever
// waits for room would be tried again for every gate that opens.
func TestTakingThePromisedPlaceFreesNoRoom(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80)
	addNode(s, "n2", nil, 80)
	w, a := ask(s, "w", 1, 30, nil)
	p, no := s.Place(w, a, nil)
	if no != nil {
		t.Fatal(no)
	}
	s.Take("w", p)
	s.Freed()
	if node, no := s.Open("w", &a.PodSets[0], "pod"); no != nil || node != p.Pods[0].Node {
		t.Fatalf("opens on %q, %v; promised was %q", node, no, p.Pods[0].Node)
	}
	if s.Freed() {
		t.Error("room counts as freed, though the pod only took what was promised")
	}
	// A pod that leaves its promised place for another one does free it.
	w, a = ask(s, "other", 1, 30, nil)
	if p, no = s.Place(w, a, nil); no != nil {
		t.Fatal(no)
	}
	s.Take("other", p)
	s.Freed()
	s.RemoveNode(p.Pods[0].Node)
	s.Freed()
	if node, no := s.Open("other", &a.PodSets[0], "second"); no != nil || node == p.Pods[0].Node {
		t.Fatalf("opens on %q, %v; that node is gone", node, no)
	}
	if !s.Freed() {
		t.Error("room does not count as freed, though a promised place was left")
	}
}
