package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gpu/sluice/quota/internal/reach"
)

// Workloads come in shapes that nobody asked for before, wait, are admitted, evicted,
// promised and kept places, and go in whatever state they are in.
func TestNothingIsKeptOfWorkloadsThatCameAndWent(t *testing.T) {
	cards := &toyCards{taken: map[WorkloadID][]toyPiece{}}
	for c := range 6 {
		cards.cards = append(cards.cards, &toyCard{fmt.Sprint("n/", c), "f", "mem", 40})
	}
	e, now := New(HoleReserveAfter(time.Minute)), storyStart
	e.Apply(Tick{Now: now})
	e.Apply(FlavorChanged{FlavorSpec{Name: "f"}})
	for i := range 3 {
		q := ClusterQueue{Name: QueueName(fmt.Sprint("q", i)), Cohort: "c", Namespaces: Selector{Everything: true}}
		q.Groups = []ResourceGroup{{Resources: []Resource{"mem"}, Flavors: []FlavorQuotas{{"f", []Quota{{Nominal: Amount(100 - 30*i)}}}}}}
		q.Preemption.WithinQueue, q.Preemption.Reclaim = LowerPriority, AnyPriority
		e.Apply(QueueChanged{q})
		e.Apply(LocalQueueChanged{LocalQueue{Name: LocalQueueName{"ns", string(q.Name)}, Queue: q.Name}})
	}
	r := rand.New(rand.NewPCG(1, 2))
	var live []WorkloadID
	born, evicted, waits := 0, 0, 0
	remove := func(i int) {
		id := live[i]
		live = slices.Delete(live, i, i+1)
		delete(cards.taken, id)
		e.Apply(WorkloadRemoved{id})
	}
	decide := func() {
		now = now.Add(20 * time.Second)
		e.Apply(Tick{Now: now})
		e.Apply(RoomChanged{})
		for _, d := range e.Decide(cards) {
			switch d := d.(type) {
			case Evict:
				evicted++
				if r.IntN(4) > 0 {
					delete(cards.taken, d.Victim)
					e.Apply(Released{d.Victim})
				}
			case Wait:
				waits++
			}
		}
	}
	churn := func(n int) int {
		for range n {
			born++
			id := WorkloadID(fmt.Sprintf("ns/w%d", born))
			e.Apply(WorkloadChanged{Workload{ID: id, LocalQueue: LocalQueueName{"ns", fmt.Sprint("q", r.IntN(3))}, Priority: int32(r.IntN(4)), QueuedAt: now,
				RoomKey: fmt.Sprint(r.IntN(5000)), PodSets: []PodSet{{Name: "main", Count: int32(1 + r.IntN(3)), Requests: Amounts{"mem": Amount(1 + r.IntN(40))}}}}})
			live = append(live, id)
			decide()
			for len(live) > 15+r.IntN(15) {
				remove(r.IntN(len(live)))
			}
		}
		for len(live) > 0 {
			remove(len(live) - 1)
		}
		decide()
		return reach.Count(e)
	}
	first := churn(1_000)
	last := churn(10_000)
	if evicted < 100 || waits < 100 {
		t.Fatalf("%d were evicted, %d waited", evicted, waits)
	}
	if len(e.works)+len(e.shapes)+len(e.roomWaiters)+len(e.roomLine)+len(e.timers)+len(cards.taken) > 0 {
		t.Errorf("left are %d workloads, %d shapes, %d and %d who wait for room, %d timers and places %v",
			len(e.works), len(e.shapes), len(e.roomWaiters), len(e.roomLine), len(e.timers), cards.taken)
	}
	if last > first+first/2 {
		t.Errorf("after 1,000 workloads %d things can be reached, after 10,000 more %d", first, last)
	}
}
