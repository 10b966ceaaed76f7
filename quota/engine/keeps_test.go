package engine

import (
	"testing"
	"time"
)

// choosy is cards of which one workload never finds a place to be kept. It counts
// how often the places of another are touched.
type choosy struct {
	*toyCards
	never, other WorkloadID
	touched      int
}

func (f *choosy) Place(w *Workload, a Assignment, without []WorkloadID) (Placement, *NoRoom) {
	p, no := f.toyCards.Place(w, a, without)
	if no != nil && w.ID == f.never {
		no.Keep = func(WorkloadID, ...WorkloadID) (Placement, bool) { return Placement{}, false }
	}
	return p, no
}

func (f *choosy) Take(id WorkloadID, p Placement) {
	if id == f.other {
		f.touched++
	}
	f.toyCards.Take(id, p)
}

func (f *choosy) Drop(id WorkloadID) {
	if id == f.other {
		f.touched++
	}
	f.toyCards.Drop(id)
}

// keepingEngine has one queue with ample quota, and keeps places after a minute.
func keepingEngine() *Engine {
	e := New(HoleReserveAfter(time.Minute))
	e.Apply(Tick{Now: storyStart})
	e.Apply(FlavorChanged{FlavorSpec{Name: "f"}})
	q := ClusterQueue{Name: "q", Namespaces: Selector{Everything: true}}
	q.Groups = []ResourceGroup{{Resources: []Resource{"mem"}, Flavors: []FlavorQuotas{{"f", []Quota{{Nominal: 1000}}}}}}
	e.Apply(QueueChanged{q})
	e.Apply(LocalQueueChanged{LocalQueue{Name: LocalQueueName{"ns", "q"}, Queue: "q"}})
	return e
}

// A place is kept for a workload. One that asks alike and is older comes back, evicted,
// and goes before it: of those who ask alike the first alone is tried, so the place is
// kept for him.
func TestAPlaceThatIsKeptGoesToWhoGoesFirstOfThoseAlike(t *testing.T) {
	f := &toyCards{taken: map[WorkloadID][]toyPiece{}}
	f.cards = []*toyCard{{"node-1/0", "f", "mem", 80}}
	e, now := keepingEngine(), storyStart
	come := func(id WorkloadID, priority int32, size Amount, queued time.Time) {
		e.Apply(WorkloadChanged{Workload{ID: id, LocalQueue: LocalQueueName{"ns", "q"}, Priority: priority, QueuedAt: queued,
			PodSets: []PodSet{{Name: "main", Count: 1, Requests: Amounts{"mem": size}}}}})
		e.Decide(f)
	}
	come("runs", 9, 10, now)
	come("young", 1, 80, now.Add(time.Minute))
	now = now.Add(5 * time.Minute)
	e.Apply(Tick{Now: now})
	e.Decide(f)
	if len(f.taken["young"]) != 1 {
		t.Fatalf("no place is kept: %v", f.taken)
	}
	come("old", 1, 80, storyStart)
	e.Apply(RoomChanged{})
	e.Decide(f)
	if len(f.taken["old"]) != 1 || len(f.taken["young"]) != 0 {
		t.Errorf("the place is kept for %v", f.taken)
	}
	delete(f.taken, "runs")
	e.Apply(WorkloadRemoved{"runs"})
	e.Apply(RoomChanged{})
	for _, d := range e.Decide(f) {
		if a, ok := d.(Admit); ok && a.ID == "old" {
			return
		}
	}
	t.Errorf("nobody has the place that is free\n%s", e)
}

// Of an autoscaled flavor a preemptor is promised what its victim leaves. That node goes
// with the victim: it is admitted all the same, and without a place that is not there.
func TestAPreemptorOfAnElasticFlavorIsNotHeldToAPlaceThatIsGone(t *testing.T) {
	for name, gone := range map[string]bool{"the node goes": true, "the node stays": false} {
		f := &toyCards{taken: map[WorkloadID][]toyPiece{}}
		f.cards = []*toyCard{{"node-1/0", "f", "mem", 80}, {"node-2/0", "f", "mem", 10}}
		e := New()
		e.Apply(Tick{Now: storyStart})
		e.Apply(FlavorChanged{FlavorSpec{Name: "f", Elastic: true}})
		q := ClusterQueue{Name: "q", Namespaces: Selector{Everything: true}}
		q.Groups = []ResourceGroup{{Resources: []Resource{"mem"}, Flavors: []FlavorQuotas{{"f", []Quota{{Nominal: 80}}}}}}
		q.Preemption.WithinQueue = LowerPriority
		e.Apply(QueueChanged{q})
		e.Apply(LocalQueueChanged{LocalQueue{Name: LocalQueueName{"ns", "q"}, Queue: "q"}})
		for i, id := range []WorkloadID{"low", "high"} {
			e.Apply(WorkloadChanged{Workload{ID: id, LocalQueue: LocalQueueName{"ns", "q"}, Priority: int32(i), QueuedAt: storyStart,
				PodSets: []PodSet{{Name: "main", Count: 1, Requests: Amounts{"mem": 80}}}}})
			e.Decide(f)
		}
		if len(f.taken["high"]) != 1 {
			t.Fatalf("%s: the preemptor was promised %v", name, f.taken)
		}
		if gone {
			f.cards = f.cards[1:]
		}
		delete(f.taken, "low")
		e.Apply(Released{"low"})
		e.Apply(RoomChanged{})
		var admit *Admit
		for _, d := range e.Decide(f) {
			if a, ok := d.(Admit); ok && a.ID == "high" {
				admit = &a
			}
		}
		if admit == nil || (admit.Placement == nil) != gone || (len(f.taken["high"]) == 0) != gone {
			t.Errorf("%s: admitted is %v, taken %v", name, admit, f.taken)
		}
	}
}

// A place that is given up and taken again would be free for a moment, and wake all
// that wait for room, at each look.
func TestAPlaceIsNotGivenUpForOneOfHigherPriorityThatHasNoneToKeep(t *testing.T) {
	f := &choosy{toyCards: &toyCards{taken: map[WorkloadID][]toyPiece{}}, never: "high", other: "low"}
	f.cards = []*toyCard{{"node-1/0", "f", "mem", 80}}
	e, now := keepingEngine(), storyStart
	come := func(id WorkloadID, priority int32, size Amount) {
		e.Apply(WorkloadChanged{Workload{ID: id, LocalQueue: LocalQueueName{"ns", "q"}, Priority: priority, QueuedAt: now,
			PodSets: []PodSet{{Name: "main", Count: 1, Requests: Amounts{"mem": size}}}}})
		e.Decide(f)
	}
	look := func() {
		now = now.Add(2 * time.Minute)
		e.Apply(Tick{Now: now})
		e.Decide(f)
	}
	come("runs", 9, 10)
	come("low", 1, 80)
	look()
	if f.touched != 1 {
		t.Fatalf("the place of the lower was touched %d times, not taken once", f.touched)
	}
	come("high", 5, 80)
	for range 3 {
		look()
	}
	if f.touched != 1 || len(f.taken["low"]) != 1 || len(f.taken["high"]) != 0 {
		t.Errorf("the place of the lower was touched %d times; taken is %v", f.touched, f.taken)
	}
}
