package controller

import (
	"maps"
	"math"
	"math/bits"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// This file counts the Workloads of queues, for their statuses. Each Workload's
// part is kept beside the sums, and exchanged when the Workload changes: to write
// a status costs the same however many Workloads there are.

// tally is what a queue's workloads add up to.
type tally struct {
	pending, reserving, admitted int32
	// reserved is what is charged, used the part of it that is admitted.
	reserved, used usage
}

func (t *tally) empty() bool { return t.pending == 0 && t.reserving == 0 }

// usage is a sum for each resource of each flavor.
type usage map[flavorResource]sum

type flavorResource struct {
	flavor   engine.FlavorName
	resource engine.Resource
}

// of is what is used of a resource of a flavor.
func (u usage) of(f engine.FlavorName, r engine.Resource) engine.Amount {
	return u[flavorResource{f, r}].amount()
}

func (u usage) change(a engine.Assignment, by int) {
	for i := range a.PodSets {
		set := &a.PodSets[i]
		for r, n := range set.Usage {
			key := flavorResource{set.Flavors[r], r}
			if now := u[key].plus(n, by); now != (sum{}) {
				u[key] = now
			} else {
				delete(u, key)
			}
		}
	}
}

// sum is of 128 bits, so that what was added can be taken away again; amounts
// alone are saturated.
type sum struct{ high, low uint64 }

// plus adds an amount, or takes it away for a negative by.
func (s sum) plus(n engine.Amount, by int) sum {
	low, high := uint64(n), uint64(n>>63)
	var carry uint64
	if by < 0 {
		s.low, carry = bits.Sub64(s.low, low, 0)
		s.high, _ = bits.Sub64(s.high, high, carry)
		return s
	}
	s.low, carry = bits.Add64(s.low, low, 0)
	s.high, _ = bits.Add64(s.high, high, carry)
	return s
}

func (s sum) amount() engine.Amount {
	if s.high != 0 || s.low > math.MaxInt64 {
		return engine.Unlimited
	}
	return engine.Amount(s.low)
}

// contribution is what one Workload adds.
type contribution struct {
	local types.NamespacedName
	// queue is "" for one that waits.
	queue    string
	admitted bool
	charge   engine.Assignment
}

// counts are the tallies of queues.
type counts struct {
	parts  map[engine.WorkloadID]contribution
	queues map[string]tally
	locals map[types.NamespacedName]tally
}

func newCounts() counts {
	return counts{parts: map[engine.WorkloadID]contribution{}, queues: map[string]tally{}, locals: map[types.NamespacedName]tally{}}
}

// set exchanges the part of a Workload; nil is for one that is gone.
func (c *counts) set(id engine.WorkloadID, wl *kueue.Workload) {
	if old, known := c.parts[id]; known {
		c.change(old, -1)
		delete(c.parts, id)
	}
	if wl == nil || conditionTrue(wl, kueue.WorkloadFinished) {
		return
	}
	if wl.Status.Admission == nil && !ptr.Deref(wl.Spec.Active, true) {
		return // deactivated: it is in no queue
	}
	p := contribution{local: types.NamespacedName{Namespace: wl.Namespace, Name: string(wl.Spec.QueueName)}}
	if a := wl.Status.Admission; a != nil {
		p.queue, p.admitted, p.charge = string(a.ClusterQueue), conditionTrue(wl, kueue.WorkloadAdmitted), translate.Charge(wl)
	}
	c.parts[id] = p
	c.change(p, 1)
}

func (c *counts) change(p contribution, by int) {
	change(c.locals, p.local, p, by)
	if p.queue != "" {
		change(c.queues, p.queue, p, by)
	}
}

func change[K comparable](all map[K]tally, name K, p contribution, by int) {
	t := all[name]
	n := int32(by)
	switch {
	case p.queue == "":
		t.pending += n
	default:
		if t.reserved == nil {
			t.reserved, t.used = usage{}, usage{}
		}
		t.reserving += n
		t.reserved.change(p.charge, by)
		if p.admitted {
			t.admitted += n
			t.used.change(p.charge, by)
		}
	}
	if t.empty() {
		delete(all, name)
		return
	}
	all[name] = t
}

// leadTo adds those that wait in LocalQueues to the ClusterQueues that these lead
// to. It is for counts that nothing is exchanged in any more.
func (c *counts) leadTo(locals []kueue.LocalQueue) {
	for i := range locals {
		l := &locals[i]
		if n := c.locals[types.NamespacedName{Namespace: l.Namespace, Name: l.Name}].pending; n > 0 {
			t := c.queues[string(l.Spec.ClusterQueue)]
			t.pending += n
			c.queues[string(l.Spec.ClusterQueue)] = t
		}
	}
}

// count is how the queues stand now.
func (c *core) count() counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return counts{queues: copyTallies(c.counts.queues), locals: copyTallies(c.counts.locals)}
}

func copyTallies[K comparable](all map[K]tally) map[K]tally {
	to := make(map[K]tally, len(all))
	for name, t := range all {
		t.reserved, t.used = maps.Clone(t.reserved), maps.Clone(t.used)
		to[name] = t
	}
	return to
}
