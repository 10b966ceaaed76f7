package engine

import (
	"math"
	"time"
)

// Admission fair sharing (KEP-4136): within a queue, LocalQueues that used less
// of late go first. Usage is remembered as a number that moves toward what is
// held and forgets by half in every half-life. An admission counts at once, as a
// penalty, until the next sample sees it.

// localUsage is the remembered usage of a LocalQueue, summed over resources by
// their weights.
type localUsage struct {
	consumed, penalty float64
	sampled           instant
}

const defaultSampling = 5 * time.Minute

func (c *AdmissionFairSharing) sampling() instant {
	if c.Sampling <= 0 {
		return instant(defaultSampling)
	}
	return instant(c.Sampling)
}

// kept is the part of a remembered usage that is left after a time.
func (c *AdmissionFairSharing) kept(elapsed instant) float64 {
	if c.HalfLife <= 0 {
		return 0
	}
	return math.Exp2(-float64(elapsed) / float64(c.HalfLife))
}

func (c *AdmissionFairSharing) weigh(charges []charge) float64 {
	sum := 0.0
	for _, ch := range charges {
		weight := 1.0
		if w, ok := c.Weights[ch.cell.Resource]; ok {
			weight = float64(w) / float64(OneWeight)
		}
		sum += float64(ch.amount) * weight
	}
	return sum
}

// compareUsage orders LocalQueues by usage over weight.
func (e *Engine) compareUsage(a, b *local) int {
	if e.opts.usage == nil || a == b {
		return 0
	}
	ua, ub := a.standing(), b.standing()
	switch {
	case ua < ub:
		return -1
	case ua > ub:
		return 1
	}
	return 0
}

func (l *local) standing() float64 {
	used := l.usage.consumed + l.usage.penalty
	if l.spec.Weight == nil {
		return used
	}
	if *l.spec.Weight <= 0 {
		return math.Inf(1)
	}
	return used * float64(OneWeight) / float64(*l.spec.Weight)
}

// chargeUsage counts an admission against its LocalQueue.
func (e *Engine) chargeUsage(w *work) {
	c := e.opts.usage
	if c == nil || w.local == nil || !w.hold.queue.spec.UsageBased {
		return
	}
	w.local.usage.penalty += c.weigh(w.hold.charges) * (1 - c.kept(c.sampling()))
}

// tickUsage takes a sample where one is due.
func (e *Engine) tickUsage() {
	c := e.opts.usage
	if c == nil || e.now < e.usageDue {
		return
	}
	e.usageDue = e.now + c.sampling()
	for _, q := range e.queues {
		if !q.spec.UsageBased {
			continue
		}
		inUse := map[*local]float64{}
		for _, w := range q.holders {
			if w.local != nil {
				inUse[w.local] += c.weigh(w.hold.charges)
			}
		}
		for _, l := range q.locals {
			u := &l.usage
			kept := c.kept(e.now - u.sampled)
			if u.sampled == 0 {
				kept = c.kept(c.sampling())
			}
			u.consumed = u.consumed*kept + inUse[l]*(1-kept)
			u.penalty = 0
			u.sampled = e.now
		}
		e.wakeQueue(q)
	}
}

func (e *Engine) nextUsageTick() instant {
	if e.opts.usage == nil {
		return 0
	}
	for _, q := range e.queues {
		if q.spec.UsageBased {
			return max(e.usageDue, 1)
		}
	}
	return 0
}

// LocalUsage is the remembered usage of a LocalQueue, for its status, and
// whether the LocalQueue exists.
func (e *Engine) LocalUsage(name LocalQueueName) (consumed float64, ok bool) {
	l, ok := e.locals[name]
	if !ok || !l.defined {
		return 0, false
	}
	return l.usage.consumed + l.usage.penalty, true
}

// recallUsage takes over what was remembered before a restart.
func (e *Engine) recallUsage(ev LocalUsageRecalled) {
	l := e.local(ev.Name)
	l.usage = localUsage{consumed: max(0, ev.Consumed), sampled: instantOf(ev.At)}
}
