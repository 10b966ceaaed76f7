package controller

import (
	"cmp"
	"slices"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// This file finds who of other ClusterQueues may be evicted for room, by the rule by
// which Kueue reclaims quota: one whose queue is within its nominal quota may have
// those evicted whose queues borrow, if its queue's reclaimWithinCohort says so.
//
// What a queue uses is counted here by what is on cards, or has places on them: a
// queue that has reserved more than its nominal quota, and found no room for the
// rest, borrows no card. Only queues of the same cohort count, not those further up
// or down in a tree of cohorts: whether those borrow is a matter of more than their
// own quotas.

// quotaKey is what a nominal quota is about.
type quotaKey struct {
	flavor   engine.FlavorName
	resource engine.Resource
}

type quotas map[quotaKey]engine.Amount

// change adds what a workload is charged for devices, or takes it away.
func (q quotas) change(of quotas, by func(engine.Amount, engine.Amount) engine.Amount) {
	for key, n := range of {
		q[key] = by(q[key], n)
	}
}

// chargedFor is what a workload is charged for devices.
func (c *core) chargedFor(wl *kueue.Workload) quotas {
	all := quotas{}
	for _, set := range translate.Charge(wl).PodSets {
		for _, r := range c.priced() {
			if n := set.Usage[r]; n > 0 {
				key := quotaKey{set.Flavors[r], r}
				all[key] = all[key].Add(n)
			}
		}
	}
	return all
}

// nominalOf is what a ClusterQueue has of its own.
func nominalOf(q *kueue.ClusterQueue) quotas {
	all := quotas{}
	for _, g := range q.Spec.ResourceGroups {
		for _, f := range g.Flavors {
			for _, r := range f.Resources {
				all[quotaKey{engine.FlavorName(f.Name), engine.Resource(r.Name)}] = translate.Amount(r.Name, r.NominalQuota)
			}
		}
	}
	return all
}

// onCards says whether a workload is on cards, or has places there.
func (c *core) onCards(w *work) bool { return w.placed || len(w.awaits) > 0 || c.inUse(w.id) }

// borrowing are the workloads of other queues that one may have evicted, and by how
// much their queues exceed their nominal quotas.
type borrowing struct {
	core *core
	// asked is what the one that waits is charged.
	asked quotas
	// over is what queues use beyond their nominal quotas, below zero if less.
	over map[kueue.ClusterQueueReference]quotas
	// all are candidates, in the order in which they are taken.
	all []*work
}

// borrowers finds them for a workload that waits for room.
func (c *core) borrowers(w *work) *borrowing {
	b := &borrowing{core: c, over: map[kueue.ClusterQueueReference]quotas{}}
	mine := w.object.Status.Admission.ClusterQueue
	q := c.queues[string(mine)]
	if q == nil || q.Spec.CohortName == "" || q.Spec.Preemption == nil {
		return b
	}
	policy := q.Spec.Preemption.ReclaimWithinCohort
	if policy != kueue.PreemptionPolicyAny && policy != kueue.PreemptionPolicyLowerPriority {
		return b
	}
	b.asked = c.chargedFor(w.object)
	own := nominalOf(q)
	for id := range c.rooms.holding[mine] {
		if v := c.works[id]; v != nil && (v == w || c.onCards(v)) {
			own.change(c.chargedFor(v.object), engine.Amount.Sub)
		}
	}
	for key := range b.asked {
		if own[key] < 0 {
			return b
		}
	}
	for name := range c.rooms.holding {
		other := c.queues[string(name)]
		if name == mine || other == nil || other.Spec.CohortName != q.Spec.CohortName {
			continue
		}
		over := quotas{}
		over.change(nominalOf(other), engine.Amount.Sub)
		var there []*work
		for id := range c.rooms.holding[name] {
			v := c.works[id]
			if v == nil || c.isLeaving(id) || !c.onCards(v) {
				continue
			}
			over.change(c.chargedFor(v.object), engine.Amount.Add)
			if len(v.awaits) == 0 && len(c.ourChecks(v.object)) > 0 && (policy == kueue.PreemptionPolicyAny || priorityOf(v) < priorityOf(w)) {
				there = append(there, v)
			}
		}
		b.over[name] = over
		for _, v := range there {
			if b.borrows(v) {
				b.all = append(b.all, v)
			}
		}
	}
	slices.SortFunc(b.all, leastImportant)
	return b
}

// borrows says whether the queue of a workload borrows what it has and the one that
// waits needs.
func (b *borrowing) borrows(v *work) bool {
	over := b.over[v.object.Status.Admission.ClusterQueue]
	for key := range b.core.chargedFor(v.object) {
		if _, asked := b.asked[key]; asked && over[key] > 0 {
			return true
		}
	}
	return false
}

// next are the candidates as they may be taken one after the other: none of a queue
// that does not borrow any more without those before.
func (b *borrowing) next() []*work {
	var taken []*work
	for _, v := range b.all {
		if len(taken) < mostVictims && b.borrows(v) {
			b.over[v.object.Status.Admission.ClusterQueue].change(b.core.chargedFor(v.object), engine.Amount.Sub)
			taken = append(taken, v)
		}
	}
	return taken
}

// leastImportant is the order in which workloads are taken: the lowest priority
// first, of one priority who came last.
func leastImportant(a, b *work) int {
	return cmp.Or(cmp.Compare(priorityOf(a), priorityOf(b)), -reservedAt(a.object).Compare(reservedAt(b.object)), cmp.Compare(a.id, b.id))
}
