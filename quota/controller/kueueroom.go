package controller

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/beside"
	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/lifecycle"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// This file finds out what Kueue asks, whether the pods of a workload have room, and
// whom Kueue is to evict for it: those that were admitted and have none, and those of
// lower priority that are in the way. What was found is written in kueueanswer.go.

// questions are the workloads that hold quota of Kueue's, and what is to be found out
// about them. A look costs what has changed: those that found no room are tried
// again when room may have come.
type questions struct {
	// open are those that Kueue asks about and that have no place, due those of them
	// whose look is due.
	open, due map[engine.WorkloadID]struct{}
	// holding are those that hold quota of a ClusterQueue and go on, leaving those
	// that are evicted, or about to be, and have it yet.
	holding map[kueue.ClusterQueueReference]map[engine.WorkloadID]struct{}
	leaving map[engine.WorkloadID]struct{}
	// patience is how long one that was admitted may be unable to begin.
	patience time.Duration
}

func newQuestions() questions {
	return questions{
		open: map[engine.WorkloadID]struct{}{}, due: map[engine.WorkloadID]struct{}{},
		holding: map[kueue.ClusterQueueReference]map[engine.WorkloadID]struct{}{}, leaving: map[engine.WorkloadID]struct{}{},
		patience: startPatience,
	}
}

// noteAsk takes in what a version of a Workload asks, after another one. now is nil
// for one that is gone.
func (c *core) noteAsk(w *work, before, now *kueue.Workload) {
	if !c.beside {
		return
	}
	a := &c.rooms
	if held := granted(before); held != nil {
		delete(a.holding[held.ClusterQueue], w.id)
		if len(a.holding[held.ClusterQueue]) == 0 {
			delete(a.holding, held.ClusterQueue)
		}
	}
	held := granted(now)
	if held != nil {
		if a.holding[held.ClusterQueue] == nil {
			a.holding[held.ClusterQueue] = map[engine.WorkloadID]struct{}{}
		}
		a.holding[held.ClusterQueue][w.id] = struct{}{}
	} else {
		w.yields, w.yieldsTo, w.roomless, w.stalled = "", "", "", stall{}
	}
	if w.yields != "" || held == nil && now != nil && now.Status.Admission != nil {
		if !c.isLeaving(w.id) {
			a.leaving[w.id] = struct{}{}
			c.room = true
		}
	} else {
		delete(a.leaving, w.id)
	}
	if w.placed || !c.asksForRoom(now) {
		delete(a.open, w.id)
		delete(a.due, w.id)
		if w.awaits != nil && !w.placed {
			c.fit.Drop(w.id)
		}
		c.letStay(w)
		return
	}
	if _, known := a.open[w.id]; !known {
		a.open[w.id], a.due[w.id] = struct{}{}, struct{}{}
	}
}

// asksForRoom says whether Kueue has reserved quota for a workload and waits for
// our answer.
func (c *core) asksForRoom(wl *kueue.Workload) bool {
	if wl == nil || granted(wl) == nil || wl.DeletionTimestamp != nil || conditionTrue(wl, kueue.WorkloadAdmitted) {
		return false
	}
	return slices.ContainsFunc(c.ourChecks(wl), func(s *kueue.AdmissionCheckState) bool { return s.State == kueue.CheckStatePending })
}

// unanswered says whether a workload was not admitted yet and has no place by our
// word: Kueue asks for it, or is about to take its quota back.
func (c *core) unanswered(wl *kueue.Workload) bool {
	return !conditionTrue(wl, kueue.WorkloadAdmitted) &&
		slices.ContainsFunc(c.ourChecks(wl), func(s *kueue.AdmissionCheckState) bool { return s.State != kueue.CheckStateReady })
}

// findRoom looks for room for those workloads that Kueue asks about and whose look
// is due, or for all of them if room may have come, in the order in which they
// would be admitted here.
func (c *core) findRoom(came bool) {
	due := c.rooms.due
	if came {
		due = c.rooms.open
	}
	var asking []*work
	for id := range due {
		if w := c.works[id]; w != nil && !w.placed && c.asksForRoom(w.object) {
			asking = append(asking, w)
		}
	}
	clear(c.rooms.due)
	slices.SortFunc(asking, func(a, b *work) int {
		return cmp.Or(-cmp.Compare(priorityOf(a), priorityOf(b)), reservedAt(a.object).Compare(reservedAt(b.object)), cmp.Compare(a.id, b.id))
	})
	for _, w := range asking {
		before := w.roomless
		w.roomless = cmp.Or(c.unpaid(w.object), topologyOf(w.object), c.sentAway(w.object))
		var victims []*work
		if w.roomless == "" && !c.growing(w.object) {
			w.roomless, victims = c.findPlace(w, before)
		}
		if w.placed = w.roomless == ""; w.placed {
			delete(c.rooms.open, w.id)
		}
		if w.placed || w.roomless != before {
			c.tell(w.id)
		}
		if len(victims) > 0 {
			// What is kept for pods of those that have to go is free now. The next
			// look offers it in order; those after this one would take it before.
			for _, v := range victims {
				c.giveUpPromises(v)
			}
			return
		}
	}
}

// findPlace finds and takes the places of a workload's pods. It says why there are
// none, or for whom is waited that has them, and who was told to go for it; before
// is what it said last.
func (c *core) findPlace(w *work, before string) (why string, victims []*work) {
	asked := translate.Assignment(w.object.Status.Admission)
	place, no := c.fit.Place(&engine.Workload{ID: w.id}, asked, nil)
	if no == nil {
		c.fit.Take(w.id, place)
		c.letStay(w)
		return "", nil
	}
	if slices.ContainsFunc(w.awaits, c.isLeaving) {
		return before, nil
	}
	if w.awaits != nil {
		w.awaits = nil
		c.fit.Drop(w.id)
	}
	place, others := c.clearFor(w, asked)
	if len(others) == 0 {
		return "the budget allows it, but " + no.String(), nil
	}
	// Its places are kept for it while the others leave them.
	c.fit.Take(w.id, place)
	var names []string
	for _, v := range others {
		w.awaits = append(w.awaits, v.id)
		names = append(names, nameOf(v.id).Name)
		if !c.isLeaving(v.id) {
			c.yield(v, w)
			victims = append(victims, v)
		}
	}
	return "the budget allows it, and room is being made: it waits for what has its cards to leave them: " + strings.Join(names, ", "), victims
}

// mostVictims bounds how many workloads are thought of for one that needs room.
const mostVictims = 64

// clearFor finds the workloads in whose place the pods of another would have room:
// such as leave anyway, else those that its ClusterQueue's preemption policy lets it
// evict, others' that borrow before its own, the least important first, as few as it
// takes.
func (c *core) clearFor(w *work, asked engine.Assignment) (engine.Placement, []*work) {
	flavors := c.flavorsUsed(w.object)
	var without []engine.WorkloadID
	for _, id := range slices.Sorted(maps.Keys(c.rooms.leaving)) {
		if v := c.works[id]; v != nil && v != w && len(without) < mostVictims && c.shares(v.object, flavors) {
			without = append(without, id)
		}
	}
	if place, others := c.inPlaceOf(w, asked, without); len(others) > 0 {
		return place, others
	}
	if translate.PreemptionGated(w.object) {
		return engine.Placement{}, nil
	}
	leave := slices.Clone(without)
	borrow := c.borrowers(w)
	for _, v := range slices.Concat(borrow.next(), c.victims(w, flavors)) {
		without = append(without, v.id)
		if place, others := c.inPlaceOf(w, asked, without); len(others) > 0 {
			return place, others
		}
	}
	// One of those that were passed over, since their queues would not borrow any
	// more without the ones before, may do alone.
	for _, v := range borrow.all[:min(len(borrow.all), mostVictims)] {
		if place, others := c.inPlaceOf(w, asked, append(leave[:len(leave):len(leave)], v.id)); len(others) > 0 {
			return place, others
		}
	}
	return engine.Placement{}, nil
}

// inPlaceOf tries a workload in the place of others, and says which of them really
// have to go; none if it has no room there either.
func (c *core) inPlaceOf(w *work, asked engine.Assignment, others []engine.WorkloadID) (place engine.Placement, out []*work) {
	if len(others) == 0 {
		return place, nil
	}
	place, no := c.fit.Place(&engine.Workload{ID: w.id}, asked, others)
	if no != nil {
		return place, nil
	}
	if place.Displaces != nil {
		others = place.Displaces
	}
	for _, id := range others {
		out = append(out, c.works[id])
	}
	return place, out
}

// victims are the workloads that another may have evicted for room, in the order in
// which they are taken: the lowest priority first, of one priority who came last.
// It is the policy by which Kueue evicts for quota within a ClusterQueue.
func (c *core) victims(w *work, flavors map[string]bool) []*work {
	queue := w.object.Status.Admission.ClusterQueue
	q := c.queues[string(queue)]
	if q == nil || q.Spec.Preemption == nil {
		return nil
	}
	policy := q.Spec.Preemption.WithinClusterQueue
	var all []*work
	for id := range c.rooms.holding[queue] {
		v := c.works[id]
		if v == nil || v == w || c.isLeaving(id) || !v.placed && !c.inUse(id) || len(c.ourChecks(v.object)) == 0 || !c.shares(v.object, flavors) {
			continue
		}
		lower := priorityOf(v) < priorityOf(w)
		newer := priorityOf(v) == priorityOf(w) && lifecycle.QueuedAt(w.object, c.rules).Before(lifecycle.QueuedAt(v.object, c.rules))
		if lower && policy == kueue.PreemptionPolicyLowerPriority || (lower || newer) && policy == kueue.PreemptionPolicyLowerOrNewerEqualPriority {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, leastImportant)
	return all[:min(len(all), mostVictims)]
}

// flavorsUsed are the flavors of the devices that a Workload was given.
func (c *core) flavorsUsed(wl *kueue.Workload) map[string]bool {
	used := map[string]bool{}
	for i := range wl.Status.Admission.PodSetAssignments {
		used[c.deviceFlavor(&wl.Status.Admission.PodSetAssignments[i])] = true
	}
	delete(used, "")
	return used
}

// shares says whether a Workload has devices of one of these flavors.
func (c *core) shares(wl *kueue.Workload, flavors map[string]bool) bool {
	if wl == nil || wl.Status.Admission == nil {
		return false
	}
	for f := range c.flavorsUsed(wl) {
		if flavors[f] {
			return true
		}
	}
	return false
}

func priorityOf(w *work) int32 { return ptr.Deref(w.object.Spec.Priority, 0) }

// growing says whether all nodes that a workload was given are of flavors that
// bring nodes when pods wait for them: then room is not awaited.
func (c *core) growing(wl *kueue.Workload) bool {
	for i := range wl.Status.Admission.PodSetAssignments {
		f := c.flavors[c.deviceFlavor(&wl.Status.Admission.PodSetAssignments[i])]
		if f == nil || !elastic(f) {
			return false
		}
	}
	return true
}

// unpaid says which devices a workload asks for that nothing was charged for, ""
// if none.
func (c *core) unpaid(wl *kueue.Workload) string {
	for i := range wl.Status.Admission.PodSetAssignments {
		given := &wl.Status.Admission.PodSetAssignments[i]
		if c.deviceFlavor(given) != "" {
			continue
		}
		if len(beside.Charges(wl)[string(given.Name)].Amounts) > 0 {
			return fmt.Sprintf("it asks for devices, and ClusterQueue %s charged nothing for them: cover %s there", wl.Status.Admission.ClusterQueue, devices[0])
		}
	}
	return ""
}

// topologyOf says that Kueue has chosen racks for a workload's pods, "" if not.
// Pods go where cards have room for them; racks that Kueue counts as used would be
// others.
func topologyOf(wl *kueue.Workload) string {
	for i := range wl.Status.Admission.PodSetAssignments {
		if given := &wl.Status.Admission.PodSetAssignments[i]; given.TopologyAssignment != nil {
			return fmt.Sprintf("Kueue chose %s for pod set %q, and pods with devices go where cards have room: name a flavor without topologyName", strings.Join(given.TopologyAssignment.Levels, ", "), given.Name)
		}
	}
	return ""
}

// sentAway says that Kueue is to send a workload to another cluster, "" if not:
// whether cards of this one have room says nothing of those.
func (c *core) sentAway(wl *kueue.Workload) string {
	for i := range wl.Status.AdmissionChecks {
		name := string(wl.Status.AdmissionChecks[i].Name)
		if check := c.checks[name]; check != nil && check.Spec.ControllerName == kueue.MultiKueueControllerName {
			return fmt.Sprintf("ClusterQueue %s sends what it admits to other clusters (AdmissionCheck %s), and its cards are here: use a queue without that check", wl.Status.Admission.ClusterQueue, name)
		}
	}
	return ""
}

func reservedAt(wl *kueue.Workload) time.Time {
	if c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadQuotaReserved); c != nil {
		return c.LastTransitionTime.Time
	}
	return wl.CreationTimestamp.Time
}
