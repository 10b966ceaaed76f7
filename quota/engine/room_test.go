package engine

import (
	"fmt"
	"sort"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// roomWorld is an engine with cards.
type roomWorld struct {
	t       *rapid.T
	engine  *Engine
	cards   *toyCards
	now     time.Time
	born    int
	specs   map[WorkloadID]Workload
	leaving map[WorkloadID]bool
	running map[WorkloadID]bool
}

func newRoomWorld(t *rapid.T, opts ...Option) *roomWorld {
	w := &roomWorld{
		t: t, engine: New(opts...), cards: &toyCards{taken: map[WorkloadID][]toyPiece{}}, now: storyStart,
		specs: map[WorkloadID]Workload{}, leaving: map[WorkloadID]bool{}, running: map[WorkloadID]bool{},
	}
	w.engine.Apply(Tick{Now: w.now})
	draw := func(label string, n int) int { return rapid.IntRange(0, n).Draw(t, label) }
	for f := range 2 {
		w.engine.Apply(FlavorChanged{FlavorSpec{Name: FlavorName(fmt.Sprintf("f%d", f))}})
		for c := range 1 + draw("cards", 3) {
			w.cards.cards = append(w.cards.cards, &toyCard{
				where: fmt.Sprintf("f%d/card-%d", f, c), flavor: FlavorName(fmt.Sprintf("f%d", f)), resource: "mem",
				size: Amount(4 + draw("size", 8)),
			})
		}
	}
	for i := range 1 + draw("queues", 2) {
		spec := ClusterQueue{Name: QueueName(fmt.Sprintf("q%d", i)), Cohort: "c", Namespaces: Selector{Everything: true}}
		g := ResourceGroup{Resources: []Resource{"mem"}}
		for f := range 1 + draw("flavors", 1) {
			g.Flavors = append(g.Flavors, FlavorQuotas{FlavorName(fmt.Sprintf("f%d", f)), []Quota{{Nominal: Amount(draw("nominal", 30))}}})
		}
		spec.Groups = []ResourceGroup{g}
		spec.Preemption.WithinQueue = []PreemptionPolicy{Never, LowerPriority}[draw("within", 1)]
		spec.Preemption.Reclaim = []PreemptionPolicy{Never, LowerPriority, AnyPriority}[draw("reclaim", 2)]
		w.engine.Apply(QueueChanged{spec})
		w.engine.Apply(LocalQueueChanged{LocalQueue{Name: LocalQueueName{"ns", string(spec.Name)}, Queue: spec.Name}})
	}
	return w
}

func (w *roomWorld) draw(label string, n int) int { return rapid.IntRange(0, n).Draw(w.t, label) }

func (w *roomWorld) submit() Workload {
	w.born++
	spec := Workload{
		ID:         WorkloadID(fmt.Sprintf("w%03d", w.born)),
		LocalQueue: LocalQueueName{"ns", fmt.Sprintf("q%d", w.draw("queue", len(w.engine.queues)-1))},
		Priority:   int32(w.draw("priority", 3)), QueuedAt: w.now,
		PodSets: []PodSet{{Name: "main", Count: int32(1 + w.draw("count", 2)), Requests: Amounts{"mem": Amount(1 + w.draw("ask", 9))}}},
	}
	w.specs[spec.ID] = spec
	w.engine.Apply(WorkloadChanged{spec})
	return spec
}

func (w *roomWorld) decide() []Decision {
	w.now = w.now.Add(time.Minute)
	w.engine.Apply(Tick{Now: w.now})
	ds := w.engine.Decide(w.cards)
	for _, d := range ds {
		switch d := d.(type) {
		case Admit:
			if d.Placement == nil || len(d.Placement.Pods) != int(d.Assignment.PodSets[0].Count) {
				w.t.Fatalf("%s: admitted without a place for each pod: %v", d.ID, d.Placement)
			}
			w.running[d.ID] = true
		case Evict:
			w.leaving[d.Victim] = true
		}
	}
	w.check()
	return ds
}

// check says that no card holds more than it can, and that nobody waits who
// could go.
func (w *roomWorld) check() {
	used := map[*toyCard]Amount{}
	for id := range w.running {
		for _, p := range w.cards.taken[id] {
			used[p.card] += p.size
		}
	}
	for c, n := range used {
		if n > c.size {
			w.t.Fatalf("%s holds %d of %d", c.where, n, c.size)
		}
	}
	for id := range w.cards.taken {
		if x := w.engine.works[id]; x == nil || x.hold == nil && x.keptBy == nil {
			w.t.Fatalf("a place is taken for %s, which holds nothing", id)
		}
	}
	for id := range w.specs {
		x := w.engine.works[id]
		if x == nil || x.class == nil {
			continue
		}
		var n nomination
		w.engine.nominate(&n, x.class.queue, x, x.class.plan, nil)
		for n.mode == fits {
			_, no := w.cards.Place(x.workload(), n.assignment(), nil)
			if no == nil {
				w.t.Fatalf("%s waits, but fits %v\n%s", id, n.assignment(), w.engine)
			}
			if !n.exclude(no) {
				break
			}
			w.engine.renominate(&n, nil)
		}
	}
}

func (w *roomWorld) end(id WorkloadID) {
	delete(w.cards.taken, id)
	delete(w.running, id)
	delete(w.specs, id)
	delete(w.leaving, id)
	w.engine.Apply(WorkloadRemoved{id})
	w.engine.Apply(RoomChanged{})
}

func (w *roomWorld) release(id WorkloadID) {
	delete(w.cards.taken, id)
	delete(w.running, id)
	delete(w.leaving, id)
	w.engine.Apply(Released{id})
	w.engine.Apply(RoomChanged{})
}

func pickID(t *rapid.T, set map[WorkloadID]bool) WorkloadID {
	var all []WorkloadID
	for id := range set {
		all = append(all, id)
	}
	if len(all) == 0 {
		return ""
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	return all[rapid.IntRange(0, len(all)-1).Draw(t, "pick")]
}

func TestCardsAreNeverOvercommittedAndNobodyWaitsWhoCouldGo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newRoomWorld(t, HoleReserveAfter(10*time.Minute))
		for range 12 {
			switch w.draw("step", 5) {
			case 0, 1, 2:
				w.submit()
			case 3:
				if id := pickID(t, w.running); id != "" {
					w.end(id)
				}
			default:
				if id := pickID(t, w.leaving); id != "" {
					w.release(id)
				}
			}
			w.decide()
		}
		for round := 0; ; round++ {
			if round > 300 {
				t.Fatalf("still evicting without new input\n%s", w.engine)
			}
			if id := pickID(t, w.leaving); id != "" {
				w.release(id)
			} else if len(w.decide()) == 0 {
				break
			} else {
				continue
			}
			w.decide()
		}
	})
}

func TestEvictionForRoomTakesNobodyWhoCouldStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newRoomWorld(t)
		for range 10 {
			w.submit()
		}
		w.decide()
		for id := range w.leaving {
			w.release(id)
		}
		w.decide()
		if len(w.leaving) > 0 {
			return
		}
		spec := w.submit()
		w.specs[spec.ID] = spec
		var victims []WorkloadID
		for _, d := range w.engine.Decide(w.cards) {
			if ev, ok := d.(Evict); ok && ev.For == spec.ID {
				victims = append(victims, ev.Victim)
			} else if ok {
				return // somebody else evicts too
			}
		}
		x := w.engine.works[spec.ID]
		if len(victims) == 0 || x.hold == nil || x.hold.state != promised {
			return
		}
		// With one victim back, the rules, the budget or the cards do not allow it.
		h := x.hold
		for _, kept := range victims {
			v := w.engine.works[kept]
			w.engine.imagineBack(v)
			var others []WorkloadID
			reclaims := false
			for _, id := range victims {
				if id != kept {
					others = append(others, id)
					reclaims = reclaims || w.engine.works[id].hold.reason != InClusterQueue
				}
			}
			// Who takes back from other queues may not borrow meanwhile.
			budget := true
			for _, c := range h.charges {
				budget = budget && c.cell.available(planned) >= 0 && !(reclaims && c.cell.borrowed(planned) > 0)
			}
			_, no := w.cards.Place(x.workload(), h.assignment, others)
			w.engine.imagineGone(v)
			if budget && no == nil && v.hold.reason == InClusterQueue {
				t.Fatalf("%s need not go for %s", kept, spec.ID)
			}
		}
	})
}
