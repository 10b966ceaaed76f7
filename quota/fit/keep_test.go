package fit

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// wanting tells of a workload whose pods have a claim.
func wanting(s *State, id engine.WorkloadID, pods int32, claim resourceapi.ResourceClaimSpec) (*engine.Workload, engine.Assignment) {
	w, a := ask(s, id, pods, -1, nil)
	s.workloads[id].sets[0].Claims = []resourceapi.ResourceClaimSpec{claim}
	return w, a
}

func migProfile(name string) resourceapi.ResourceClaimSpec {
	return selecting(spec(0), fmt.Sprintf(`has(device.attributes["gpu.sluice.dev"].profile) && device.attributes["gpu.sluice.dev"].profile == %q`, name))
}

// kept has the place that is best kept be kept for who waits; it fails if he has
// room, or if there is no such place.
func kept(t *testing.T, s *State, w *engine.Workload, a engine.Assignment) engine.Placement {
	t.Helper()
	p, no := s.Place(w, a, nil)
	if no == nil {
		t.Fatalf("%s has room: %v", w.ID, p.Pods)
	}
	p, ok := no.Keep(w.ID)
	if !ok {
		t.Fatalf("no place is kept for %s, which waits because %v", w.ID, no)
	}
	s.Take(w.ID, p)
	return p
}

func TestAPlaceIsKeptHoweverManyEmptierNodesCouldNeverServe(t *testing.T) {
	s := world(BinPack)
	for i := range 2 * keepTries {
		addNode(s, fmt.Sprintf("other-%d", i), nil, 80, 80)
	}
	addMIGs(s, "mig", 1)
	s.SetClaim(exclusive("c", "mig", "card-0-10-0"), "ns/small")
	for name, claim := range map[string]resourceapi.ResourceClaimSpec{
		"plain": migProfile("7g.80gb"), "with a constraint": constrained(counted(migProfile("3g.40gb"), 2)),
	} {
		if name != "plain" {
			s.SetClaim(exclusive("d", "mig", "card-0-40-0"), "ns/small")
		}
		w, a := wanting(s, "ns/whole", 1, claim)
		if p := kept(t, s, w, a); p.Pods[0].Node != "mig" {
			t.Errorf("%s: kept on %s", name, p.Pods[0].Node)
		}
		s.Drop("ns/whole")
	}
}

func TestPlacesAreKeptForAllPodsOfALargeGang(t *testing.T) {
	s := world(BinPack)
	const nodes = 2*keepTries + 1
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		addNode(s, name, nil, 80)
		s.SetClaim(allocated("c"+name, name, "gpu-0", 10), "ns/small")
	}
	w, a := ask(s, "ns/gang", nodes, 0, nil)
	on := map[string]bool{}
	for _, pod := range kept(t, s, w, a).Pods {
		on[pod.Node] = true
	}
	if len(on) != nodes {
		t.Errorf("kept on %d nodes, want %d", len(on), nodes)
	}
}

// The scheduler would give a small one the first part that is free, which is one of
// the card that is kept as a whole.
func TestNoPartIsGivenOfACardThatIsKeptAsAWhole(t *testing.T) {
	s := world(BinPack)
	addMIGs(s, "n1", 2)
	s.SetClaim(exclusive("c0", "n1", "card-0-10-0"), "ns/a")
	s.SetClaim(exclusive("c1", "n1", "card-1-40-0"), "ns/b")
	w, a := wanting(s, "ns/whole", 1, migProfile("7g.80gb"))
	kept(t, s, w, a)
	if got := s.workloads["ns/whole"].slots[0].devices[0].Device; got != "card-0-80-0" {
		t.Fatalf("kept is %s, where more has to go", got)
	}
	small, sa := wanting(s, "ns/small", 1, migProfile("1g.10gb"))
	if p, no := s.Place(small, sa, nil); no == nil {
		t.Errorf("promised %v, which the scheduler would take of the card that is kept", p.Pods)
	}
}

func TestAKeptCardThatBecomesSickIsExchanged(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80, 80)
	addNode(s, "n2", nil, 80)
	for i, where := range [][2]string{{"n1", "gpu-0"}, {"n1", "gpu-1"}, {"n2", "gpu-0"}} {
		s.SetClaim(allocated(fmt.Sprint("c", i), where[0], where[1], []int64{10, 40, 30}[i]), "ns/small")
	}
	w, a := ask(s, "ns/whole", 1, 0, nil)
	if p := kept(t, s, w, a); p.Pods[0].Node != "n1" {
		t.Fatalf("kept on %s", p.Pods[0].Node)
	}
	sick := s.slices["n1"].DeepCopy()
	sick.Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "sick", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	s.SetSlice(sick)
	if p := kept(t, s, w, a); p.Pods[0].Node != "n2" {
		t.Errorf("kept on %s, whose card is sick", p.Pods[0].Node)
	}
}

// Two whole cards are kept for one, the card between them for another. The scheduler
// gives the first that are free, so either would be given the other's: who was first
// does not wait for the other.
func TestThoseWhoseKeptPlacesAreInEachOthersWayAreServedInTurn(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 20, 40, 20)
	busy := []string{"gpu-0", "gpu-1", "gpu-2"}
	for i, gi := range []int64{5, 30, 5} {
		s.SetClaim(allocated(busy[i], "n1", busy[i], gi), "ns/small")
	}
	first, fa := wanting(s, "ns/first", 1, counted(spec(0), 2))
	kept(t, s, first, fa)
	second, sa := wanting(s, "ns/second", 2, spec(20))
	kept(t, s, second, sa)
	for _, card := range busy {
		s.RemoveClaim(types.UID(card))
	}
	if p, no := s.Place(second, sa, nil); no == nil {
		t.Fatalf("the second was promised %v, which the first is kept out by", p.Pods)
	}
	p, no := s.Place(first, fa, nil)
	if no != nil {
		t.Fatalf("the first waits for the second: %v", no)
	}
	s.Take("ns/first", p)
	if _, no := s.Open("ns/first", &fa.PodSets[0], "p"); no != nil {
		t.Fatalf("the first was promised room and does not come: %v", no)
	}
	s.RemoveWorkload("ns/first")
	if _, no := s.Place(second, sa, nil); no != nil {
		t.Errorf("the second, once the first is gone: %v", no)
	}
}

// Of a gang's places one is under a job of days. Another node is left by all: it is
// kept instead, and what was kept before is free for others.
func TestAKeptPlaceUnderAJobOfDaysIsExchangedForOneThatIsFree(t *testing.T) {
	s := world(BinPack)
	busy := map[string]int64{"n1": 10, "n2": 20, "n3": 30}
	for _, name := range []string{"n1", "n2", "n3"} {
		addNode(s, name, nil, 80)
		s.SetClaim(allocated(name, name, "gpu-0", busy[name]), engine.WorkloadID("ns/on-"+name))
	}
	w, a := wanting(s, "ns/gang", 2, spec(0))
	on := func() (nodes []string) {
		for _, sl := range s.workloads["ns/gang"].slots {
			nodes = append(nodes, sl.node)
		}
		return nodes
	}
	kept(t, s, w, a)
	if got := on(); !slices.Equal(got, []string{"n1", "n2"}) {
		t.Fatalf("kept on %v", got)
	}
	rank := s.workloads["ns/gang"].kept
	s.RemoveClaim("n3")
	kept(t, s, w, a)
	if got := on(); !slices.Equal(got, []string{"n3", "n2"}) {
		t.Fatalf("with n3 free, kept on %v", got)
	}
	if got := s.workloads["ns/gang"].kept; got != rank {
		t.Errorf("its rank was %d and is %d", rank, got)
	}
	if got := place(t, s, "ns/small", 1, 20); got != "n1" {
		t.Errorf("a small one, beside what is kept: %s", got)
	}
	// It stays there, whatever else becomes emptier, and nobody is woken.
	s.SetClaim(allocated("n1", "n1", "gpu-0", 5), "ns/on-n1")
	s.Freed()
	for range 3 {
		kept(t, s, w, a)
	}
	if got := on(); !slices.Equal(got, []string{"n3", "n2"}) || s.Freed() {
		t.Errorf("asked again, kept on %v", got)
	}
	s.RemoveClaim("n2")
	p, no := s.Place(w, a, nil)
	if no != nil {
		t.Fatalf("with both free: %v", no)
	}
	s.Take("ns/gang", p)
	if got := on(); !slices.Contains(got, "n3") || !slices.Contains(got, "n2") {
		t.Errorf("placed on %v", got)
	}
}

// The other card may be of the same node.
func TestAKeptCardUnderAJobOfDaysIsExchangedForOneOfTheSameNode(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80, 80, 80)
	for i, gi := range []int64{10, 20, 30} {
		s.SetClaim(allocated(fmt.Sprint("c", i), "n1", fmt.Sprint("gpu-", i), gi), engine.WorkloadID(fmt.Sprint("ns/on-", i)))
	}
	w, a := wanting(s, "ns/gang", 2, spec(0))
	kept(t, s, w, a)
	s.RemoveClaim("c2")
	kept(t, s, w, a)
	var cards []string
	for _, sl := range s.workloads["ns/gang"].slots {
		cards = append(cards, sl.devices[0].Device)
	}
	if !slices.Equal(cards, []string{"gpu-2", "gpu-1"}) {
		t.Errorf("kept are %v", cards)
	}
}

// The one that is to take a place over looks for it as if the other did not wait.
func TestAPlaceThatIsKeptForOneMayBeKeptForAnotherInstead(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80)
	s.SetClaim(allocated("c", "n1", "gpu-0", 10), "ns/small")
	w, a := wanting(s, "ns/low", 1, spec(0))
	kept(t, s, w, a)
	w, a = wanting(s, "ns/high", 1, spec(0))
	_, no := s.Place(w, a, nil)
	if p, ok := no.Keep("ns/high"); ok {
		t.Errorf("beside the other: %v", p.Pods)
	}
	p, ok := no.Keep("ns/high", "ns/low")
	if !ok || p.Pods[0].Node != "n1" {
		t.Errorf("instead of the other: %v", p.Pods)
	}
	if len(s.workloads["ns/low"].slots) != 1 {
		t.Error("to look for it took the place of the other")
	}
}

// Small ones come all the time, and each ends before long. A large one for which a
// place is kept is served when those have ended that were there, whatever it is:
// all of a card, several cards, cards of one link, a card that is cut into parts
// else.
func TestALargeOneIsServedHoweverManySmallOnesCome(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCrowded(rt, true)
		c.lost = true
		mig := c.pick("mig", 3) == 0
		if mig {
			addMIGs(c.s, "mig", 1+c.pick("mig cards", 2))
		}
		const lasts = 3
		ends := map[types.UID]int{}
		run := func(id engine.WorkloadID, a engine.Assignment, now int) {
			for i := range int(a.PodSets[0].Count) {
				pod := types.UID(fmt.Sprintf("%s-%d", id, i))
				node, no := c.s.Open(id, &a.PodSets[0], pod)
				if no != nil {
					rt.Fatalf("%s has a place and does not open: %v%s", pod, no, c.picture())
				}
				c.admitted[id], c.wants[id] = a, c.s.workloads[id].sets[0].Claims
				c.open = append(c.open, pending{id, pod, node})
				if !c.schedules(len(c.open) - 1) {
					rt.Fatalf("%s finds no room on %s%s", pod, node, c.picture())
				}
				ends[pod] = now + 1 + c.pick("lasts", lasts)
			}
		}
		type large struct {
			id    engine.WorkloadID
			claim resourceapi.ResourceClaimSpec
			pods  int32
			kept  bool
		}
		var waiting []*large
		for i := range 1 + c.pick("large", 3) {
			l := &large{id: engine.WorkloadID(fmt.Sprintf("ns/large%d", i)), pods: 1}
			switch c.pick("shape", 5) {
			case 0:
				l.claim = spec(0)
			case 1:
				l.claim = counted(spec(0), 2)
			case 2:
				l.claim, l.pods = spec(20), 2
			case 3:
				l.claim = constrained(counted(spec(20), 2))
			case 4:
				l.claim = spec(40)
				if mig {
					l.claim = migProfile("7g.80gb")
				}
			}
			waiting = append(waiting, l)
		}
		// Who would have no room although nobody else were there does not count.
		waiting = slices.DeleteFunc(waiting, func(l *large) bool {
			w, a := wanting(c.s, l.id, l.pods, l.claim)
			_, no := c.s.Place(w, a, nil)
			c.s.RemoveWorkload(l.id)
			return no != nil
		})
		for now := range 40 {
			for _, pod := range slices.Sorted(maps.Keys(ends)) {
				if ends[pod] == now {
					c.finish(pod)
					delete(ends, pod)
				}
			}
			if now > 6 {
				waiting = slices.DeleteFunc(waiting, func(l *large) bool {
					w, a := wanting(c.s, l.id, l.pods, l.claim)
					p, no := c.s.Place(w, a, nil)
					if no != nil {
						if p, ok := no.Keep(l.id); ok {
							c.s.Take(l.id, p)
							if !l.kept {
								c.note("at %d a place is kept for %s: %v", now, l.id, p.Pods)
							}
							l.kept = true
						}
						return false
					}
					c.s.Take(l.id, p)
					run(l.id, a, now)
					return true
				})
			}
			for range 3 {
				c.next++
				id, claim := engine.WorkloadID(fmt.Sprintf("ns/small%d", c.next)), spec([]int64{5, 10, 15}[c.pick("small", 3)])
				if mig && c.pick("part", 2) == 0 {
					claim = migProfile([]string{"1g.10gb", "2g.20gb", "3g.40gb"}[c.pick("profile", 3)])
				}
				w, a := wanting(c.s, id, 1, claim)
				p, no := c.s.Place(w, a, nil)
				if no != nil {
					c.s.RemoveWorkload(id)
					continue
				}
				c.s.Take(id, p)
				run(id, a, now)
			}
		}
		if len(waiting) > 0 {
			rt.Fatalf("%s for %s waits still, kept %v%s", waiting[0].id, need(claimsOf([]resourceapi.ResourceClaimSpec{waiting[0].claim})), waiting[0].kept, c.picture())
		}
	})
}

// finish has a pod end, and its workload with the last of its pods.
func (c *crowded) finish(pod types.UID) {
	c.note("%s ends", pod)
	for _, claim := range c.has[pod] {
		delete(c.stock.claims, claim.UID)
		c.s.RemoveClaim(claim.UID)
	}
	c.s.RemovePod(pod)
	delete(c.has, pod)
}
