package engine

import (
	"flag"
	"fmt"
	"reflect"
	"sort"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// worldSize bounds a generated world.
type worldSize struct {
	levels, cohorts, queues, flavors, resources, workloads, steps int
}

// world is an engine with the oracle beside it.
type world struct {
	t       *rapid.T
	size    worldSize
	options []Option
	engine  *Engine
	twin    *Engine // told the same; must answer the same
	oracle  *oracle
	now     time.Time
	born    int
	evicts  bool // some queue may evict
	cuts    bool // some quota was lowered, or an admission came from outside
}

func newWorld(t *rapid.T, size worldSize, fair, evicts bool) *world {
	w := &world{t: t, size: size, evicts: evicts, now: storyStart}
	w.oracle = &oracle{cohorts: map[CohortName]Cohort{}, queues: map[QueueName]ClusterQueue{}, works: map[WorkloadID]*oracleWork{}}
	if fair {
		w.options = append(w.options, FairSharing())
		w.oracle.fair = []FairStrategy{LessThanOrEqualToFinalShare, LessThanInitialShare}
	}
	w.oracle.dirty()
	w.engine, w.twin = New(w.options...), New(w.options...)
	w.apply(Tick{Now: w.now})
	for f := range size.flavors {
		w.apply(FlavorChanged{FlavorSpec{Name: FlavorName(fmt.Sprintf("f%d", f))}})
	}
	for range size.cohorts {
		w.changeCohort()
	}
	for i := range size.queues {
		w.changeQueue(i)
	}
	return w
}

func (w *world) apply(ev Event) {
	w.engine.Apply(ev)
	w.twin.Apply(ev)
}

func (w *world) draw(label string, n int) int { return rapid.IntRange(0, n).Draw(w.t, label) }

func (w *world) limit(label string) *Amount {
	if w.draw(label+"?", 2) > 0 {
		return nil
	}
	a := Amount(w.draw(label, 8))
	return &a
}

func (w *world) groups(limits bool) []ResourceGroup {
	g := ResourceGroup{}
	for r := range w.size.resources {
		g.Resources = append(g.Resources, Resource(fmt.Sprintf("r%d", r)))
	}
	for f := range w.size.flavors {
		if f > 0 && w.draw("flavor", 3) == 0 {
			continue
		}
		fq := FlavorQuotas{Flavor: FlavorName(fmt.Sprintf("f%d", f))}
		for range g.Resources {
			q := Quota{Nominal: Amount(w.draw("nominal", 10))}
			if limits {
				q.Borrow, q.Lend = w.limit("borrow"), w.limit("lend")
			}
			fq.Quotas = append(fq.Quotas, q)
		}
		g.Flavors = append(g.Flavors, fq)
	}
	return []ResourceGroup{g}
}

func (w *world) cohortName(i int) CohortName { return CohortName(fmt.Sprintf("c%d", i)) }

func (w *world) changeCohort() {
	i := w.draw("cohort", w.size.cohorts-1)
	c := Cohort{Name: w.cohortName(i)}
	// A cohort's parent has a lower number, and levels bound the depth, but for
	// a rare circle.
	if i > 0 && w.size.levels > 1 && w.draw("parent?", 3) > 0 {
		p := w.draw("parent", i-1)
		if len(w.oracle.path(oracleNode("c/"+string(w.cohortName(p))))) < w.size.levels-1 {
			c.Parent = w.cohortName(p)
		}
	}
	if w.draw("circle?", 40) == 0 {
		c.Parent = w.cohortName(w.draw("circle", w.size.cohorts-1))
		w.cuts = true
	}
	if w.draw("quota?", 1) == 0 {
		c.Groups = w.groups(c.Parent != "")
	}
	c.Weight = w.weight()
	w.oracle.cohorts[c.Name] = c
	w.oracle.reshaped()
	w.cuts = true
	w.apply(CohortChanged{c})
}

func (w *world) weight() *Weight {
	switch w.draw("weight", 5) {
	case 0:
		z := Weight(0)
		return &z
	case 1:
		z := 2 * OneWeight
		return &z
	}
	return nil
}

func (w *world) changeQueue(i int) {
	q := ClusterQueue{Name: QueueName(fmt.Sprintf("q%d", i)), Namespaces: Selector{Everything: true}}
	if w.size.cohorts > 0 && w.draw("cohort?", 5) > 0 {
		q.Cohort = w.cohortName(w.draw("cohort", w.size.cohorts-1))
	}
	q.Groups = w.groups(q.Cohort != "")
	if w.draw("strict", 3) == 0 || w.size.flavors == 1 {
		q.Strategy = StrictFIFO
	}
	q.Fungibility.WhenCanBorrow = []FungibilityPolicy{"", MayStopSearch, TryNextFlavor}[w.draw("wcb", 2)]
	q.Fungibility.WhenCanPreempt = []FungibilityPolicy{"", MayStopSearch, TryNextFlavor}[w.draw("wcp", 2)]
	q.Fungibility.Preference = []FungibilityPreference{"", PreemptionOverBorrowing}[w.draw("pref", 1)]
	if w.evicts {
		q.Preemption.WithinQueue = []PreemptionPolicy{Never, LowerPriority, LowerOrNewerEqualPriority}[w.draw("within", 2)]
		q.Preemption.Reclaim = []PreemptionPolicy{Never, LowerPriority, AnyPriority}[w.draw("reclaim", 2)]
		if w.draw("borrowWithin", 3) == 0 && q.Preemption.Reclaim != Never && w.oracle.fair == nil {
			q.Preemption.BorrowWithin = LowerPriority
			if w.draw("threshold?", 1) == 0 {
				p := int32(w.draw("threshold", 3))
				q.Preemption.BorrowThreshold = &p
			}
		}
	}
	q.Weight = w.weight()
	if w.draw("stop", 20) == 0 {
		q.Stop = []StopPolicy{Hold, HoldAndDrain}[w.draw("drain", 1)]
	}
	w.oracle.queues[q.Name] = q
	w.oracle.reshaped()
	w.cuts = true
	w.apply(QueueChanged{q})
	w.apply(LocalQueueChanged{LocalQueue{Name: LocalQueueName{"ns", string(q.Name)}, Queue: q.Name}})
}

func (w *world) submit() {
	if len(w.oracle.works) >= w.size.workloads {
		return
	}
	w.born++
	spec := Workload{
		ID:         WorkloadID(fmt.Sprintf("w%03d", w.born)),
		LocalQueue: LocalQueueName{"ns", fmt.Sprintf("q%d", w.draw("queue", w.size.queues-1))},
		Priority:   int32(w.draw("priority", 3)),
		QueuedAt:   w.now.Add(time.Duration(w.draw("age", 3)) * time.Second),
	}
	spec.PreemptionGated = w.draw("gated", 15) == 0
	sets := 1 + w.draw("sets", 5)/5
	for s := range sets {
		ps := PodSet{Name: fmt.Sprintf("s%d", s), Count: int32(1 + w.draw("count", 2)), Requests: Amounts{}}
		if s == 0 && w.size.flavors > 1 && w.draw("partial", 5) == 0 {
			ps.MinCount = 1
		}
		for r := range w.size.resources {
			if r == 0 || w.draw("asks", 2) == 0 {
				ps.Requests[Resource(fmt.Sprintf("r%d", r))] = Amount(w.draw("ask", 4))
			}
		}
		if w.size.flavors > 1 && w.draw("unfit", 6) == 0 {
			ps.Unfit = map[FlavorName]string{"f1": "tainted"}
		}
		spec.PodSets = append(spec.PodSets, ps)
	}
	w.oracle.works[spec.ID] = &oracleWork{spec: spec}
	w.apply(WorkloadChanged{spec})
}

func (w *world) pick(state ...string) *oracleWork {
	var all []*oracleWork
	for _, x := range w.oracle.works {
		for _, s := range state {
			if x.state == s {
				all = append(all, x)
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	sort.Slice(all, func(i, j int) bool { return all[i].spec.ID < all[j].spec.ID })
	return all[w.draw("pick", len(all)-1)]
}

// step does one thing that can happen to a cluster.
func (w *world) step() {
	w.now = w.now.Add(time.Second)
	switch k := w.draw("step", 19); {
	case k < 10:
		w.submit()
	case k < 13:
		if x := w.pick("holding", "leaving", ""); x != nil {
			w.apply(WorkloadRemoved{x.spec.ID})
			delete(w.oracle.works, x.spec.ID)
		}
	case k < 16:
		if x := w.pick("leaving"); x != nil {
			w.release(x)
		}
	case k == 16:
		w.changeQueue(w.draw("queue", w.size.queues-1))
	case k == 17 && w.size.cohorts > 0:
		w.changeCohort()
	case k == 18:
		if x := w.pick("holding"); x != nil {
			x.state = "leaving"
			w.apply(Evicting{x.spec.ID})
		}
	default:
		if x := w.pick("leaving"); x != nil {
			x.state = "holding"
			w.cuts = true
			w.apply(EvictionFailed{x.spec.ID})
		}
	}
	w.oracle.dirty()
	w.apply(Tick{Now: w.now})
}

func (w *world) release(x *oracleWork) {
	x.state, x.queue, x.use, x.forWork = "", "", nil, ""
	w.oracle.dirty()
	w.apply(Released{x.spec.ID})
}

// decide has both engines decide and the oracle follow.
func (w *world) decide() int {
	w.engine.settle()
	w.sync()
	out, twin := w.engine.Decide(nil), w.twin.Decide(nil)
	if a, b := fmt.Sprint(out), fmt.Sprint(twin); a != b {
		w.t.Fatalf("same events, but\n%s\nand\n%s", a, b)
	}
	if err := w.oracle.follow(out, w.now.UnixNano(), !w.evicts && w.size.flavors == 1); err != nil {
		w.t.Fatalf("%v\nin\n%v\n%s", err, out, w.engine)
	}
	w.sync()
	w.check()
	for _, d := range out {
		switch d := d.(type) {
		case Admit:
			w.apply(Admitted{ID: d.ID, Assignment: d.Assignment, At: w.now})
		case Evict:
			w.apply(Evicting{d.Victim})
		}
	}
	return len(out)
}

// sync takes over the promises that the engine gave up because the facts
// changed.
func (w *world) sync() {
	// What is news to a tree, the engine says; what follows from it is checked.
	w.oracle.evicted = map[WorkloadID][]WorkloadID{}
	for t := range w.engine.trees {
		for p, victims := range t.evictions {
			for _, v := range victims {
				w.oracle.evicted[p.id] = append(w.oracle.evicted[p.id], v.id)
			}
		}
	}
	for id, x := range w.oracle.works {
		if h := w.engine.works[id].hold; x.state == "promised" && (h == nil || h.state != promised) {
			x.state, x.queue, x.use = "", "", nil
		}
	}
	w.oracle.dirty()
}

// check compares every number with the oracle, and what must hold always.
func (w *world) check() {
	o := w.oracle
	for _, n := range o.nodes() {
		node := w.node(n)
		if o.cyclic(n) {
			continue
		}
		for _, frs := range o.everything() {
			for _, fr := range frs {
				w.checkCell(node, n, fr)
			}
		}
	}
	for id, x := range o.works {
		state := "" // as the engine sees it
		if h := w.engine.works[id].hold; h != nil {
			state = []string{"promised", "holding", "leaving"}[h.state]
		}
		if state != x.state {
			w.t.Fatalf("%s is %q, the oracle has it %q", id, state, x.state)
		}
	}
	if err := o.settled(); err != nil {
		w.t.Fatalf("%v\n%s", err, w.engine)
	}
}

func (w *world) node(n oracleNode) *node {
	if n[0] == 'q' {
		return w.engine.queues[QueueName(n[2:])].node
	}
	return w.engine.cohorts[CohortName(n[2:])]
}

func (w *world) checkCell(node *node, n oracleNode, fr FlavorResource) {
	o := w.oracle
	c, ok := node.cells[fr]
	if !ok {
		if o.subtree(n, fr) != 0 || o.used(held, n, fr) != 0 || o.used(planned, n, fr) != 0 {
			w.t.Fatalf("%s %v: unknown to the engine, %d quota, %d used", n, fr, o.subtree(n, fr), o.used(held, n, fr))
		}
		return
	}
	same := func(what string, got Amount, want int64) {
		if int64(got) != want {
			w.t.Fatalf("%s %v: %s is %d, should be %d\n%s", n, fr, what, got, want, w.engine)
		}
	}
	same("subtree quota", c.subtree, o.subtree(n, fr))
	same("guaranteed", c.guaranteed(), o.guaranteed(n, fr))
	same("held", c.held, o.used(held, n, fr))
	same("planned", c.planned, o.used(planned, n, fr))
	same("available", c.available(held), o.available(held, n, fr))
	same("available when evictions have ended", c.available(planned), o.available(planned, n, fr))
	same("most", c.most(), o.potential(n, fr))
	if !w.cuts && (c.available(held) < 0 || c.available(planned) < 0) {
		w.t.Fatalf("%s %v: over quota\n%s", n, fr, w.engine)
	}
}

// rebuild makes an engine from what the API would show and compares.
func (w *world) rebuild() {
	e := New(w.options...)
	var events []Event
	for id, x := range w.oracle.works {
		events = append(events, WorkloadChanged{x.spec})
		if a, ok := w.engine.Holding(id); ok {
			events = append(events, Admitted{ID: id, Assignment: a, At: w.engine.works[id].hold.at.time(), Evicting: x.state == "leaving"})
		}
	}
	for f := range w.size.flavors {
		events = append(events, FlavorChanged{FlavorSpec{Name: FlavorName(fmt.Sprintf("f%d", f))}})
	}
	for _, q := range w.oracle.queues {
		events = append(events, QueueChanged{q}, LocalQueueChanged{LocalQueue{Name: LocalQueueName{"ns", string(q.Name)}, Queue: q.Name}})
	}
	for _, c := range w.oracle.cohorts {
		events = append(events, CohortChanged{c})
	}
	// Map order has shuffled them within their kinds; mix the kinds too.
	for len(events) > 0 {
		i := w.draw("which", len(events)-1)
		e.Apply(events[i])
		events[i] = events[len(events)-1]
		events = events[:len(events)-1]
	}
	for name := range w.oracle.queues {
		got, _ := e.QueueStatus(name)
		want, _ := w.engine.QueueStatus(name)
		got.Parked, want.Parked = 0, 0
		for i := range want.Usage {
			// Promises are not in the API; they are made again.
			want.Usage[i].Available, got.Usage[i].Available = 0, 0
		}
		if !reflect.DeepEqual(got, want) {
			w.t.Fatalf("after a restart\n%+v\nbefore\n%+v", got, want)
		}
	}
}

// quiesce releases whoever leaves until nothing happens any more: nobody evicts
// each other for ever.
func (w *world) quiesce() {
	for round := 0; ; round++ {
		if round > 20*(len(w.oracle.works)+1) {
			w.t.Fatalf("still evicting after %d rounds without new input\n%s", round, w.engine)
		}
		w.now = w.now.Add(time.Second)
		w.apply(Tick{Now: w.now})
		if w.decide() == 0 {
			left := false
			for _, x := range w.oracle.works {
				if x.state == "leaving" {
					w.release(x)
					left = true
					break
				}
			}
			if !left {
				return
			}
		}
	}
}

func checkWorlds(t *testing.T, size worldSize, fair, evicts bool) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, size, fair, evicts)
		for range w.size.steps {
			for range 1 + w.draw("burst", 4) {
				w.step()
			}
			w.decide()
			w.cuts = w.cuts || false
		}
		w.rebuild()
		w.quiesce()
	})
}

var smallWorld = worldSize{levels: 3, cohorts: 3, queues: 4, flavors: 2, resources: 2, workloads: 20, steps: 8}

// oneFlavor is a world in which the order of admissions is exact too: without a
// choice of flavors, of counts or of heads, the way in which a queue's workload
// could be admitted only gets worse while others are admitted.
var oneFlavor = worldSize{levels: 4, cohorts: 4, queues: 5, flavors: 1, resources: 2, workloads: 25, steps: 8}

func TestAdmissionsAreInTheOrderOfTheRules(t *testing.T) {
	checkWorlds(t, oneFlavor, false, false)
}

func TestAdmissionsAreInTheOrderOfShares(t *testing.T) {
	checkWorlds(t, oneFlavor, true, false)
}

func TestNobodyIsAdmittedOrHeldBackAgainstTheRules(t *testing.T) {
	checkWorlds(t, smallWorld, false, false)
}

func TestNobodyIsAdmittedOrHeldBackAgainstTheRulesOfFairSharing(t *testing.T) {
	checkWorlds(t, smallWorld, true, false)
}

// largeWorld is as large as the oracle can bear.
var largeWorld = worldSize{levels: 4, cohorts: 10, queues: 40, flavors: 2, resources: 8, workloads: 300, steps: 40}

func TestLargeWorldsKeepTheRules(t *testing.T) { checkFewWorlds(t, largeWorld, false) }

func TestLargeWorldsKeepTheRulesOfFairSharing(t *testing.T) { checkFewWorlds(t, largeWorld, true) }

// checkFewWorlds checks one world for every twenty that are asked for: they are
// that much larger.
func checkFewWorlds(t *testing.T, size worldSize, fair bool) {
	checks := flag.Lookup("rapid.checks")
	asked := checks.Value.String()
	n, err := strconv.Atoi(asked)
	if err != nil {
		t.Fatal(err)
	}
	if err := checks.Value.Set(strconv.Itoa(max(1, n/20))); err != nil {
		t.Fatal(err)
	}
	defer checks.Value.Set(asked)
	checkWorlds(t, size, fair, true)
}

func TestVictimsAreThoseOfTheRules(t *testing.T) {
	checkWorlds(t, smallWorld, false, true)
}

func TestVictimsAreThoseOfTheRulesOfFairSharing(t *testing.T) {
	checkWorlds(t, smallWorld, true, true)
}
