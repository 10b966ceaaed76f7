package engine

import (
	"fmt"
	"reflect"
	"sort"
)

// The oracle follows what the engine decided.

// before is the order of a queue.
func oracleBefore(a, b *oracleWork) bool {
	if a.spec.Priority != b.spec.Priority {
		return a.spec.Priority > b.spec.Priority
	}
	if !a.spec.QueuedAt.Equal(b.spec.QueuedAt) {
		return a.spec.QueuedAt.Before(b.spec.QueuedAt)
	}
	return a.spec.ID < b.spec.ID
}

func (o *oracle) waiting(q QueueName) []*oracleWork {
	var out []*oracleWork
	for _, w := range o.works {
		if w.state == "" && QueueName(w.spec.LocalQueue.Name) == q {
			out = append(out, w)
		}
	}
	sort.Slice(out, func(i, j int) bool { return oracleBefore(out[i], out[j]) })
	return out
}

func (o *oracle) active(q ClusterQueue) bool {
	return (q.Stop == "" || q.Stop == StopNone) && !o.cyclic(queueNode(q.Name))
}

func (o *oracle) promisesOf(q QueueName) int {
	n := 0
	for _, w := range o.works {
		if w.state == "promised" && w.queue == q {
			n++
		}
	}
	return n
}

// heads are those that could be tried now: of a StrictFIFO queue the first, of
// another all.
func (o *oracle) heads(q ClusterQueue) []*oracleWork {
	if !o.active(q) {
		return nil
	}
	all := o.waiting(q.Name)
	if q.Strategy == StrictFIFO {
		if o.promisesOf(q.Name) > 0 {
			return nil
		}
		return all[:min(1, len(all))]
	}
	return all
}

// follow checks decisions against the rules and takes them over.
func (o *oracle) follow(decisions []Decision, now int64, inOrder bool) error {
	// First of all those who must go whoever waits.
	for len(decisions) > 0 {
		d, ok := decisions[0].(Evict)
		if !ok || d.For != "" {
			break
		}
		o.works[d.Victim].state = "leaving"
		o.dirty()
		decisions = decisions[1:]
	}
	o.dropHopeless()
	var expected []oracleVictim
	var expectFor WorkloadID
	for _, d := range decisions {
		if ev, ok := d.(Evict); !ok || ev.For != expectFor {
			if len(expected) > 0 {
				return fmt.Errorf("before %q: %s should also be evicted for %s", d, expected[0].w.spec.ID, expectFor)
			}
		}
		switch d := d.(type) {
		case Admit:
			if err := o.followAdmit(d, now, inOrder); err != nil {
				return fmt.Errorf("%q: %w", d, err)
			}
		case Evict:
			if d.For != expectFor || len(expected) == 0 {
				var err error
				if expected, err = o.followPromise(d.For); err != nil {
					return fmt.Errorf("%q: %w", d, err)
				}
				expectFor = d.For
			}
			if len(expected) == 0 || expected[0].w.spec.ID != d.Victim || expected[0].reason != d.Reason {
				return fmt.Errorf("%q: expected victims %v", d, ids(expected))
			}
			expected = expected[1:]
		case Wait:
			if d.Why.State == Promised && o.works[d.ID].state == "" {
				var err error
				if expected, err = o.followPromise(d.ID); err != nil {
					return fmt.Errorf("%q: %w", d, err)
				}
				if len(expected) > 0 {
					return fmt.Errorf("%q: expected victims %v", d, ids(expected))
				}
			}
		}
	}
	return nil
}

// dropHopeless gives up the promises that do not fit although nobody leaves any
// more, as the engine does first of all.
func (o *oracle) dropHopeless() {
	var waiting, kept []*oracleWork
	for _, w := range o.works {
		if w.state == "promised" {
			waiting = append(waiting, w)
		}
	}
	sort.Slice(waiting, func(i, j int) bool { return oracleBefore(waiting[i], waiting[j]) })
	for _, w := range waiting {
		n := queueNode(w.queue)
		fits := true
		for fr, ask := range w.use {
			fits = fits && (ask == 0 || ask <= o.available(held, n, fr) && o.available(planned, n, fr) >= 0)
		}
		switch {
		case fits:
			w.state = "holding"
			kept = append(kept, w)
		case !o.leavingAround(n):
			w.state, w.queue, w.use = "", "", nil
		}
		o.dirty()
	}
	for _, w := range kept {
		w.state = "promised"
	}
	o.dirty()
}

func (o *oracle) leavingAround(n oracleNode) bool {
	path := o.path(n)
	for _, w := range o.works {
		if w.state == "leaving" && o.ancestor(queueNode(w.queue), path[len(path)-1]) != "" {
			return true
		}
	}
	return false
}

func ids(victims []oracleVictim) []string {
	var out []string
	for _, v := range victims {
		out = append(out, fmt.Sprintf("%s(%s)", v.w.spec.ID, v.reason))
	}
	return out
}

func (o *oracle) followAdmit(d Admit, now int64, inOrder bool) error {
	w := o.works[d.ID]
	q := o.queues[d.Assignment.Queue]
	if w.state == "promised" && reflect.DeepEqual(w.a, d.Assignment) {
		for fr, ask := range w.use {
			if ask > 0 && ask > o.available(held, queueNode(q.Name), fr) {
				return fmt.Errorf("its promise does not fit: %d of %v, %d available", ask, fr, o.available(held, queueNode(q.Name), fr))
			}
		}
		w.state, w.at = "holding", now
		o.dirty()
		return nil
	}
	w.state = ""
	o.dirty()
	out := o.nominate(w, q)
	if out.mode != fits || !reflect.DeepEqual(out.a, d.Assignment) {
		return fmt.Errorf("the rules say %s", out)
	}
	if inOrder {
		if first := o.mayGoFirst(w); first != w {
			return fmt.Errorf("%s goes first", first.spec.ID)
		}
	}
	w.state, w.queue, w.use, w.at, w.a = "holding", q.Name, out.use, now, out.a
	o.dirty()
	return nil
}

func (out outcome) String() string {
	return fmt.Sprintf("mode %d, borrow %d, %v, victims %v", out.mode, out.borrow, out.a, ids(out.victims))
}

// mayGoFirst says whether a workload may be the next: trees are taken one after
// the other, so it is compared within its own.
func (o *oracle) mayGoFirst(w *oracleWork) *oracleWork {
	top := o.path(queueNode(QueueName(w.spec.LocalQueue.Name)))
	root := top[len(top)-1]
	var best *oracleWork
	var bestOut outcome
	nominees := map[QueueName]*oracleWork{}
	for _, q := range o.queues {
		if o.cyclic(queueNode(q.Name)) {
			continue
		}
		if p := o.path(queueNode(q.Name)); p[len(p)-1] != root {
			continue
		}
		for _, w := range o.heads(q) {
			out := o.nominate(w, q)
			if !out.mode.viable() {
				continue
			}
			nominees[q.Name] = w
			if best == nil || out.borrow < bestOut.borrow || out.borrow == bestOut.borrow && oracleBefore(w, best) {
				best, bestOut = w, out
			}
			break
		}
	}
	if o.fair != nil {
		return o.firstByShare(root, nominees)
	}
	return best
}

// followPromise takes over a promise, and returns whom the rules evict for it.
func (o *oracle) followPromise(id WorkloadID) ([]oracleVictim, error) {
	w := o.works[id]
	w.state = ""
	o.dirty()
	q := o.queues[QueueName(w.spec.LocalQueue.Name)]
	out := o.nominate(w, q)
	if !out.mode.viable() || out.mode == fits {
		return nil, fmt.Errorf("the rules say %s", out)
	}
	// Minimal: none of them could stay.
	for _, kept := range out.victims {
		for _, v := range out.victims {
			v.w.gone = v != kept
		}
		o.dirty()
		if o.fitsPlanned(q, out.use, true) && o.fair == nil {
			// Whoever evicts from others must not borrow, but by borrowWithinCohort.
			own := true
			for _, v := range out.victims {
				own = own && v.reason == InClusterQueue
			}
			if own || o.fitsPlanned(q, out.use, false) {
				return nil, fmt.Errorf("victim %s could stay", kept.w.spec.ID)
			}
		}
	}
	var evicted []oracleVictim
	for _, v := range out.victims {
		v.w.gone = false
		if o.evicted == nil {
			o.evicted = map[WorkloadID][]WorkloadID{}
		}
		o.evicted[id] = append(o.evicted[id], v.w.spec.ID)
		if v.w.state == "promised" {
			v.w.state = ""
			continue
		}
		v.w.state, v.w.forWork = "leaving", id
		evicted = append(evicted, v)
	}
	w.state, w.queue, w.use, w.a, w.at = "promised", q.Name, out.use, out.a, 0
	o.dirty()
	return evicted, nil
}

// settled says that nobody is left who could go.
func (o *oracle) settled() error {
	for name, q := range o.queues {
		for _, w := range o.heads(q) {
			if out := o.nominate(w, q); out.mode.viable() {
				return fmt.Errorf("%s waits in %s, but the rules say %s", w.spec.ID, name, out)
			}
		}
	}
	return nil
}
