package engine

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// bytesReader hands out small choices from fuzzed bytes.
type bytesReader struct{ data []byte }

func (r *bytesReader) next(n int) int {
	if len(r.data) == 0 {
		return 0
	}
	b := r.data[0]
	r.data = r.data[1:]
	return int(b) % n
}

// amounts that have broken things before.
var nastyAmounts = []Amount{0, 1, 2, 3, 5, 8, -1, Unlimited, Unlimited - 1, Unlimited / 2, math.MinInt64, 1 << 62}

func (r *bytesReader) amount() Amount { return nastyAmounts[r.next(len(nastyAmounts))] }

func (r *bytesReader) limit() *Amount {
	if r.next(2) == 0 {
		return nil
	}
	a := r.amount()
	return &a
}

func (r *bytesReader) groups() []ResourceGroup {
	var groups []ResourceGroup
	for range r.next(3) {
		g := ResourceGroup{}
		for i := range 1 + r.next(2) {
			g.Resources = append(g.Resources, Resource(fmt.Sprintf("r%d", (i+r.next(3))%3)))
		}
		for i := range 1 + r.next(2) {
			f := FlavorQuotas{Flavor: FlavorName(fmt.Sprintf("f%d", i))}
			for range len(g.Resources) - r.next(5)/4 {
				f.Quotas = append(f.Quotas, Quota{r.amount(), r.limit(), r.limit()})
			}
			g.Flavors = append(g.Flavors, f)
		}
		groups = append(groups, g)
	}
	return groups
}

func (r *bytesReader) id() WorkloadID { return WorkloadID(fmt.Sprintf("w%d", r.next(6))) }

func (r *bytesReader) queue() string { return fmt.Sprintf("q%d", r.next(3)) }

func (r *bytesReader) cohort() CohortName {
	return CohortName([]string{"", "c0", "c1", "c2"}[r.next(4)])
}

func (r *bytesReader) weight() *Weight {
	w := []Weight{0, 1, OneWeight, -5, math.MaxInt64}[r.next(5)]
	return &w
}

func (r *bytesReader) podSets() []PodSet {
	var sets []PodSet
	for range 1 + r.next(2) {
		ps := PodSet{
			Name: "s", Count: []int32{1, 2, 0, -1, math.MaxInt32}[r.next(5)], MinCount: []int32{0, 0, 1, -1}[r.next(4)],
			Requests: Amounts{"r0": r.amount()},
		}
		if r.next(2) == 0 {
			ps.Requests["r1"] = r.amount()
		}
		if r.next(4) == 0 {
			ps.Once = Amounts{"r0": r.amount()}
		}
		if r.next(4) == 0 {
			ps.ByFlavor = map[FlavorName]Amounts{"f1": {"r0": r.amount()}}
		}
		sets = append(sets, ps)
	}
	return sets
}

func (r *bytesReader) admitted() Admitted {
	return Admitted{
		ID: r.id(), At: storyStart.Add(time.Duration(r.next(9)) * time.Second), Reserved: r.next(3) == 0, Evicting: r.next(4) == 0,
		Assignment: Assignment{Queue: QueueName(r.queue()), PodSets: []PodSetAssignment{{
			Name: "s", Count: 1,
			Flavors: map[Resource]FlavorName{"r0": FlavorName(fmt.Sprintf("f%d", r.next(3))), "r1": "f0"},
			Usage:   Amounts{"r0": r.amount(), "r1": r.amount()},
		}}},
	}
}

func (r *bytesReader) workload(now time.Time) Workload {
	w := Workload{
		ID: r.id(), LocalQueue: LocalQueueName{"ns", r.queue()}, Priority: int32(r.next(4)) - 1,
		QueuedAt: storyStart.Add(time.Duration(r.next(9)) * time.Second), PodSets: r.podSets(),
		Inactive: r.next(8) == 0, PreemptionGated: r.next(6) == 0,
	}
	switch r.next(10) {
	case 0:
		w.Hold = "held"
	case 1:
		w.Refused = "refused"
	case 2:
		w.NotBefore = now.Add(time.Minute)
	}
	return w
}

func (r *bytesReader) event(now *time.Time) Event {
	switch r.next(20) {
	case 0, 1:
		return QueueChanged{ClusterQueue{
			Name: QueueName(r.queue()), Cohort: r.cohort(), Groups: r.groups(), Namespaces: Selector{Everything: r.next(6) > 0},
			Strategy: []Strategy{BestEffortFIFO, StrictFIFO}[r.next(2)], Stop: []StopPolicy{"", "", "", Hold, HoldAndDrain}[r.next(5)],
			Weight: r.weight(), UsageBased: r.next(3) == 0,
			Preemption: Preemption{
				WithinQueue:  []PreemptionPolicy{Never, LowerPriority, LowerOrNewerEqualPriority}[r.next(3)],
				Reclaim:      []PreemptionPolicy{Never, LowerPriority, AnyPriority}[r.next(3)],
				BorrowWithin: []PreemptionPolicy{Never, LowerPriority}[r.next(2)],
			},
		}}
	case 2:
		return QueueRemoved{QueueName(r.queue())}
	case 3:
		return CohortChanged{Cohort{Name: r.cohort(), Parent: r.cohort(), Groups: r.groups(), Weight: r.weight()}}
	case 4:
		return CohortRemoved{r.cohort()}
	case 5:
		return FlavorChanged{FlavorSpec{Name: FlavorName(fmt.Sprintf("f%d", r.next(3))), Elastic: r.next(4) == 0}}
	case 6:
		return FlavorRemoved{FlavorName(fmt.Sprintf("f%d", r.next(3)))}
	case 7:
		return LocalQueueChanged{LocalQueue{Name: LocalQueueName{"ns", r.queue()}, Queue: QueueName(r.queue()), Weight: r.weight(), Stop: []StopPolicy{"", "", HoldAndDrain}[r.next(3)]}}
	case 8:
		return LocalQueueRemoved{LocalQueueName{"ns", r.queue()}}
	case 9:
		return NamespaceChanged{"ns", map[string]string{"a": "b"}}
	case 10:
		return WorkloadRemoved{r.id()}
	case 11:
		return r.admitted()
	case 12:
		return AdmissionFailed{r.id(), now.Add(time.Second)}
	case 13:
		return Evicting{r.id()}
	case 14:
		return EvictionFailed{r.id()}
	case 15:
		return Released{r.id()}
	case 16:
		*now = now.Add(time.Duration(r.next(600)) * time.Second)
		return Tick{*now}
	default:
		return WorkloadChanged{r.workload(*now)}
	}
}

// FuzzEvents applies any events in any order: nothing panics, nothing goes below
// zero, two engines told the same say the same, and Decide comes to an end.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("a queue, a workload, and what may become of them"), byte(0))
	f.Add([]byte{5, 0, 0, 1, 1, 0, 0, 0, 1, 1, 3, 0, 0, 7, 0, 0, 2, 0, 19, 0, 0, 1, 1, 0, 0, 1, 2, 10, 0}, byte(1))
	f.Add([]byte{11, 0, 0, 0, 0, 0, 7, 7, 11, 1, 0, 0, 0, 0, 7, 7, 10, 0, 10, 1, 0, 0, 1, 1}, byte(2))
	f.Fuzz(fuzzOnce)
}

func fuzzOnce(t *testing.T, data []byte, kind byte) {
	if len(data) > 2000 {
		return
	}
	var opts []Option
	if kind&1 != 0 {
		opts = append(opts, FairSharing())
	}
	if kind&2 != 0 {
		opts = append(opts, WithAdmissionFairSharing(AdmissionFairSharing{HalfLife: time.Minute}))
	}
	if kind&4 != 0 {
		opts = append(opts, IgnoreUndeclared("r0"))
	}
	a, b := New(opts...), New(opts...)
	r := &bytesReader{data}
	now := storyStart
	for len(r.data) > 0 {
		ev := r.event(&now)
		a.Apply(ev)
		b.Apply(ev)
		if r.next(3) == 0 {
			if x, y := fmt.Sprint(a.Decide(nil)), fmt.Sprint(b.Decide(nil)); x != y {
				t.Fatalf("same events, but\n%s\nand\n%s", x, y)
			}
			checkSane(t, a)
		}
	}
	if x, y := a.String(), b.String(); x != y {
		t.Fatalf("same events, but\n%s\nand\n%s", x, y)
	}
	// Nothing leaks: when all is taken away, nothing is left.
	for i := range 6 {
		a.Apply(WorkloadRemoved{WorkloadID(fmt.Sprintf("w%d", i))})
	}
	for i := range 3 {
		a.Apply(LocalQueueRemoved{LocalQueueName{"ns", fmt.Sprintf("q%d", i)}})
		a.Apply(QueueRemoved{QueueName(fmt.Sprintf("q%d", i))})
		a.Apply(CohortRemoved{CohortName(fmt.Sprintf("c%d", i))})
	}
	a.Decide(nil)
	if n := len(a.works) + len(a.queues) + len(a.cohorts) + len(a.locals) + len(a.shapes) + len(a.trees) + len(a.timers) + len(a.roomWaiters) + a.leaving; n != 0 {
		t.Fatalf("left over: %d works, %d queues, %d cohorts, %d local queues, %d shapes, %d trees, %d timers, %d leaving",
			len(a.works), len(a.queues), len(a.cohorts), len(a.locals), len(a.shapes), len(a.trees), len(a.timers), a.leaving)
	}
}

func checkSane(t *testing.T, e *Engine) {
	for _, q := range e.queues {
		for _, c := range q.node.order {
			if c.held < 0 || c.planned < 0 {
				t.Fatalf("%s %v: %d held, %d planned", q.name, c.FlavorResource, c.held, c.planned)
			}
			var sum Amount
			for _, w := range q.holders {
				for _, ch := range w.hold.charges {
					if ch.cell == c {
						sum = sum.Add(ch.amount)
					}
				}
			}
			if sum != c.held {
				t.Fatalf("%s %v: %d held, its holders have %d", q.name, c.FlavorResource, c.held, sum)
			}
		}
		e.QueueStatus(q.name)
		e.Waiting(q.name, 0, 0)
	}
	for _, n := range e.cohorts {
		for _, c := range n.order {
			if c.held < 0 || c.planned < 0 {
				t.Fatalf("cohort %s %v: %d held, %d planned", n.name, c.FlavorResource, c.held, c.planned)
			}
		}
		e.CohortStatus(CohortName(n.name))
	}
	for id := range e.works {
		if s := e.Why(id).String(); s == "" {
			t.Fatalf("%s: no reason at all", id)
		}
	}
	e.NextTick()
}
