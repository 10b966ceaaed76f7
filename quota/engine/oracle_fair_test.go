package engine

import (
	"math/big"
	"sort"
	"strings"
)

// The oracle's fair sharing, in rational numbers.

// oracleShare is a share; infinite is borrowing with weight 0.
type oracleShare struct {
	infinite bool
	value    *big.Rat
}

func (a oracleShare) cmp(b oracleShare) int {
	if a.infinite != b.infinite {
		if a.infinite {
			return 1
		}
		return -1
	}
	return a.value.Cmp(b.value)
}

func (o *oracle) weight(n oracleNode) Weight {
	var w *Weight
	if q, ok := strings.CutPrefix(string(n), "q/"); ok {
		w = o.queues[QueueName(q)].Weight
	} else {
		w = o.cohorts[CohortName(strings.TrimPrefix(string(n), "c/"))].Weight
	}
	if w == nil {
		return OneWeight
	}
	return *w
}

// everything is all flavors and resources that any quota names.
func (o *oracle) everything() map[Resource][]oracleFR {
	seen := map[oracleFR]bool{}
	out := map[Resource][]oracleFR{}
	add := func(groups []ResourceGroup) {
		for _, g := range groups {
			for _, f := range g.Flavors {
				for _, r := range g.Resources {
					fr := oracleFR{Flavor: f.Flavor, Resource: r}
					if !seen[fr] {
						seen[fr] = true
						out[r] = append(out[r], fr)
					}
				}
			}
		}
	}
	for _, q := range o.queues {
		add(q.Groups)
	}
	for _, c := range o.cohorts {
		add(c.Groups)
	}
	return out
}

func (o *oracle) share(n oracleNode) oracleShare {
	best := oracleShare{value: new(big.Rat)}
	p := o.parent(n)
	if p == "" {
		return best
	}
	for _, frs := range o.everything() {
		var borrowed, lendable int64
		for _, fr := range frs {
			borrowed += max(0, o.used(planned, n, fr)-o.subtree(n, fr))
			lendable += max(0, o.potential(p, fr))
		}
		if borrowed == 0 || lendable == 0 {
			continue
		}
		s := oracleShare{value: big.NewRat(borrowed, lendable)}
		if w := o.weight(n); w == 0 {
			s.infinite = true
		} else {
			s.value.Mul(s.value, big.NewRat(int64(OneWeight), int64(w)))
		}
		if s.cmp(best) > 0 {
			best = s
		}
	}
	return best
}

// oracleSearch is the state of a search for victims.
type oracleSearch struct {
	o     *oracle
	w     *oracleWork
	q     ClusterQueue
	use   map[oracleFR]int64
	lists map[QueueName][]*oracleWork
}

func (o *oracle) fairVictims(w *oracleWork, q ClusterQueue, use map[oracleFR]int64, contested []oracleFR) []oracleVictim {
	s := &oracleSearch{o: o, w: w, q: q, use: use, lists: map[QueueName][]*oracleWork{}}
	for _, c := range o.candidates(w, q, use, contested) {
		s.lists[c.w.queue] = nil
	}
	if len(s.lists) == 0 {
		return nil
	}
	for name := range s.lists {
		policy := q.Preemption.Reclaim
		if name == q.Name {
			policy = q.Preemption.WithinQueue
		}
		for _, v := range o.works {
			uses := false
			for _, fr := range contested {
				uses = uses || v.use[fr] > 0
			}
			if v.queue == name && v != w && uses && (v.state == "holding" || v.state == "promised") && o.permits(policy, w, v) {
				s.lists[name] = append(s.lists[name], v)
			}
		}
		list := s.lists[name]
		sort.Slice(list, func(i, j int) bool { return oracleLeaves(list[i], list[j]) })
	}
	within := true
	for _, fr := range contested {
		within = within && o.used(planned, queueNode(q.Name), fr)+use[fr] <= o.subtree(queueNode(q.Name), fr)
	}
	o.imaginedAt, o.imaginedIn = q.Name, use
	o.dirty()
	initial := map[QueueName]oracleShare{}
	for name := range s.lists {
		if name != q.Name {
			_, theirs := s.branches(name)
			initial[name] = o.share(theirs)
		}
	}
	chosen, ok := s.search(contested, within)
	for i := len(chosen) - 2; ok && i >= 0; i-- {
		chosen[i].w.gone = false
		o.dirty()
		if fewer := append(append([]oracleVictim(nil), chosen[:i]...), chosen[i+1:]...); s.fits() && s.fairTo(fewer, initial) {
			chosen = fewer
		} else {
			chosen[i].w.gone = true
			o.dirty()
		}
	}
	for _, v := range o.works {
		v.gone = false
	}
	o.imaginedAt = ""
	o.dirty()
	if !ok {
		return nil
	}
	return chosen
}

// fairTo says whether a strategy allows all these victims.
func (s *oracleSearch) fairTo(victims []oracleVictim, initial map[QueueName]oracleShare) bool {
	for _, v := range victims {
		if v.reason != InCohortFairSharing {
			continue
		}
		mine, theirs := s.branches(v.w.queue)
		newShare, before, after := s.shareWithOwn(mine), initial[v.w.queue], s.o.share(theirs)
		ok := false
		for _, strategy := range s.o.fair {
			if strategy == LessThanInitialShare {
				ok = ok || newShare.cmp(before) < 0
			} else {
				ok = ok || newShare.cmp(after) < 0 || newShare.cmp(after) == 0 && after.cmp(before) < 0
			}
		}
		if !ok {
			return false
		}
	}
	return true
}

// branches are the children of the common ancestor with another queue.
func (s *oracleSearch) branches(other QueueName) (oracleNode, oracleNode) {
	mine, theirs := queueNode(s.q.Name), queueNode(other)
	lca := s.o.ancestor(mine, theirs)
	for s.o.parent(mine) != lca {
		mine = s.o.parent(mine)
	}
	for s.o.parent(theirs) != lca {
		theirs = s.o.parent(theirs)
	}
	return mine, theirs
}

func (s *oracleSearch) fits() bool {
	for fr, ask := range s.use {
		if ask > 0 && s.o.available(planned, queueNode(s.q.Name), fr) < 0 {
			return false
		}
	}
	return true
}

func (s *oracleSearch) search(contested []oracleFR, within bool) ([]oracleVictim, bool) {
	var chosen []oracleVictim
	take := func(v *oracleWork, reason EvictReason) bool {
		v.gone = true
		s.o.dirty()
		chosen = append(chosen, oracleVictim{v, reason})
		return s.fits()
	}
	root := s.o.path(queueNode(s.q.Name))
	top := root[len(root)-1]
	later := map[QueueName][]*oracleWork{}
	for pass, strategy := range s.o.fair {
		if pass == 1 {
			for name := range s.lists {
				s.lists[name] = later[name][:min(1, len(later[name]))]
			}
		}
		for {
			name := s.target(top)
			if name == "" {
				break
			}
			v := s.lists[name][0]
			s.lists[name] = s.lists[name][1:]
			if name == s.q.Name {
				if take(v, InClusterQueue) {
					return chosen, true
				}
				continue
			}
			if !s.o.stillOver(s.q, oracleCandidate{v, byPriority}, contested) {
				continue
			}
			switch {
			case within && pass == 0:
				if take(v, InCohortReclamation) {
					return chosen, true
				}
			case s.allowed(v, strategy):
				if take(v, InCohortFairSharing) {
					return chosen, true
				}
			default:
				later[name] = append(later[name], v)
			}
		}
	}
	return chosen, false
}

func (s *oracleSearch) allowed(v *oracleWork, strategy FairStrategy) bool {
	mine, theirs := s.branches(v.queue)
	newShare, before := s.shareWithOwn(mine), s.o.share(theirs)
	if strategy == LessThanInitialShare {
		return newShare.cmp(before) < 0
	}
	v.gone = true
	s.o.dirty()
	after := s.o.share(theirs)
	v.gone = false
	s.o.dirty()
	return newShare.cmp(after) < 0 || newShare.cmp(after) == 0 && after.cmp(before) < 0
}

// shareWithOwn counts the victims of the preemptor's own queue as if they stayed.
func (s *oracleSearch) shareWithOwn(n oracleNode) oracleShare {
	var own []*oracleWork
	for _, w := range s.o.works {
		if w.gone && w.queue == s.q.Name {
			own = append(own, w)
			w.gone = false
		}
	}
	s.o.dirty()
	share := s.o.share(n)
	for _, w := range own {
		w.gone = true
	}
	s.o.dirty()
	return share
}

// target goes down by the highest share to a queue that has a candidate.
func (s *oracleSearch) target(n oracleNode) QueueName {
	if q, ok := strings.CutPrefix(string(n), "q/"); ok {
		if len(s.lists[QueueName(q)]) > 0 {
			return QueueName(q)
		}
		return ""
	}
	best, bestNode := QueueName(""), oracleNode("")
	for _, c := range s.o.children(n) {
		share := s.o.share(c)
		if share.value.Sign() == 0 && !share.infinite && !s.above(c) {
			continue
		}
		found := s.target(c)
		if found == "" {
			continue
		}
		if best == "" || s.goesBefore(c, bestNode) {
			best, bestNode = found, c
		}
	}
	return best
}

func (s *oracleSearch) above(n oracleNode) bool {
	for _, p := range s.o.path(queueNode(s.q.Name)) {
		if p == n {
			return true
		}
	}
	return false
}

func (s *oracleSearch) goesBefore(a, b oracleNode) bool {
	if c := s.o.share(a).cmp(s.o.share(b)); c != 0 {
		return c > 0
	}
	qa, isA := strings.CutPrefix(string(a), "q/")
	qb, isB := strings.CutPrefix(string(b), "q/")
	if isA != isB {
		return !isA
	}
	if isA {
		return oracleLeaves(s.lists[QueueName(qa)][0], s.lists[QueueName(qb)][0])
	}
	return a < b
}

// firstByShare is who goes next in fair sharing when nobody may be evicted: from
// the root down, the child that does not borrow what is asked, then the one with
// the lower share.
func (o *oracle) firstByShare(n oracleNode, nominees map[QueueName]*oracleWork) *oracleWork {
	if q, ok := strings.CutPrefix(string(n), "q/"); ok {
		return nominees[QueueName(q)]
	}
	var best *oracleWork
	var bestBorrows bool
	var bestShare oracleShare
	for _, c := range o.children(n) {
		w := o.firstByShare(c, nominees)
		if w == nil {
			continue
		}
		q := QueueName(w.spec.LocalQueue.Name)
		out := o.nominate(w, o.queues[q])
		o.imaginedAt, o.imaginedIn = q, out.use
		o.dirty()
		share, borrows := o.share(c), false
		for fr, ask := range out.use {
			borrows = borrows || ask > 0 && o.used(planned, c, fr) > o.subtree(c, fr)
		}
		o.imaginedAt = ""
		o.dirty()
		better := best == nil
		if best != nil {
			switch {
			case borrows != bestBorrows:
				better = bestBorrows
			case share.cmp(bestShare) != 0:
				better = share.cmp(bestShare) < 0
			default:
				better = oracleBefore(w, best)
			}
		}
		if better {
			best, bestBorrows, bestShare = w, borrows, share
		}
	}
	return best
}
