package fit

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// forgetServed has the allocator asked anew on every node.
func (s *State) forgetServed() {
	for _, n := range s.nodes {
		n.served = nil
	}
}

// Once the allocator has served a kind of pod on a node, numbers say what it would
// give to the next, whatever has happened since.
func TestNumbersGiveWhatTheAllocatorGivesLongAfterItWasAsked(t *testing.T) {
	told := 0
	rapid.Check(t, func(rt *rapid.T) {
		r := draws{rt}
		s := world(BinPack)
		r.numbered(s)
		addNode(s, "n2", nil, 20, 40)
		s.reindex()
		var kinds []engine.WorkloadID
		var one engine.Assignment
		for i := range 3 {
			id := engine.WorkloadID(fmt.Sprintf("ns/w%d", i))
			claims := r.plainClaims()
			if r.sometimes("not plain", 5) {
				claims = []*resourceapi.ResourceClaim{r.claim("c")}
			}
			_, one = ask(s, id, 1, -1, nil)
			for _, c := range claims {
				s.workloads[id].sets[0].Claims = append(s.workloads[id].sets[0].Claims, c.Spec)
			}
			kinds = append(kinds, id)
		}
		for step := range 25 {
			id := kinds[r.pick("who", len(kinds))]
			node, card := fmt.Sprintf("n%d", 1+r.pick("node", 2)), "gpu-0"
			if d := s.slices[node].Spec.Devices; len(d) > 0 {
				card = d[r.pick("card", len(d))].Name
			}
			claim := fmt.Sprintf("late-%d", r.pick("claim", 3))
			switch r.pick("event", 7) {
			case 0, 1:
				if p, no := s.Place(&engine.Workload{ID: id}, one, nil); no == nil {
					s.Take(id, p)
				}
			case 2:
				s.Drop(id)
			case 3:
				s.RemoveClaim(allocated(claim, node, card, 1).UID)
			case 4:
				if r.sometimes("whole", 3) {
					s.SetClaim(exclusive(claim, node, card), "")
				} else {
					s.SetClaim(allocated(claim, node, card, int64(1+r.pick("gi", 20))), "")
				}
			case 5:
				s.SetSlice(rewritten(s.slices[node], r.pick))
			case 6:
				if p := s.workloads[id].slots; len(p) > 0 {
					s.Open(id, &one.PodSets[0], "pod")
				}
			}
			known, trial := s.workloads[id], s.look("ns/new")
			q := s.query("ns/new", known, &known.sets[0], &one.PodSets[0], nil, trial)
			for _, name := range []string{"n1", "n2"} {
				n := s.nodes[name]
				served := n.served
				_, remembered := served[q.key]
				got, err := s.try(q, n, s.look("ns/new"), &refusals{})
				n.served = nil
				n.base.refused = nil
				want, wantErr := s.try(q, n, s.look("ns/new"), &refusals{})
				if (err == nil) != (wantErr == nil) || (got == nil) != (want == nil) || got != nil && !got.takes(want) {
					rt.Fatalf("step %d, %s for %s: %v %v, the allocator says %v %v", step, name, need(q.claims), got, err, want, wantErr)
				}
				if remembered {
					n.served = served
					told++
				}
			}
		}
	})
	if told == 0 {
		t.Error("nothing was ever remembered")
	}
}
