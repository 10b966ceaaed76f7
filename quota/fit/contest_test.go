package fit

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// contest is the engine with cards, those who want them and evict each other, nodes
// that go and come, and a scheduler that knows claims alone.
type contest struct {
	*rapid.T
	s     *State
	e     *engine.Engine
	stock *stock
	now   time.Time
	jobs  map[engine.WorkloadID]*job
	next  int
	away  map[string]func()
	story []string
	// evictions are those since quiet began, by victim the preemptors.
	evictions map[engine.WorkloadID][]engine.WorkloadID
	quiet     bool
	// served are those that were admitted since.
	served map[engine.WorkloadID]bool
	// accident says that places were lost through no fault of the budget.
	accident bool
}

// job is one workload.
type job struct {
	id       engine.WorkloadID
	spec     engine.Workload
	claim    resourceapi.ResourceClaimSpec
	pods     int32
	admitted *engine.Assignment
	leaves   time.Time
	// coming are its pods before their gates, open those past them, by their nodes.
	coming []types.UID
	open   []pending
	// has are its claims, on the pods that run.
	has   map[types.UID][]*resourceapi.ResourceClaim
	where map[types.UID]string
}

func (c *contest) pick(label string, n int) int { return rapid.IntRange(0, n-1).Draw(c.T, label) }

func (c *contest) note(format string, args ...any) {
	c.story = append(c.story, fmt.Sprintf("%3.0fs ", c.now.Sub(time.Unix(1e9, 0)).Seconds())+fmt.Sprintf(format, args...))
}

const holeAfter = time.Minute

func newContest(r *rapid.T) *contest {
	c := &contest{T: r, s: world(BinPack), now: time.Unix(1e9, 0), jobs: map[engine.WorkloadID]*job{}, away: map[string]func(){}}
	c.e = engine.New(engine.HoleReserveAfter(holeAfter))
	c.stock = &stock{s: c.s, claims: map[types.UID]*resourceapi.ResourceClaim{}}
	c.s.searching.now = func() time.Time { return c.now }
	for n := range 1 + c.pick("nodes", 3) {
		var cards []int64
		for range 1 + c.pick("cards", 3) {
			cards = append(cards, []int64{20, 40}[c.pick("size", 2)])
		}
		addNode(c.s, fmt.Sprintf("n%d", n), nil, cards...)
	}
	c.e.Apply(engine.Tick{Now: c.now})
	c.e.Apply(engine.FlavorChanged{Flavor: engine.FlavorSpec{Name: "gpu"}})
	ample := c.pick("ample", 2) == 0
	for i := range 1 + c.pick("queues", 2) {
		nominal := engine.Amount(1000)
		if !ample {
			nominal = engine.Amount(20 * c.pick("nominal", 5))
		}
		q := engine.ClusterQueue{Name: engine.QueueName(fmt.Sprint("q", i)), Cohort: "c", Namespaces: engine.Selector{Everything: true}, Strategy: engine.BestEffortFIFO}
		q.Groups = []engine.ResourceGroup{{Resources: []engine.Resource{"mem"}, Flavors: []engine.FlavorQuotas{{Flavor: "gpu", Quotas: []engine.Quota{{Nominal: nominal}}}}}}
		q.Preemption.WithinQueue = []engine.PreemptionPolicy{engine.Never, engine.LowerPriority}[c.pick("within", 2)]
		q.Preemption.Reclaim = []engine.PreemptionPolicy{engine.Never, engine.LowerPriority, engine.AnyPriority}[c.pick("reclaim", 3)]
		c.e.Apply(engine.QueueChanged{Queue: q})
		c.e.Apply(engine.LocalQueueChanged{LocalQueue: engine.LocalQueue{Name: engine.LocalQueueName{Namespace: "ns", Name: string(q.Name)}, Queue: q.Name}})
	}
	return c
}

// arrive has a workload come.
func (c *contest) arrive() {
	c.next++
	gi := []int64{0, 5, 10, 20, 40}[c.pick("gi", 5)]
	j := &job{id: engine.WorkloadID(fmt.Sprintf("ns/w%d", c.next)), claim: spec(gi), pods: int32(1 + c.pick("pods", 2)),
		has: map[types.UID][]*resourceapi.ResourceClaim{}, where: map[types.UID]string{}}
	if gi == 0 {
		gi = 40
	}
	wanting(c.s, j.id, j.pods, j.claim)
	queue := engine.LocalQueueName{Namespace: "ns", Name: "q0"}
	if c.pick("queue", 2) == 1 {
		queue.Name = "q1"
	}
	j.spec = engine.Workload{ID: j.id, LocalQueue: queue, Priority: int32(c.pick("priority", 3)), QueuedAt: c.now, RoomKey: fmt.Sprint(need(claimsOf([]resourceapi.ResourceClaimSpec{j.claim}))),
		PodSets: []engine.PodSet{{Name: "main", Count: j.pods, Requests: engine.Amounts{"mem": engine.Amount(gi) * engine.Amount(j.pods)}}}}
	j.spec.PodSets[0].Requests["mem"] = engine.Amount(gi)
	c.jobs[j.id] = j
	c.note("%s comes to %s: priority %d, %d pods of %s", j.id, queue.Name, j.spec.Priority, j.pods, need(claimsOf([]resourceapi.ResourceClaimSpec{j.claim})))
	c.e.Apply(engine.WorkloadChanged{Workload: j.spec})
}

// sorted are the jobs in order.
func (c *contest) sorted() []*job {
	var all []*job
	for _, id := range slices.Sorted(maps.Keys(c.jobs)) {
		all = append(all, c.jobs[id])
	}
	return all
}

// clear ends all pods of a job.
func (c *contest) clear(j *job) {
	for pod, claims := range j.has {
		for _, claim := range claims {
			delete(c.stock.claims, claim.UID)
			c.s.RemoveClaim(claim.UID)
		}
		c.s.RemovePod(pod)
	}
	clear(j.has)
	clear(j.where)
	j.coming, j.open, j.admitted, j.leaves = nil, nil, nil, time.Time{}
}

// ends removes a job for good.
func (c *contest) ends(j *job) {
	c.note("%s ends", j.id)
	c.clear(j)
	delete(c.jobs, j.id)
	c.e.Apply(engine.WorkloadRemoved{ID: j.id})
	c.s.RemoveWorkload(j.id)
	c.e.Apply(engine.RoomChanged{})
}

// decide is one look of the controller, some time after the one before.
func (c *contest) decide(after time.Duration) int {
	c.now = c.now.Add(after)
	c.e.Apply(engine.Tick{Now: c.now})
	for _, j := range c.sorted() {
		if !j.leaves.IsZero() && !j.leaves.After(c.now) {
			c.note("%s has left", j.id)
			c.clear(j)
			c.e.Apply(engine.Released{ID: j.id})
			c.s.Drop(j.id)
			c.e.Apply(engine.RoomChanged{})
		}
	}
	if c.s.Freed() {
		c.e.Apply(engine.RoomChanged{})
	}
	did := 0
	for _, d := range c.e.Decide(c.s) {
		switch d := d.(type) {
		case engine.Admit:
			did++
			j := c.jobs[d.ID]
			if j.admitted != nil {
				c.Fatalf("%s is admitted twice%s", d.ID, c.picture())
			}
			j.admitted = &d.Assignment
			if c.quiet {
				c.served[j.id] = true
			}
			for i := range j.pods {
				c.next++
				j.coming = append(j.coming, types.UID(fmt.Sprintf("%s-%d-%d", j.id, i, c.next)))
			}
			c.note("%s is admitted on %v", j.id, d.Placement.Pods)
			c.e.Apply(engine.Admitted{ID: d.ID, Assignment: d.Assignment, At: c.now})
		case engine.Evict:
			did++
			v := c.jobs[d.Victim]
			if v.admitted == nil || !v.leaves.IsZero() {
				c.Fatalf("%s is evicted, which holds nothing%s", d.Victim, c.picture())
			}
			v.leaves = c.now.Add(time.Duration(1+c.pick("grace", 40)) * time.Second)
			c.note("%s is evicted for %s", d.Victim, d.For)
			if c.quiet {
				if slices.Contains(c.evictions[d.For], d.Victim) {
					c.Fatalf("%s and %s evict each other%s", d.Victim, d.For, c.picture())
				}
				c.evictions[d.Victim] = append(c.evictions[d.Victim], d.For)
			}
		}
	}
	c.check()
	return did
}

// move opens gates and has the scheduler serve pods, all of them or some.
func (c *contest) move(all bool) int {
	did := 0
	for _, j := range c.sorted() {
		if j.admitted == nil || !j.leaves.IsZero() {
			continue
		}
		for i := 0; i < len(j.coming); {
			if !all && c.pick("opens", 3) == 0 {
				break
			}
			node, no := c.s.Open(j.id, &j.admitted.PodSets[0], j.coming[i])
			if no != nil {
				i++
				continue
			}
			did++
			j.open = append(j.open, pending{j.id, j.coming[i], node})
			j.coming = slices.Delete(j.coming, i, i+1)
		}
		for i := 0; i < len(j.open); {
			if !all && c.pick("serves", 3) == 0 {
				break
			}
			p := j.open[i]
			if node, no := c.s.Open(j.id, &j.admitted.PodSets[0], p.pod); no == nil {
				p.node = node
			}
			node, claims := c.stock.serve(c.T, p.pod, p.node, []resourceapi.ResourceClaimSpec{j.claim})
			if node == "" {
				if !c.accident {
					c.Fatalf("%s was let go to %s and finds no room%s", p.pod, p.node, c.picture())
				}
				i++
				continue
			}
			did++
			j.open = slices.Delete(j.open, i, i+1)
			j.has[p.pod], j.where[p.pod] = claims, node
			for _, claim := range claims {
				c.stock.claims[claim.UID] = claim
				c.s.SetClaim(claim, j.id)
				for _, d := range claim.Status.Allocation.Devices.Results {
					c.note("%s gets %s/%s", p.pod, d.Pool, d.Device)
				}
			}
			c.s.Equipped(j.id, p.pod, node)
			c.s.SetPod(bound(string(p.pod), node, "10m"), j.id)
			c.s.Settle(j.id, p.pod)
		}
	}
	return did
}

// goes takes a node away with all that is on it, or brings one back.
func (c *contest) goes() {
	names := slices.Sorted(maps.Keys(c.s.nodes))
	for name := range c.away {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	name := names[c.pick("which node", len(names))]
	if back := c.away[name]; back != nil {
		c.note("%s is back", name)
		delete(c.away, name)
		back()
		return
	}
	c.note("%s goes", name)
	c.accident = true
	object, slice := c.s.nodes[name].object, c.s.slices[name]
	c.away[name] = func() {
		c.s.SetNode(object)
		c.s.SetSlice(slice)
	}
	for _, j := range c.sorted() {
		if slices.Contains(slices.Collect(maps.Values(j.where)), name) {
			c.ends(j)
		}
	}
	c.s.RemoveNode(name)
	c.s.RemoveSlice(name)
}

// check says that no card is promised twice.
func (c *contest) check() {
	if c.accident {
		return
	}
	// The scheduler gives other cards than were named, and promises follow.
	c.s.reindex()
	for name, n := range c.s.nodes {
		for _, card := range cardsOf(n.slices) {
			now, then := int64(0), int64(0)
			add := func(d device, now, then *int64) {
				if d.id == card.id {
					q := d.ConsumedCapacity["memory"]
					*now, *then = *now+q.Value(), *then+q.Value()
				}
			}
			none := int64(0)
			for _, h := range c.s.claims {
				for _, d := range h.results {
					if j := c.jobs[h.workload]; j != nil && j.leaves.IsZero() {
						add(d, &now, &then)
					} else {
						add(d, &now, &none)
					}
				}
			}
			for _, sl := range n.slots {
				for _, d := range sl.devices {
					j := c.jobs[sl.workload]
					switch {
					case sl.kept > 0:
					case sl.awaited:
						add(d, &none, &then)
					case j.leaves.IsZero():
						add(d, &now, &then)
					default:
						add(d, &now, &none)
					}
				}
			}
			if now > card.memory || then > card.memory {
				c.Fatalf("%s/%s of %d: %d is taken and promised now, %d when all have left%s", name, card.device.Name, card.memory>>30, now>>30, then>>30, c.picture())
			}
		}
	}
}

// picture is what has happened and what there is.
func (c *contest) picture() string {
	text := (&crowded{s: c.s, story: c.story}).picture() + "\n" + c.e.String()
	for _, j := range c.sorted() {
		if j.admitted == nil {
			why := c.e.Why(j.id)
			text += fmt.Sprintf("\n%s waits: %s: %s", j.id, why.Reason, why.String())
		}
	}
	return text
}

// rests goes on without anything new until nothing happens for long enough that
// places are kept.
func (c *contest) rests() {
	c.quiet, c.evictions, c.served = true, map[engine.WorkloadID][]engine.WorkloadID{}, map[engine.WorkloadID]bool{}
	for idle, rounds := 0, 0; idle < 20; rounds++ {
		if rounds > 400 {
			c.Fatalf("it does not come to rest%s", c.picture())
		}
		did := c.decide(5*time.Second) + c.move(idle > 3 || c.pick("in order", 3) > 0)
		idle++
		if did > 0 || slices.ContainsFunc(c.sorted(), func(j *job) bool { return !j.leaves.IsZero() }) {
			idle = 0
		}
	}
	c.quiet = false
	for _, victim := range slices.Sorted(maps.Keys(c.evictions)) {
		for _, by := range c.evictions[victim] {
			// Whoever has a better claim may be given what was promised to another.
			if j := c.jobs[by]; j != nil && !c.served[by] && (len(c.served) == 0 || len(c.served) == 1 && c.served[victim]) {
				c.Fatalf("%s was evicted for %s, which waits still%s", victim, by, c.picture())
			}
		}
	}
	c.nobodyStuck()
}

// hasRoom says that the scheduler has room for all pods of a job by the claims that
// there are.
func (c *contest) hasRoom(j *job) bool {
	trial := &stock{s: c.s, claims: maps.Clone(c.stock.claims)}
	for i := range j.pods {
		node, claims := trial.serve(c.T, types.UID(fmt.Sprint("trial-", i)), "", []resourceapi.ResourceClaimSpec{j.claim})
		if node == "" {
			return false
		}
		for _, claim := range claims {
			trial.claims[claim.UID] = claim
		}
	}
	return true
}

// nobodyStuck says that nobody waits for room that is there and that is kept for
// nobody else.
func (c *contest) nobodyStuck() {
	var first *job
	rank := int64(0)
	for _, j := range c.sorted() {
		w := c.s.workloads[j.id]
		if j.admitted == nil && w != nil && w.kept > 0 && len(w.slots) > 0 && (first == nil || w.kept < rank) {
			first, rank = j, w.kept
		}
	}
	for _, j := range c.sorted() {
		if j.admitted != nil {
			if len(j.coming)+len(j.open) > 0 && !c.accident {
				c.Fatalf("%s was admitted and does not come%s", j.id, c.picture())
			}
			continue
		}
		if c.e.Why(j.id).Reason != engine.WaitingForRoom || len(c.s.lost) > 0 {
			// Who lost his place to an accident comes before him.
			continue
		}
		if (first == nil || first == j) && c.hasRoom(j) {
			c.Fatalf("%s waits for room that is there%s", j.id, c.picture())
		}
	}
}

// Workloads come that evict each other, victims leave late, nodes go. No card is
// promised twice; who is evicted leaves for somebody who comes; nobody evicts whom he
// was evicted for; and when nothing new happens nobody waits for room that is there.
func TestWhoeverIsEvictedMakesRoomForSomebody(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c := newContest(r)
		for range 2 + c.pick("spells", 2) {
			for range 3 + c.pick("events", 12) {
				switch c.pick("event", 12) {
				case 0, 1, 2, 3, 4, 5:
					c.arrive()
				case 6, 7:
					if all := c.sorted(); len(all) > 0 {
						j := all[c.pick("who", len(all))]
						if j.leaves.IsZero() {
							c.ends(j)
						}
					}
				case 8:
					if c.pick("accident", 2) == 0 {
						c.goes()
					}
				}
				if c.pick("looks", 3) > 0 {
					c.decide(time.Duration(1+c.pick("seconds", 20)) * time.Second)
				}
				c.move(false)
			}
			c.rests()
		}
		c.drains()
	})
}

// drains has all end that run, over and over: in the end nobody waits whom an empty
// cluster could serve.
func (c *contest) drains() {
	for _, back := range c.away {
		back()
	}
	clear(c.away)
	for round := 0; len(c.jobs) > 0; round++ {
		for _, j := range c.sorted() {
			if j.admitted != nil && j.leaves.IsZero() {
				c.ends(j)
			}
		}
		c.rests()
		if slices.ContainsFunc(c.sorted(), func(j *job) bool { return j.admitted != nil }) {
			continue
		}
		for _, j := range c.sorted() {
			if c.e.Why(j.id).Reason == engine.WaitingForRoom && c.hasRoom(j) {
				c.Fatalf("%s waits and nobody else is there%s", j.id, c.picture())
			}
		}
		return
	}
}
