package fit

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// openTries bounds on how many nodes, and in how many places promised to others of
// its set, it is tried to open a gate.
const openTries = 8

// yieldAfter is how long a pod waits for others, who were promised room and have
// to come before it, to come.
const yieldAfter = time.Minute

// Open finds the node for a pod whose gate is to open, and gives it a slot
// until [State.Settle].
//
// The place promised to its workload is taken if it still has room and nobody's
// room is lost by that (see order.go), another one otherwise. The answer is a
// reason instead if there is none.
//
// A pod that has a slot keeps it while the node would still take the pod. When
// the node is gone, cordoned or full, it gets another; if there is none, it keeps
// what it has, since the scheduler may be about to use it.
func (s *State) Open(id engine.WorkloadID, a *engine.PodSetAssignment, pod types.UID) (string, *engine.NoRoom) {
	w := s.workloads[id]
	if w == nil || w.set(a.Name) == nil {
		return "", &engine.NoRoom{Reason: "what its pods need is not known yet"}
	}
	mine, given := w.slotFor(a.Name, pod)
	if given && mine.equipped {
		// Its devices are allocated: it goes where they are.
		return mine.node, nil
	}
	// Without the slot that was promised, there is at least its own room.
	t := s.lookFor(mine)
	q := s.query(id, w, w.set(a.Name), a, map[string]string{}, t)
	found := s.promisedOn(mine, q, t)
	if given && found != nil {
		return mine.node, nil
	}
	found, why := s.openOn(q, t, found, mine)
	if why != nil {
		// What is left may be promised to others of its set, who are not there yet.
		for _, sl := range s.othersOf(w, mine, a.Name) {
			t = s.lookFor(sl)
			if found = s.promisedOn(sl, q, t); found == nil {
				continue
			}
			if found, _ = s.openOn(q, t, found, sl); found != nil {
				if given {
					mine.pod = ""
				}
				mine, why = sl, nil
				break
			}
		}
	}
	if why != nil {
		if given {
			return mine.node, nil
		}
		s.counts.Refusals[why.cause]++
		return "", &why.NoRoom
	}
	if given {
		s.counts.Moved++
	}
	found.pod = pod
	freed := s.freed
	s.removeSlots(w, func(sl *slot) bool { return sl == mine })
	s.addSlot(w, found)
	if mine != nil && !mine.awaited && found.takes(mine) {
		// It has taken the place that was promised. Nobody else has more room for
		// that: what is safe beside a pod on its way is so beside a promise.
		s.freed = freed
	}
	return found.node, nil
}

// othersOf are a few places promised to pods of a set that are not there yet, other
// ones each time: of a large gang, each pod would try those of all.
func (s *State) othersOf(w *workload, mine *slot, set string) []*slot {
	var all []*slot
	for i := range w.slots {
		sl := w.slots[(i+s.turn)%len(w.slots)]
		if sl == mine || sl.pod != "" || sl.set != set {
			continue
		}
		if all = append(all, sl); len(all) == openTries {
			s.turn = (i + s.turn + 1) % len(w.slots)
			break
		}
	}
	return all
}

// slotFor is the slot that a pod has, or else one that its workload was promised;
// nil if there is neither.
func (w *workload) slotFor(set string, pod types.UID) (mine *slot, given bool) {
	for _, sl := range w.slots {
		if sl.pod == pod {
			return sl, true
		}
		if mine == nil && sl.pod == "" && sl.set == set {
			mine = sl
		}
	}
	return mine, false
}

// openOn is the first place of a pod, from the one that was found for it on, where
// it may be sent.
func (s *State) openOn(q *query, t *trial, found, mine *slot) (*slot, *noRoom) {
	var first *noRoom
	for range openTries {
		if found == nil {
			var why *noRoom
			if found, why = s.placeOne(q, t, map[string]string{}); why != nil {
				return nil, cmp.Or(first, why)
			}
		}
		n := s.nodes[found.node]
		l := s.lineOf(n, t)
		l.flight = append(l.flight, found)
		if s.safe(n, l, nil) || s.overdue(mine) && s.safe(n, line{flight: l.flight, awaited: l.asked()}, nil) {
			return found, nil
		}
		if first == nil {
			first = &noRoom{cause: CauseCards, NoRoom: engine.NoRoom{Reason: l.overtaken(found.node)}}
		}
		t.bar(n)
		found = nil
	}
	return nil, first
}

// asked are the places that others were asked to leave. They leave in time; a place
// that is only kept may be others' for days, and who was promised room before cannot
// wait for that.
func (l *line) asked() []*slot {
	return slices.DeleteFunc(slices.Clone(l.awaited), func(sl *slot) bool { return sl.kept > 0 })
}

// overtaken says what speaks against a further pod on a node.
func (l *line) overtaken(node string) string {
	switch {
	case len(l.awaited) > 0:
		return fmt.Sprintf("on %s the scheduler might give it what is kept for another", node)
	case len(l.flight) > 1:
		return fmt.Sprintf("pods in flight on %s could take its room in another order", node)
	}
	return fmt.Sprintf("on %s it could take what another was promised, who has to come first", node)
}

// overdue says that whoever has to come before a promise is used has had his time.
func (s *State) overdue(mine *slot) bool {
	if mine == nil {
		return false
	}
	now := s.searching.now()
	if mine.since.IsZero() {
		mine.since = now
	}
	return now.Sub(mine.since) >= yieldAfter
}

// takes says whether a slot takes the same of the same node as another.
func (sl *slot) takes(other *slot) bool {
	return sl.node == other.node && equality.Semantic.DeepEqual(sl.requests, other.requests) &&
		slices.EqualFunc(sl.devices, other.devices, func(a, b device) bool {
			return a.key == b.key && a.id == b.id && equality.Semantic.DeepEqual(a.ConsumedCapacity, b.ConsumedCapacity)
		})
}

// promisedOn tries the promised node first.
func (s *State) promisedOn(promised *slot, q *query, t *trial) *slot {
	if promised == nil {
		return nil
	}
	n := s.nodes[promised.node]
	if n == nil || n.object == nil || q.fixed != "" && q.fixed != n.name {
		return nil
	}
	sl, err := s.try(q, n, t, &refusals{})
	if err != nil {
		return nil
	}
	return sl
}
