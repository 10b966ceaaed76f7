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

// Numbers place a gang where the allocator, asked for each of its pods, would.
func TestAGangIsGivenWhatTheAllocatorGivesEachOfItsPods(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := draws{rt}
		s := world(BinPack)
		r.numbered(s)
		addNode(s, "n2", nil, 20, 40)
		claims := r.plainClaims()
		if r.sometimes("not plain", 5) {
			claims = []*resourceapi.ResourceClaim{r.claim("c")}
		}
		w, a := ask(s, "ns/gang", 1, -1, nil)
		for _, c := range claims {
			s.workloads["ns/gang"].sets[0].Claims = append(s.workloads["ns/gang"].sets[0].Claims, c.Spec)
		}
		known := s.workloads["ns/gang"]
		gang, asked := s.look("ns/gang"), s.look("ns/gang")
		q, one := s.query(w.ID, known, &known.sets[0], &a.PodSets[0], nil, gang), s.query(w.ID, known, &known.sets[0], &a.PodSets[0], nil, asked)
		for i := range 1 + r.pick("pods", 12) {
			got, no := s.placeOne(q, gang, map[string]string{})
			s.forgetServed()
			want, noOne := s.placeOne(one, asked, map[string]string{})
			if (no == nil) != (noOne == nil) {
				rt.Fatalf("pod %d: numbers say %v, the allocator %v", i, no, noOne)
			}
			if no != nil {
				break
			}
			if !got.takes(want) {
				rt.Fatalf("pod %d: numbers give %v, the allocator %v", i, got.devices, want.devices)
			}
			for j := range got.devices {
				a, b := got.devices[j], want.devices[j]
				if a.Request != b.Request || a.Driver != b.Driver || a.Pool != b.Pool || a.Device != b.Device || (a.ShareID == nil) != (b.ShareID == nil) {
					rt.Fatalf("pod %d: numbers give %v, the allocator %v", i, a, b)
				}
			}
			s.put(gang, got)
			s.put(asked, want)
		}
	})
}
