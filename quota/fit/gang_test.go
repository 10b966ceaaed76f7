package fit

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// Two gangs share nodes; pods of the second may not come before those of the first.
// Each that asks tries a few places of the others, not all of them, and other ones
// each time: so a single one that is free to be used is found before long.
func TestAPodOfALargeGangTriesAFewPlacesOfTheOthersAtATime(t *testing.T) {
	const nodes = 50
	s := world(BinPack)
	for i := range nodes {
		addNode(s, fmt.Sprintf("n%03d", i), nil, 40, 20)
	}
	sets := map[int64]*engine.PodSetAssignment{}
	for _, gi := range []int64{40, 20} {
		id := engine.WorkloadID(fmt.Sprintf("ns/gang%d", gi))
		w, a := ask(s, id, nodes, gi, nil)
		p, no := s.Place(w, a, nil)
		if no != nil {
			t.Fatal(no)
		}
		s.Take(id, p)
		sets[gi] = &a.PodSets[0]
	}
	small := s.workloads["ns/gang20"]
	tried := map[*slot]bool{}
	for range nodes / openTries {
		some := s.othersOf(small, nil, sets[20].Name)
		if len(some) != openTries {
			t.Fatalf("%d places are tried, want %d", len(some), openTries)
		}
		for _, sl := range some {
			if tried[sl] {
				t.Error("a place is tried again before all were")
			}
			tried[sl] = true
		}
	}
	if _, no := s.Open("ns/gang20", sets[20], "early"); no == nil || !strings.Contains(no.Reason, "has to come first") {
		t.Fatalf("the first of the second gang: %v", no)
	}
	// One of the first gang has come, somewhere.
	if _, no := s.Open("ns/gang40", sets[40], "forty"); no != nil {
		t.Fatal(no)
	}
	came := s.workloads["ns/gang40"].slots
	on := ""
	for _, sl := range came {
		if sl.pod == "forty" {
			on = sl.node
		}
	}
	s.SetClaim(allocated("c40", on, "gpu-0", 40), "ns/gang40")
	s.Settle("ns/gang40", "forty")
	for i := range nodes {
		if node, no := s.Open("ns/gang20", sets[20], types.UID("early")); no == nil {
			if node != on {
				t.Errorf("opened on %s, and who came first is on %s", node, on)
			}
			return
		} else if i == nodes-1 {
			t.Errorf("the place on %s was never found: %v", on, no)
		}
	}
}
