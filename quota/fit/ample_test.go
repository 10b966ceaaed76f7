package fit

import (
	"fmt"
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

// Where there is hardly more than they ask for, not all can be on their way at
// once, and to find that takes no long search.
func TestJobsThatComeAtOnceToANodeThatIsFullComeByAndBy(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80, 80, 84)
	if n := burst(t, s, 7, 10, 11, 12); n == 0 || n == 21 {
		t.Errorf("%d of 21 gates opened", n)
	}
}

func TestWhereThereIsAmpleRoomEveryOrderServesAll(t *testing.T) {
	proved := 0
	rapid.Check(t, func(t *rapid.T) {
		c := &counting{kinds: map[string][]portions{}}
		for range rapid.IntRange(1, 4).Draw(t, "cards") {
			r := rest{open: rapid.IntRange(0, 9).Draw(t, "shut") > 0, shareable: rapid.IntRange(0, 3).Draw(t, "alone") > 0}
			r.touched = rapid.IntRange(0, 4).Draw(t, "touched") == 0
			r.memory, r.cores = rapid.Int64Range(0, 40).Draw(t, "memory"), rapid.Int64Range(0, 20).Draw(t, "cores")
			c.cards = append(c.cards, r)
		}
		var l line
		for k := range rapid.IntRange(1, 3).Draw(t, "kinds") {
			name := fmt.Sprint(k)
			for range rapid.IntRange(1, 2).Draw(t, "requests") {
				asks := make(portions, len(c.cards))
				memory, cores := rapid.Int64Range(0, 12).Draw(t, "asks"), rapid.Int64Range(0, 4).Draw(t, "asks cores")
				for i := range asks {
					asks[i] = portion{ok: rapid.IntRange(0, 5).Draw(t, "unfit") > 0}
					if asks[i].ok && c.cards[i].shareable {
						// Each card rounds as it likes.
						asks[i].memory, asks[i].cores = memory+rapid.Int64Range(0, 2).Draw(t, "rounded"), cores
					}
				}
				c.kinds[name] = append(c.kinds[name], asks)
			}
			for range rapid.IntRange(1, 2).Draw(t, "pods") {
				l.flight = append(l.flight, &slot{kind: name})
			}
		}
		if !c.ample(l.flight) {
			return
		}
		proved++
		if !l.everyOrder(c, &view{}, kindsOf(l.flight)) {
			t.Fatalf("not every order serves %v on %+v", c.kinds, c.cards)
		}
	})
	if proved == 0 {
		t.Error("there was never ample room")
	}
}
