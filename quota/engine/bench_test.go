package engine

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// The benchmarks of `make bench-engine`: go test -run '^$' -bench . -benchtime 20x.
// Besides the mean they report the quickest run, which says more where others use
// the machine too. Each first checks, outside the clock,
// that what it measures is right: against the oracle where the oracle can bear the
// size, otherwise against what the case was built to give.

// benchWorld builds engines for benchmarks.
type benchWorld struct {
	*Engine
	t0 time.Time
}

func newBench(opts ...Option) *benchWorld {
	b := &benchWorld{Engine: New(opts...), t0: storyStart}
	b.Apply(Tick{Now: b.t0})
	b.Apply(FlavorChanged{FlavorSpec{Name: "f"}})
	return b
}

func gpus(nominal Amount, borrow, lend *Amount) []ResourceGroup {
	return []ResourceGroup{{
		Resources: []Resource{"gpu"},
		Flavors:   []FlavorQuotas{{Flavor: "f", Quotas: []Quota{{Nominal: nominal, Borrow: borrow, Lend: lend}}}},
	}}
}

func (b *benchWorld) queue(name, cohort string, nominal Amount, p Preemption) {
	b.Apply(QueueChanged{ClusterQueue{
		Name: QueueName(name), Cohort: CohortName(cohort), Groups: gpus(nominal, nil, nil),
		Namespaces: Selector{Everything: true}, Preemption: p,
	}})
	b.Apply(LocalQueueChanged{LocalQueue{Name: LocalQueueName{"ns", name}, Queue: QueueName(name)}})
}

func benchWorkload(id, queue string, priority int32, age int, gpu Amount) Workload {
	return Workload{
		ID: WorkloadID(id), LocalQueue: LocalQueueName{"ns", queue}, Priority: priority,
		QueuedAt: storyStart.Add(time.Duration(age) * time.Millisecond),
		PodSets:  []PodSet{{Name: "main", Count: 1, Requests: Amounts{"gpu": gpu}}},
	}
}

func (b *benchWorld) submit(w Workload) { b.Apply(WorkloadChanged{w}) }

func (b *benchWorld) hold(w Workload) {
	b.submit(w)
	b.Apply(Admitted{ID: w.ID, At: b.t0, Assignment: Assignment{Queue: QueueName(w.LocalQueue.Name), PodSets: []PodSetAssignment{{
		Name: "main", Count: 1, Flavors: map[Resource]FlavorName{"gpu": "f"}, Usage: Amounts{"gpu": w.PodSets[0].Requests["gpu"]},
	}}}})
}

// admitHeads has n queues in cohorts, each with one head that fits: half within
// its own quota, half by borrowing.
func admitHeads(cohorts, n int, opts ...Option) *benchWorld {
	b := newBench(opts...)
	for i := range n {
		q := fmt.Sprintf("q%04d", i)
		b.queue(q, fmt.Sprintf("c%02d", i%cohorts), Amount(1+i/cohorts%2), Preemption{})
		b.submit(benchWorkload("w-"+q, q, int32(i%3), i, Amount(2-i/cohorts%2)))
	}
	b.settle()
	return b
}

// benchAdmit measures one Decide over heads that all fit, or all but those for
// which nothing is left to borrow.
func benchAdmit(b *testing.B, cohorts, n int, opts ...Option) {
	small := admitHeads(cohorts, 40, opts...)
	checkAgainstOracle(b, small, small.Decide(nil))
	if got := countAdmits(admitHeads(cohorts, n, opts...).Decide(nil)); got != n {
		b.Fatalf("%d of %d heads admitted", got, n)
	}
	var l least
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		w := admitHeads(cohorts, n, opts...)
		b.StartTimer()
		l.begin()
		w.Decide(nil)
		l.end()
	}
	l.report(b)
}

func countAdmits(ds []Decision) int {
	n := 0
	for _, d := range ds {
		if _, ok := d.(Admit); ok {
			n++
		}
	}
	return n
}

// checkAgainstOracle follows decisions with the oracle.
func checkAgainstOracle(b testing.TB, w *benchWorld, ds []Decision) {
	o := oracleOf(w.Engine)
	for id, work := range w.works {
		ow := &oracleWork{spec: *work.workload()}
		o.works[id] = ow
		ow.spec.LocalQueue = work.local.name
		if h := work.hold; h != nil && before(ds, id) {
			ow.state, ow.queue, ow.use, ow.at = "holding", h.queue.name, map[FlavorResource]int64{}, int64(h.at)
			for _, c := range h.charges {
				ow.use[c.cell.FlavorResource] += int64(c.amount)
			}
		}
	}
	if err := o.follow(ds, w.t0.UnixNano(), false); err != nil {
		b.Fatal(err)
	}
	for _, q := range w.queues {
		for _, c := range q.node.order {
			n := queueNode(q.name)
			if got, want := int64(c.held), o.used(held, n, c.FlavorResource); got != want {
				b.Fatalf("%s uses %d, should use %d", q.name, got, want)
			}
		}
	}
}

// before says whether a workload held quota before decisions were taken.
func before(ds []Decision, id WorkloadID) bool {
	for _, d := range ds {
		switch d := d.(type) {
		case Admit:
			if d.ID == id {
				return false
			}
		case Wait:
			if d.ID == id {
				return false
			}
		}
	}
	return true
}

func oracleOf(e *Engine) *oracle {
	o := &oracle{cohorts: map[CohortName]Cohort{}, queues: map[QueueName]ClusterQueue{}, works: map[WorkloadID]*oracleWork{}}
	for name, q := range e.queues {
		o.queues[name] = q.spec
	}
	if e.opts.fair {
		o.fair = e.opts.strategies
	}
	o.dirty()
	return o
}

func BenchmarkAdmit500HeadsOneCohort(b *testing.B)     { benchAdmit(b, 1, 500) }
func BenchmarkAdmit500HeadsOneCohortFair(b *testing.B) { benchAdmit(b, 1, 500, FairSharing()) }
func BenchmarkAdmit1000HeadsTenCohorts(b *testing.B)   { benchAdmit(b, 10, 1000) }
func BenchmarkAdmit1000HeadsTenCohortsFair(b *testing.B) {
	benchAdmit(b, 10, 1000, FairSharing())
}

// preemptVictims has one head that needs what 400 workloads of ten other queues
// have borrowed.
func preemptVictims(victims int, opts ...Option) *benchWorld {
	b := newBench(opts...)
	const borrowers = 10
	b.queue("lender", "c", Amount(victims), Preemption{Reclaim: AnyPriority, WithinQueue: LowerPriority})
	for i := range borrowers {
		b.queue(fmt.Sprintf("q%d", i), "c", 0, Preemption{})
	}
	for i := range victims {
		b.hold(benchWorkload(fmt.Sprintf("v%03d", i), fmt.Sprintf("q%d", i%borrowers), int32(i%5), i, 1))
	}
	b.submit(benchWorkload("head", "lender", 10, 0, Amount(victims)))
	b.settle()
	return b
}

func benchPreempt(b *testing.B, opts ...Option) {
	const victims = 400
	w := preemptVictims(victims, opts...)
	ds := w.Decide(nil)
	if evicted := len(ds) - 1; evicted != victims {
		b.Fatalf("%d evicted", evicted)
	}
	small := preemptVictims(40, opts...)
	checkAgainstOracle(b, small, small.Decide(nil))
	var l least
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		w := preemptVictims(victims, opts...)
		b.StartTimer()
		l.begin()
		w.Decide(nil)
		l.end()
	}
	l.report(b)
}

func BenchmarkPreempt400Victims(b *testing.B)     { benchPreempt(b) }
func BenchmarkPreempt400VictimsFair(b *testing.B) { benchPreempt(b, FairSharing()) }

const (
	bigQueues   = 1000
	bigAdmitted = 50_000
	bigPending  = 100_000
)

// bigCluster is 1,000 queues of one cohort, each full with 50 workloads of one
// GPU, and 100 more waiting before each.
func bigCluster(opts ...Option) *benchWorld {
	b := newBench(opts...)
	names := make([]string, bigQueues)
	for i := range bigQueues {
		names[i] = fmt.Sprintf("q%04d", i)
		b.queue(names[i], "c", bigAdmitted/bigQueues, Preemption{WithinQueue: LowerPriority, Reclaim: AnyPriority})
	}
	b.Decide(nil)
	for i := range bigAdmitted {
		b.hold(benchWorkload(fmt.Sprintf("ns/running-%05d", i), names[i%bigQueues], 0, i, 1))
	}
	for i := range bigPending {
		b.submit(benchWorkload(fmt.Sprintf("ns/waiting-%06d", i), names[i%bigQueues], 0, i, 1))
	}
	b.Decide(nil)
	return b
}

// BenchmarkOneChange ends one workload of a full cluster and admits another.
func BenchmarkOneChange(b *testing.B) { benchOneChange(b) }

// BenchmarkOneChangeFair is the same with fair sharing, where any change of a
// share could let somebody evict.
func BenchmarkOneChangeFair(b *testing.B) { benchOneChange(b, FairSharing()) }

func benchOneChange(b *testing.B, opts ...Option) {
	w := bigCluster(opts...)
	ended := 0
	one := func() []Decision {
		w.Apply(WorkloadRemoved{WorkloadID(fmt.Sprintf("ns/running-%05d", ended))})
		ended++
		ds := w.Decide(nil)
		a, ok := ds[0].(Admit)
		if !ok {
			b.Fatalf("decided %v", ds)
		}
		w.Apply(Admitted{ID: a.ID, Assignment: a.Assignment, At: w.t0})
		return ds
	}
	// The first to wait before the queue whose workload ended is next, and
	// nothing else happens. (It also warms the caches.)
	for i := range 100 {
		ds := one()
		if a, ok := ds[0].(Admit); !ok || countAdmits(ds) != 1 || a.ID != WorkloadID(fmt.Sprintf("ns/waiting-%06d", i)) {
			b.Fatalf("decided %v", ds)
		}
	}
	var l least
	b.ReportAllocs()
	for b.Loop() {
		if ended == bigAdmitted {
			b.StopTimer()
			w, ended = bigCluster(opts...), 0
			b.StartTimer()
		}
		l.begin()
		one()
		l.end()
	}
	l.report(b)
}

// backlog is a queue before which 100,000 wait that do not fit, and one at the
// end that does. In the first kind the many are alike, in the second no two are.
func backlog(distinct bool) *benchWorld {
	b := newBench()
	b.queue("q", "", 10, Preemption{})
	b.Decide(nil)
	b.hold(benchWorkload("running", "q", 0, 0, 8))
	for i := range bigPending - 1 {
		ask := Amount(3)
		if distinct {
			ask += Amount(i % 8)
		}
		w := benchWorkload(fmt.Sprintf("waiting-%06d", i), "q", 0, i, ask)
		if distinct {
			w.RoomKey = w.LocalQueue.Name + string(w.ID)
		}
		b.submit(w)
	}
	b.submit(benchWorkload("last", "q", 0, bigPending, 1))
	return b
}

func benchBacklogFirst(b *testing.B, distinct bool) {
	var l least
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		w := backlog(distinct)
		b.StartTimer()
		l.begin()
		ds := w.Decide(nil)
		l.end()
		if admitOf(ds) != "last" {
			b.Fatalf("%s admitted", admitOf(ds))
		}
	}
	l.report(b)
}

func admitOf(ds []Decision) WorkloadID {
	for _, d := range ds {
		if a, ok := d.(Admit); ok {
			return a.ID
		}
	}
	return ""
}

// benchBacklogAfter ends the one that fitted and sends another.
func benchBacklogAfter(b *testing.B, distinct bool) {
	w := backlog(distinct)
	w.Decide(nil)
	last, n := WorkloadID("last"), 0
	var l least
	b.ReportAllocs()
	for b.Loop() {
		l.begin()
		w.Apply(WorkloadRemoved{last})
		n++
		next := benchWorkload(fmt.Sprintf("next-%d", n), "q", 0, bigPending+n, 1)
		w.Apply(WorkloadChanged{next})
		if ds := w.Decide(nil); admitOf(ds) != next.ID {
			b.Fatalf("decided %v", ds)
		}
		last = next.ID
		l.end()
	}
	l.report(b)
}

func BenchmarkBacklog(b *testing.B) {
	b.Run("first", func(b *testing.B) { benchBacklogFirst(b, false) })
	b.Run("after", func(b *testing.B) { benchBacklogAfter(b, false) })
	b.Run("distinct/first", func(b *testing.B) { benchBacklogFirst(b, true) })
	b.Run("distinct/after", func(b *testing.B) { benchBacklogAfter(b, true) })
}

// BenchmarkMemory reports the heap of the big cluster.
func BenchmarkMemory(b *testing.B) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	w := bigCluster()
	runtime.GC()
	runtime.ReadMemStats(&after)
	for b.Loop() {
		runtime.KeepAlive(w)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
}

// least reports the quickest run as well: what it costs when nobody else uses
// the machine.
type least struct {
	start time.Time
	best  time.Duration
}

func (l *least) begin() { l.start = time.Now() }

func (l *least) end() {
	if d := time.Since(l.start); l.best == 0 || d < l.best {
		l.best = d
	}
}

func (l *least) report(b *testing.B) { b.ReportMetric(float64(l.best.Microseconds()), "least-us") }
