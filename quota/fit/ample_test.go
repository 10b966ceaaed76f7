package fit

import (
	"fmt"
	"math"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// burst has several jobs placed on one node, each of so many pods of its own size,
// and opens the gates of all by turns. It says how many opened.
func burst(t *testing.T, s *State, pods int, sizes ...int64) (opened int) {
	t.Helper()
	var sets []*engine.PodSetAssignment
	for i, gi := range sizes {
		id := engine.WorkloadID(fmt.Sprintf("ns/job%d", i))
		w, a := ask(s, id, int32(pods), gi, nil)
		p, no := s.Place(w, a, nil)
		if no != nil {
			t.Fatal(no)
		}
		s.Take(id, p)
		sets = append(sets, &a.PodSets[0])
	}
	for i := range pods {
		for j, set := range sets {
			if _, no := s.Open(engine.WorkloadID(fmt.Sprintf("ns/job%d", j)), set, types.UID(fmt.Sprintf("pod%d-%d", j, i))); no == nil {
				opened++
			}
		}
	}
	return opened
}

// 21 pods of three kinds can be served in 400 million orders.
func TestJobsThatComeAtOnceOpenAllTheirGatesWhereThereIsRoomForAll(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80, 80, 80, 80, 80, 80, 80, 80)
	if n := burst(t, s, 7, 10, 11, 12); n != 21 {
		t.Errorf("%d of 21 gates opened", n)
	}
}

// Whole cards beside slices of seven sizes: as many as there is room for are on
// their way at once.
func TestPodsOfManyKindsOpenAllTheirGatesWhereThereIsRoomForAll(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80, 80, 80, 80, 80, 80, 80, 80)
	if n := burst(t, s, 2, 0, 5, 8, 10, 12, 16, 20, 24); n != 16 {
		t.Errorf("%d of 16 gates opened", n)
	}
}

// Who names his request otherwise asks no other thing.
func TestClaimsThatAskAlikeInOtherWordsAreOfOneKind(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 40, 40)
	opened := 0
	for i := range 20 {
		id := engine.WorkloadID(fmt.Sprintf("ns/job%d", i))
		w, a := ask(s, id, 1, 4, nil)
		s.workloads[id].sets[0].Claims[0].Devices.Requests[0].Name = fmt.Sprintf("card-of-%d", i)
		p, no := s.Place(w, a, nil)
		if no != nil {
			t.Fatal(no)
		}
		s.Take(id, p)
		if _, no := s.Open(id, &a.PodSets[0], types.UID(fmt.Sprint(i))); no == nil {
			opened++
		}
	}
	if opened != 20 {
		t.Errorf("%d of 20 gates opened", opened)
	}
}

// Where there is hardly more than they ask for, not all can be on their way at
// once, and to find that takes no long search.
func TestJobsThatComeAtOnceToANodeThatIsFullComeByAndBy(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80, 80, 84)
	if n := burst(t, s, 7, 10, 11, 12); n == 0 || n == 21 {
		t.Errorf("%d of 21 gates opened", n)
	}
}

// drawCards draws cards of which somebody may have something.
func drawCards(t *rapid.T) *counting {
	c := &counting{kinds: map[string]*demands{}, steps: math.MaxInt}
	for range rapid.IntRange(1, 5).Draw(t, "cards") {
		r := rest{open: rapid.IntRange(0, 9).Draw(t, "shut") > 0, shareable: rapid.IntRange(0, 3).Draw(t, "alone") > 0}
		r.touched = rapid.IntRange(0, 4).Draw(t, "touched") == 0
		r.memory, r.cores = rapid.SampledFrom([]int64{40, 40, 40, 25, 12, 5, 0}).Draw(t, "memory"), rapid.SampledFrom([]int64{20, 20, 9, 1}).Draw(t, "cores")
		c.cards = append(c.cards, r)
	}
	return c
}

// drawDemand draws a request for a part of a card, or for all of it.
func (c *counting) drawDemand(t *rapid.T) demand {
	a := demand{make(portions, len(c.cards)), 1}
	if rapid.IntRange(0, 6).Draw(t, "several") == 0 {
		a.count = 2
	}
	memory, cores := rapid.SampledFrom([]int64{1, 3, 5, 8, 12, 20, 40}).Draw(t, "asks"), rapid.SampledFrom([]int64{0, 0, 0, 2, 7}).Draw(t, "asks cores")
	picky, rounds := rapid.IntRange(0, 4).Draw(t, "picky") == 0, rapid.IntRange(0, 3).Draw(t, "rounds") == 0
	for i := range a.portions {
		p := portion{ok: !picky || rapid.Bool().Draw(t, "fit")}
		if p.ok && c.cards[i].shareable {
			p.memory, p.cores = memory, cores
			if rounds {
				// Each card rounds as it likes.
				p.memory += rapid.Int64Range(0, 2).Draw(t, "rounded")
			}
		}
		a.portions[i] = p
	}
	return a
}

func TestWhereThereIsAmpleRoomEveryOrderServesAll(t *testing.T) {
	proved, hard := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		// One of five lines has ample room: a few at a time.
		for range 30 {
			c := drawCards(t)
			var l line
			for k := range rapid.IntRange(1, 5).Draw(t, "kinds") {
				name := fmt.Sprint(k)
				mine := demands{}
				for range rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "requests") {
					mine = append(mine, c.drawDemand(t))
				}
				c.kinds[name] = &mine
				for range rapid.IntRange(1, 2).Draw(t, "pods") {
					l.flight = append(l.flight, &slot{kind: name})
				}
			}
			if !c.ample(l.flight) {
				continue
			}
			proved++
			if c.tight(l.flight) {
				hard++
			}
			if !l.everyOrder(c, &view{}, kindsOf(l.flight, c.alike)) {
				t.Fatalf("not every order serves %v on %+v", c.kinds, c.cards)
			}
		}
	})
	if proved == 0 || hard == 0 {
		t.Errorf("there was ample room %d times, %d times with little to spare", proved, hard)
	}
}

// tight says that there are no more cards than pieces to lie on them.
func (c *counting) tight(all []*slot) bool {
	pieces := 0
	for _, sl := range all {
		for _, a := range *c.kinds[sl.kind] {
			pieces += a.count
		}
	}
	return len(c.cards) <= pieces
}
