package engine

import (
	"slices"
	"sort"
	"strings"
)

// oracle is a second, slow and obvious implementation of the rules. It keeps no
// running totals: every number is worked out from the quotas and from the list of
// who holds what. It follows the engine decision by decision and says where it
// would have decided otherwise.
type oracle struct {
	fair    []FairStrategy
	cohorts map[CohortName]Cohort
	queues  map[QueueName]ClusterQueue
	works   map[WorkloadID]*oracleWork
	memo    map[oracleKey]int64
	// evicted has, for each workload, those evicted for it since there was last
	// anything new.
	evicted    map[WorkloadID][]WorkloadID
	tree       *oracleTree
	imaginedIn map[oracleFR]int64 // extra planned usage of one queue, in fair sharing
	imaginedAt QueueName
}

type oracleFR = FlavorResource

type oracleWork struct {
	spec    Workload
	state   string // "", promised, holding, leaving
	queue   QueueName
	use     map[oracleFR]int64
	at      int64
	forWork WorkloadID
	gone    bool // imagined away
	a       Assignment
}

// A node is "q/name" or "c/name".
type oracleNode string

func queueNode(q QueueName) oracleNode { return oracleNode("q/" + string(q)) }

type oracleKey struct {
	kind string
	node oracleNode
	fr   oracleFR
}

// oracleTree is the shape of the tree, kept while quotas stay as they are.
type oracleTree struct {
	nodes    []oracleNode
	children map[oracleNode][]oracleNode
}

func (o *oracle) dirty() {
	if o.memo == nil {
		o.memo = map[oracleKey]int64{}
	}
	clear(o.memo)
}

// reshaped forgets the shape too.
func (o *oracle) reshaped() {
	o.dirty()
	o.tree = nil
}

func (o *oracle) shape() *oracleTree {
	if o.tree == nil {
		t := &oracleTree{nodes: o.allNodes(), children: map[oracleNode][]oracleNode{}}
		for _, n := range t.nodes {
			p := o.parent(n)
			t.children[p] = append(t.children[p], n)
		}
		o.tree = t
	}
	return o.tree
}

func (o *oracle) nodes() []oracleNode { return o.shape().nodes }

func (o *oracle) children(n oracleNode) []oracleNode { return o.shape().children[n] }

func (o *oracle) parent(n oracleNode) oracleNode {
	var p CohortName
	if q, ok := strings.CutPrefix(string(n), "q/"); ok {
		p = o.queues[QueueName(q)].Cohort
	} else {
		p = o.cohorts[CohortName(strings.TrimPrefix(string(n), "c/"))].Parent
	}
	if p == "" {
		return ""
	}
	return oracleNode("c/" + string(p))
}

func (o *oracle) cyclic(n oracleNode) bool {
	for i := 0; n != ""; i++ {
		if i > 20 {
			return true
		}
		n = o.parent(n)
	}
	return false
}

func (o *oracle) allNodes() []oracleNode {
	seen := map[oracleNode]bool{}
	add := func(n oracleNode) {
		for i := 0; n != "" && i < 100; i++ {
			seen[n] = true
			n = o.parent(n)
		}
	}
	for q := range o.queues {
		add(queueNode(q))
	}
	for c := range o.cohorts {
		add(oracleNode("c/" + string(c)))
	}
	var all []oracleNode
	for n := range seen {
		all = append(all, n)
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	return all
}

func (o *oracle) quota(n oracleNode, fr oracleFR) (Quota, bool) {
	var groups []ResourceGroup
	if q, ok := strings.CutPrefix(string(n), "q/"); ok {
		groups = o.queues[QueueName(q)].Groups
	} else {
		groups = o.cohorts[CohortName(strings.TrimPrefix(string(n), "c/"))].Groups
	}
	for _, g := range groups {
		for _, f := range g.Flavors {
			for i, r := range g.Resources {
				if f.Flavor == fr.Flavor && r == fr.Resource {
					return f.Quotas[i], true
				}
			}
		}
	}
	return Quota{}, false
}

func (o *oracle) cached(kind string, n oracleNode, fr oracleFR, f func() int64) int64 {
	key := oracleKey{kind, n, fr}
	if v, ok := o.memo[key]; ok {
		return v
	}
	v := f()
	o.memo[key] = v
	return v
}

func (o *oracle) subtree(n oracleNode, fr oracleFR) int64 {
	return o.cached("subtree", n, fr, func() int64 {
		q, _ := o.quota(n, fr)
		sum := int64(q.Nominal)
		for _, c := range o.children(n) {
			sum += o.subtree(c, fr) - o.guaranteed(c, fr)
		}
		return sum
	})
}

func (o *oracle) guaranteed(n oracleNode, fr oracleFR) int64 {
	q, _ := o.quota(n, fr)
	if q.Lend == nil || o.parent(n) == "" {
		return 0
	}
	return max(0, o.subtree(n, fr)-int64(*q.Lend))
}

func (o *oracle) used(a account, n oracleNode, fr oracleFR) int64 {
	return o.cached([]string{"held", "planned"}[a], n, fr, func() int64 {
		sum := int64(0)
		if q, ok := strings.CutPrefix(string(n), "q/"); ok {
			for _, w := range o.works {
				if w.queue != QueueName(q) || w.gone && a == planned {
					continue
				}
				if a == held && (w.state == "holding" || w.state == "leaving") || a == planned && (w.state == "holding" || w.state == "promised") {
					sum += w.use[fr]
				}
			}
			if a == planned && o.imaginedAt == QueueName(q) {
				sum += o.imaginedIn[fr]
			}
			return sum
		}
		for _, c := range o.children(n) {
			sum += max(0, o.used(a, c, fr)-o.guaranteed(c, fr))
		}
		return sum
	})
}

func (o *oracle) available(a account, n oracleNode, fr oracleFR) int64 {
	p := o.parent(n)
	if p == "" {
		return o.subtree(n, fr) - o.used(a, n, fr)
	}
	above := o.available(a, p, fr)
	g, u := o.guaranteed(n, fr), o.used(a, n, fr)
	if q, _ := o.quota(n, fr); q.Borrow != nil {
		above = min(above, o.subtree(n, fr)-g-max(0, u-g)+int64(*q.Borrow))
	}
	return max(0, g-u) + above
}

func (o *oracle) free(n oracleNode, fr oracleFR) int64 {
	return min(o.available(held, n, fr), o.available(planned, n, fr))
}

func (o *oracle) potential(n oracleNode, fr oracleFR) int64 {
	p := o.parent(n)
	if p == "" {
		return o.subtree(n, fr)
	}
	most := o.guaranteed(n, fr) + o.potential(p, fr)
	if q, _ := o.quota(n, fr); q.Borrow != nil {
		most = min(most, o.subtree(n, fr)+int64(*q.Borrow))
	}
	return most
}

func (o *oracle) height(n oracleNode) int {
	if strings.HasPrefix(string(n), "q/") {
		return 0
	}
	h := 1
	for _, c := range o.children(n) {
		h = max(h, 1+o.height(c))
	}
	return h
}

func (o *oracle) distance(n oracleNode, fr oracleFR, ask int64) (int, bool) {
	for {
		if o.used(planned, n, fr)+ask <= o.subtree(n, fr) || o.parent(n) == "" {
			return o.height(n), o.parent(n) != ""
		}
		ask -= max(0, o.guaranteed(n, fr)-o.used(planned, n, fr))
		n = o.parent(n)
	}
}

// outcome is what the oracle thinks of a workload.
type outcome struct {
	mode    mode
	borrow  int
	a       Assignment
	use     map[oracleFR]int64
	victims []oracleVictim
}

type oracleVictim struct {
	w      *oracleWork
	reason EvictReason
}

// nominate tries full counts, then fewer.
func (o *oracle) nominate(w *oracleWork, q ClusterQueue) outcome {
	counts := make([]int32, len(w.spec.PodSets))
	partial := -1
	for i, ps := range w.spec.PodSets {
		counts[i] = ps.Count
		if ps.MinCount > 0 && ps.MinCount < ps.Count {
			partial = i
		}
	}
	out := o.try(w, q, counts)
	if partial < 0 || out.mode.viable() {
		return out
	}
	// By halving, as if fewer pods never fit worse.
	spec := w.spec.PodSets[partial]
	lo, hi := spec.MinCount, spec.Count
	for lo < hi {
		counts[partial] = lo + (hi-lo)/2
		if fewer := o.try(w, q, counts); fewer.mode.viable() {
			out, lo = fewer, counts[partial]+1
		} else {
			hi = counts[partial]
		}
	}
	return out
}

func (o *oracle) mayPreempt(q ClusterQueue) bool {
	p := q.Preemption
	return p.WithinQueue != "" && p.WithinQueue != Never || p.Reclaim != "" && p.Reclaim != Never
}

func (o *oracle) try(w *oracleWork, q ClusterQueue, counts []int32) outcome {
	out := outcome{mode: fits, use: map[oracleFR]int64{}}
	out.a = Assignment{Queue: q.Name}
	node := queueNode(q.Name)
	for s, ps := range w.spec.PodSets {
		psa := PodSetAssignment{Name: ps.Name, Count: counts[s], Flavors: map[Resource]FlavorName{}, Usage: Amounts{}}
		for _, g := range q.Groups {
			var asked []Resource
			for _, r := range g.Resources {
				if _, ok := ps.Requests[r]; ok || ps.Once[r] != 0 {
					asked = append(asked, r)
				}
			}
			if len(asked) == 0 {
				continue
			}
			best := -1
			var bestMode mode
			var bestBorrow int
			for i, f := range g.Flavors {
				if ps.Unfit[f.Flavor] != "" {
					continue
				}
				m, borrow := fits, 0
				for _, r := range asked {
					fr := oracleFR{Flavor: f.Flavor, Resource: r}
					ask := int64(ps.Requests[r])*int64(counts[s]) + int64(ps.Once[r])
					if ask == 0 {
						continue
					}
					am, ab := o.tryOne(w, q, node, fr, ask+out.use[fr])
					m, borrow = min(m, am), max(borrow, ab)
				}
				if m == noFit {
					continue
				}
				if best < 0 || q.Fungibility.prefers(m, borrow, bestMode, bestBorrow) {
					best, bestMode, bestBorrow = i, m, borrow
				}
				if q.Fungibility.stopsAt(m, borrow) {
					break
				}
			}
			if best < 0 {
				out.mode = noFit
				return out
			}
			for _, r := range asked {
				fr := oracleFR{Flavor: g.Flavors[best].Flavor, Resource: r}
				ask := int64(ps.Requests[r])*int64(counts[s]) + int64(ps.Once[r])
				out.use[fr] += ask
				psa.Flavors[r] = fr.Flavor
				psa.Usage[r] = Amount(ask)
			}
			out.mode, out.borrow = min(out.mode, bestMode), max(out.borrow, bestBorrow)
		}
		out.a.PodSets = append(out.a.PodSets, psa)
	}
	out.a.Borrow = out.borrow
	if out.mode == preempts || out.mode == reclaims {
		out.victims = o.victims(w, q, out.use)
		if len(out.victims) == 0 {
			out.mode = noCandidates
		}
	}
	return out
}

func (o *oracle) tryOne(w *oracleWork, q ClusterQueue, n oracleNode, fr oracleFR, ask int64) (mode, int) {
	if ask > o.potential(n, fr) {
		return noFit, 0
	}
	borrow, beyond := o.distance(n, fr, ask)
	switch {
	case ask <= o.free(n, fr):
		return fits, borrow
	case w.spec.PreemptionGated || !o.mayPreempt(q):
		return noFit, borrow
	case ask <= o.available(planned, n, fr):
		return awaits, borrow
	}
	p := q.Preemption
	whileBorrowing := p.BorrowWithin == LowerPriority
	if o.fair != nil {
		whileBorrowing = p.Reclaim != "" && p.Reclaim != Never
	}
	quota, _ := o.quota(n, fr)
	if ask > int64(quota.Nominal) && !beyond && !whileBorrowing {
		return noFit, borrow
	}
	victims := o.victims(w, q, map[oracleFR]int64{fr: ask})
	if len(victims) == 0 {
		return noCandidates, borrow
	}
	m := reclaims
	for _, v := range victims {
		v.w.gone = true
		if v.w.queue == q.Name {
			m = preempts
		}
	}
	o.dirty()
	borrow, _ = o.distance(n, fr, ask)
	for _, v := range victims {
		v.w.gone = false
	}
	o.dirty()
	return m, borrow
}

func (o *oracle) fitsPlanned(q ClusterQueue, use map[oracleFR]int64, mayBorrow bool) bool {
	n := queueNode(q.Name)
	for fr, ask := range use {
		if ask > 0 && (ask > o.available(planned, n, fr) || !mayBorrow && o.used(planned, n, fr)+ask > o.subtree(n, fr)) {
			return false
		}
	}
	return true
}

// victims are whom the rules would evict for a use.
func (o *oracle) victims(w *oracleWork, q ClusterQueue, use map[oracleFR]int64) []oracleVictim {
	var contested []oracleFR
	for fr, ask := range use {
		if ask > 0 && ask > o.available(planned, queueNode(q.Name), fr) {
			contested = append(contested, fr)
		}
	}
	if o.fair != nil {
		return o.fairVictims(w, q, use, contested)
	}
	return o.classicalVictims(w, q, use, contested)
}

func (o *oracle) path(n oracleNode) []oracleNode {
	var p []oracleNode
	for ; n != "" && len(p) < 20; n = o.parent(n) {
		p = append(p, n)
	}
	return p
}

func (o *oracle) ancestor(a, b oracleNode) oracleNode {
	for _, x := range o.path(a) {
		for _, y := range o.path(b) {
			if x == y {
				return x
			}
		}
	}
	return ""
}

type oracleCandidate struct {
	w    *oracleWork
	tier tier
}

func (o *oracle) over(from QueueName, below oracleNode, fr oracleFR) bool {
	for _, n := range o.path(queueNode(from)) {
		if n == below {
			return true
		}
		if o.used(planned, n, fr) <= o.subtree(n, fr) {
			return false
		}
	}
	return true
}

func (o *oracle) candidates(w *oracleWork, q ClusterQueue, use map[oracleFR]int64, contested []oracleFR) []oracleCandidate {
	var out []oracleCandidate
	self := queueNode(q.Name)
	for _, v := range o.works {
		if v.state != "holding" && v.state != "promised" || v == w {
			continue
		}
		hasOne := false
		for _, fr := range contested {
			hasOne = hasOne || v.use[fr] > 0
		}
		if !hasOne {
			continue
		}
		if v.queue == q.Name {
			if o.permits(q.Preemption.WithinQueue, w, v) {
				out = append(out, oracleCandidate{v, sameQueue})
			}
			continue
		}
		below := o.ancestor(self, queueNode(v.queue))
		if below == "" || !o.permits(q.Preemption.Reclaim, w, v) {
			continue
		}
		t := tiers
		for _, fr := range contested {
			if !o.over(v.queue, below, fr) {
				continue
			}
			t = min(t, byPriority)
			// Does the request fit a subtree that holds the queue but not v?
			ask := use[fr]
			for _, n := range o.path(self) {
				if n == below {
					break
				}
				if o.used(planned, n, fr)+ask <= o.subtree(n, fr) {
					t = advantage
				}
				ask = max(0, ask-max(0, o.guaranteed(n, fr)-o.used(planned, n, fr)))
			}
		}
		if t < tiers {
			out = append(out, oracleCandidate{v, t})
		}
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].tier != out[j].tier {
			return out[i].tier < out[j].tier
		}
		return oracleLeaves(out[i].w, out[j].w)
	})
	return out
}

func oracleLeaves(a, b *oracleWork) bool {
	if (a.state == "promised") != (b.state == "promised") {
		return a.state == "promised"
	}
	if a.spec.Priority != b.spec.Priority {
		return a.spec.Priority < b.spec.Priority
	}
	if a.at != b.at {
		return a.at > b.at
	}
	return a.spec.ID < b.spec.ID
}

// owes says whether a was evicted for b, directly or through others.
func (o *oracle) owes(a, b WorkloadID) bool {
	for _, v := range o.evicted[b] {
		if v == a || o.owes(a, v) {
			return true
		}
	}
	return false
}

func (o *oracle) permits(p PreemptionPolicy, w, v *oracleWork) bool {
	if o.owes(w.spec.ID, v.spec.ID) {
		return false
	}
	switch p {
	case LowerPriority:
		return v.spec.Priority < w.spec.Priority
	case LowerOrNewerEqualPriority:
		return v.spec.Priority < w.spec.Priority || v.spec.Priority == w.spec.Priority && v.spec.QueuedAt.After(w.spec.QueuedAt)
	case AnyPriority:
		return true
	}
	return false
}

func (o *oracle) classicalVictims(w *oracleWork, q ClusterQueue, use map[oracleFR]int64, contested []oracleFR) []oracleVictim {
	all := o.candidates(w, q, use, contested)
	if len(all) == 0 {
		return nil
	}
	others, advantages, under := false, false, true
	for _, c := range all {
		others = others || c.tier != sameQueue
		advantages = advantages || c.tier == advantage
	}
	for _, fr := range contested {
		quota, _ := o.quota(queueNode(q.Name), fr)
		under = under && o.used(planned, queueNode(q.Name), fr) < int64(quota.Nominal)
	}
	within := q.Preemption.BorrowWithin == LowerPriority
	attempts := []bool{true, false}
	switch {
	case !others || !within && !under:
		attempts = []bool{true}
	case !within && !advantages:
		attempts = []bool{false, true}
	}
attempts:
	for i, mayBorrow := range attempts {
		var chosen []oracleVictim
		for _, c := range all {
			whileBorrowing := within && c.w.spec.Priority < w.spec.Priority &&
				(q.Preemption.BorrowThreshold == nil || c.w.spec.Priority <= *q.Preemption.BorrowThreshold)
			if c.tier == byPriority && mayBorrow && !whileBorrowing || !o.stillOver(q, c, contested) {
				continue
			}
			reason := InCohortReclamation
			if c.tier == sameQueue {
				reason = InClusterQueue
			} else if c.tier == byPriority && whileBorrowing {
				reason = InCohortReclaimWhileBorrowing
			}
			chosen = append(chosen, oracleVictim{c.w, reason})
			c.w.gone = true
			o.dirty()
			if o.fitsPlanned(q, use, mayBorrow) {
				chosen = o.fewest(q, use, mayBorrow, chosen)
				if last := i == len(attempts)-1; !last && !mayBorrow && !slices.ContainsFunc(chosen, func(v oracleVictim) bool { return v.w.queue != q.Name }) {
					// Nobody else has to go, so it may borrow.
					continue attempts
				}
				return chosen
			}
		}
		for _, v := range chosen {
			v.w.gone = false
		}
		o.dirty()
	}
	return nil
}

func (o *oracle) stillOver(q ClusterQueue, c oracleCandidate, contested []oracleFR) bool {
	if c.tier == sameQueue {
		return true
	}
	below := o.ancestor(queueNode(q.Name), queueNode(c.w.queue))
	for _, fr := range contested {
		if c.w.use[fr] > 0 && o.over(c.w.queue, below, fr) {
			return true
		}
	}
	return false
}

// fewest puts back who is not needed, and undoes the imagining.
func (o *oracle) fewest(q ClusterQueue, use map[oracleFR]int64, mayBorrow bool, chosen []oracleVictim) []oracleVictim {
	for i := len(chosen) - 2; i >= 0; i-- {
		chosen[i].w.gone = false
		o.dirty()
		if o.fitsPlanned(q, use, mayBorrow) {
			chosen = append(chosen[:i:i], chosen[i+1:]...)
		} else {
			chosen[i].w.gone = true
			o.dirty()
		}
	}
	for _, v := range chosen {
		v.w.gone = false
	}
	o.dirty()
	return chosen
}
