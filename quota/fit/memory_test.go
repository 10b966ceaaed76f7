package fit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/internal/reach"
)

// Whoever is gone has no rank any more, also while devices of his are not freed yet.
func TestAWorkloadThatIsRemovedLeavesNoRank(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80)
	s.SetClaim(allocated("c", "n1", "gpu-0", 10), "ns/large")
	s.SetClaim(allocated("d", "n1", "gpu-0", 10), "ns/small")
	w, a := wanting(s, "ns/large", 1, spec(0))
	kept(t, s, w, a)
	s.RemoveWorkload("ns/large")
	if rank := s.workloads["ns/large"].outranks(); rank != 0 {
		t.Errorf("it has rank %d", rank)
	}
	s.RemoveClaim("c")
	s.RemoveClaim("d")
	if len(s.workloads) > 0 {
		t.Errorf("left are %v", s.workloads)
	}
}

// Workloads that ask for all kinds of things are promised places, kept places, have
// gates opened, get devices and pods, and go in whatever state they are in.
func TestNothingIsKeptOfWorkloadsThatCameAndWent(t *testing.T) {
	s := world(BinPack)
	now := time.Unix(1e9, 0)
	s.searching.now = func() time.Time { return now }
	for n := range 4 {
		addNode(s, fmt.Sprintf("n%d", n), nil, 40, 80)
	}
	addMIGs(s, "mig", 1)
	r := rand.New(rand.NewPCG(3, 4))
	type one struct {
		id     engine.WorkloadID
		claims []types.UID
		pods   []types.UID
	}
	var live []*one
	born, placed, keeps := 0, 0, 0
	remove := func(i int) {
		w := live[i]
		live = slices.Delete(live, i, i+1)
		undo := []func(){func() { s.RemoveWorkload(w.id) }}
		for _, uid := range w.claims {
			undo = append(undo, func() { s.RemoveClaim(uid) })
		}
		for _, uid := range w.pods {
			undo = append(undo, func() { s.RemovePod(uid) })
		}
		r.Shuffle(len(undo), func(i, j int) { undo[i], undo[j] = undo[j], undo[i] })
		for _, u := range undo {
			u()
		}
	}
	churn := func(n int) int {
		for range n {
			born++
			now = now.Add(time.Second)
			w := &one{id: engine.WorkloadID(fmt.Sprintf("team-%d/w", born))}
			live = append(live, w)
			claim := spec(int64(1 + r.IntN(60)))
			switch r.IntN(6) {
			case 0:
				claim = counted(spec(int64(1+r.IntN(20))), 2)
			case 1:
				claim = migProfile([]string{"1g.10gb", "7g.80gb"}[r.IntN(2)])
			case 2:
				claim = selecting(claim, fmt.Sprintf("%d == %d", born%50, born%50))
			case 3:
				claim = spec(0)
			}
			ew, a := wanting(s, w.id, int32(1+r.IntN(2)), claim)
			p, no := s.Place(ew, a, nil)
			switch {
			case no == nil:
				placed++
				s.Take(w.id, p)
				pod := types.UID(fmt.Sprint("pod-", born))
				if node, no := s.Open(w.id, &a.PodSets[0], pod); no == nil && r.IntN(2) == 0 {
					var devices []resourceapi.DeviceRequestAllocationResult
					for _, sl := range s.workloads[w.id].slots {
						if sl.pod == pod {
							for _, d := range sl.devices {
								devices = append(devices, *d.DeviceRequestAllocationResult)
							}
						}
					}
					c := claimsOf([]resourceapi.ResourceClaimSpec{claim})[0]
					c.UID = types.UID(fmt.Sprint("claim-", born))
					c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: devices}}
					s.SetClaim(c, w.id)
					w.claims = append(w.claims, c.UID)
					s.Equipped(w.id, pod, node)
					s.SetPod(bound(string(pod), node, "10m"), w.id)
					w.pods = append(w.pods, pod)
					if r.IntN(2) == 0 {
						s.Settle(w.id, pod)
					}
				}
			case r.IntN(2) == 0:
				if p, ok := no.Keep(w.id); ok {
					keeps++
					s.Take(w.id, p)
				}
			}
			if r.IntN(8) == 0 {
				o := s.nodes[fmt.Sprintf("n%d", r.IntN(4))].object.DeepCopy()
				o.Spec.Unschedulable = !o.Spec.Unschedulable
				s.SetNode(o)
			}
			// A search that takes long draws from its namespace's allowance.
			s.searching.spend(namespaceOf(w.id), 10)
			for len(live) > 5+r.IntN(8) {
				remove(r.IntN(len(live)))
			}
		}
		for len(live) > 0 {
			remove(len(live) - 1)
		}
		s.reindex()
		// What is remembered of selectors has a bound of its own.
		known := s.cel
		s.cel = nil
		defer func() { s.cel = known }()
		return reach.Count(s)
	}
	first := churn(1_000)
	last := churn(10_000)
	if placed < 1000 || keeps < 100 {
		t.Fatalf("%d were placed, for %d a place was kept", placed, keeps)
	}
	if n := len(s.workloads) + len(s.claims) + len(s.pods) + len(s.lost) + len(s.awaiting) + len(s.roaming) + len(s.asked); n > 0 {
		t.Errorf("left are %d workloads, %d claims, %d pods, %d lost and %d kept places, %d sizes",
			len(s.workloads), len(s.claims), len(s.pods), len(s.lost), len(s.awaiting), len(s.asked))
	}
	if last > first+first/2 {
		t.Errorf("after 1,000 workloads %d things can be reached, after 10,000 more %d", first, last)
	}
}
