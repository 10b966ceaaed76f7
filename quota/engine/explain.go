package engine

import (
	"fmt"
	"sort"
	"strings"
)

// Why explains where a workload stands. An id that is not known gives the state
// Unknown. The answer is worked out when it is asked for, so it costs nothing to
// those who never ask.
func (e *Engine) Why(id WorkloadID) Why {
	e.settle()
	w, ok := e.works[id]
	if !ok {
		return Why{ID: id, State: Unknown}
	}
	why := e.explain(w)
	e.addHolders(&why)
	if w.class != nil && why.Reason != "" {
		why.Position = e.position(w)
	}
	return why
}

// explain is Why without what takes a look at the whole queue or tree: the place
// in the queue and the holders.
func (e *Engine) explain(w *work) Why {
	why := Why{ID: w.id, State: Pending}
	if h := w.hold; h != nil {
		why.Queue = h.queue.name
		switch h.state {
		case holding:
			why.State = Holding
		case leaving:
			why.State = Leaving
			why.Detail = string(h.reason)
		case promised:
			why.State, why.Reason = Promised, WaitingForPreempted
			why.Awaits = e.awaited(h)
		}
		return why
	}
	if w.local != nil && w.local.queue != nil {
		why.Queue = w.local.queue.name
	}
	if reason, detail := e.standing(w); reason != "" {
		why.Reason, why.Detail = reason, detail
		if reason == BackingOff {
			why.Detail = "until " + w.notBefore.time().Format("15:04:05")
		}
		why.Never = reason == Misconfigured
		return why
	}
	q := w.class.queue
	if q.strict() {
		if head := e.blocking(q); head != nil && head != w {
			why.Reason, why.Head = BehindHead, head.id
			return why
		}
	}
	if !w.class.parked {
		why.Reason = NotYetTried
		return why
	}
	e.explainTrial(w, &why)
	return why
}

// awaited are the victims of a promise, or, if it waits for others' evictions,
// all that leave.
func (e *Engine) awaited(h *hold) []WorkloadID {
	var ids []WorkloadID
	for _, v := range h.victims {
		ids = append(ids, v.id)
	}
	if len(ids) == 0 {
		ids = leavingIn(h.queue.tree())
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	return ids
}

func leavingIn(t *tree) []WorkloadID {
	var ids []WorkloadID
	if t == nil || t.inFlight == 0 {
		return nil
	}
	for _, q := range t.queues {
		if q.leaving == 0 {
			continue
		}
		for _, w := range q.holders {
			if w.hold.state == leaving {
				ids = append(ids, w.id)
			}
		}
	}
	return ids
}

// blocking is the first of a StrictFIFO queue, whether it can be tried or not.
func (e *Engine) blocking(q *queue) *work {
	if len(q.promises) > 0 {
		return q.promises[0]
	}
	var best *lane
	for _, l := range q.sorted {
		if len(l.heap) > 0 && (best == nil || e.laneBefore(l, best)) {
			best = l
		}
	}
	if best == nil {
		return nil
	}
	return best.heap[0].first()
}

// explainTrial repeats the trial with a record of what stood in the way.
func (e *Engine) explainTrial(w *work, why *Why) {
	c := w.class
	var n nomination
	var tr trace
	n.reset(c.queue, w, c.plan)
	for i := range c.plan.sets {
		spec := c.plan.sets[i].spec
		count := spec.Count
		if spec.MinCount > 0 {
			count = spec.MinCount
		}
		n.counts = append(n.counts, count)
	}
	e.tryCounts(&n, &tr)
	if r := c.plan.refused; r != nil {
		why.Reason, why.Never, why.PodSet, why.Resource = r.reason, r.never, r.set, r.resource
		return
	}
	if c.room != nil && n.mode != noFit {
		why.Reason, why.Room, why.Never = WaitingForRoom, c.room, c.room.Never
		if len(n.picks) > 0 {
			why.PodSet = n.p.sets[0].spec.Name
			why.Flavor = n.option(n.picks[0]).flavor
		}
		return
	}
	if n.mode == fits {
		why.Reason = NotYetTried
		return
	}
	shorts := relevant(&n, tr.shorts, pick{set: tr.set, group: tr.group})
	if n.mode == noFit {
		why.Flavors = append(why.Flavors, tr.unfits...)
	}
	if len(shorts) == 0 {
		why.Reason, why.Never = NoMatchingFlavor, true
		return
	}
	e.explainShort(shorts, why)
	if w.gated && c.queue.mayPreempt() && !why.Never {
		n.reset(c.queue, w, c.plan)
		n.ungated = true
		e.tryCounts(&n, nil)
		why.Gated = n.mode.viable() && n.mode != fits
	}
}

// relevant are the shortfalls that decided the trial.
func relevant(n *nomination, all []shortfall, last pick) []shortfall {
	var out []shortfall
	for _, s := range all {
		if n.mode == noFit && s.at == last || n.mode != noFit {
			out = append(out, s)
		}
	}
	return out
}

// explainShort makes the reason of the flavor that comes closest.
func (e *Engine) explainShort(shorts []shortfall, why *Why) {
	best := &shorts[0]
	for i := range shorts {
		s := &shorts[i]
		if s.asked <= s.cell.most() && best.asked > best.cell.most() {
			best = s
		}
		why.Flavors = append(why.Flavors, FlavorWhy{PodSet: s.set, Flavor: s.flavor, Phrase: e.shortPhrase(s)})
	}
	c := best.cell
	why.PodSet, why.Resource, why.Flavor = best.set, c.Resource, best.flavor
	why.Asked, why.Most = best.asked, max(0, c.most())
	free := max(0, c.free())
	why.Free = min(free, max(0, c.subtree.Sub(c.held)))
	why.Borrowable = free.Sub(why.Free)
	switch {
	case best.asked > c.most():
		why.Reason, why.Never = ExceedsMaxQuota, true
		return
	case best.asked <= c.available(planned):
		why.Reason = WaitingForPreempted
		why.Awaits = leavingIn(c.node.root.tree)
	default:
		why.Reason = WaitingForQuota
	}
}

// addHolders says who holds what falls short. It takes a look at the whole tree.
func (e *Engine) addHolders(why *Why) {
	if why.Reason != WaitingForQuota {
		return
	}
	if q := e.queues[why.Queue]; q != nil {
		if c, ok := q.node.cells[FlavorResource{why.Flavor, why.Resource}]; ok {
			why.Holders = holdersOf(c)
		}
	}
}

func (e *Engine) shortPhrase(s *shortfall) string {
	f := func(a Amount) string { return FormatAmount(s.cell.Resource, a) }
	if s.asked > s.cell.most() {
		return fmt.Sprintf("%s %s asked, %s at most", f(s.asked), s.cell.Resource, f(max(0, s.cell.most())))
	}
	return fmt.Sprintf("%s %s asked, %s available", f(s.asked), s.cell.Resource, f(max(0, s.cell.free())))
}

// holdersOf are the queues that use what a queue would need, those that borrow
// most first, at most three.
func holdersOf(c *cell) []Holder {
	const shown = 3
	out := make([]Holder, 0, shown+1)
	var visit func(*cell)
	visit = func(c *cell) {
		if !c.node.isQueue() {
			for _, child := range c.children {
				visit(child)
			}
			return
		}
		if c.held <= 0 {
			return
		}
		h := Holder{Queue: c.node.queue.name, Used: c.held, Borrowed: c.borrowed(held)}
		i := len(out)
		for i > 0 && h.before(out[i-1]) {
			i--
		}
		if i == shown {
			return
		}
		out = append(out, Holder{})
		copy(out[i+1:], out[i:])
		out[i] = h
		out = out[:min(len(out), shown)]
	}
	visit(c.top())
	return out
}

func (a Holder) before(b Holder) bool {
	if a.Borrowed != b.Borrowed {
		return a.Borrowed > b.Borrowed
	}
	if a.Used != b.Used {
		return a.Used > b.Used
	}
	return a.Queue < b.Queue
}

// String is the reason as one sentence.
func (w Why) String() string {
	switch w.State {
	case Unknown:
		return "no workload of this name is known"
	case Holding:
		return fmt.Sprintf("has its quota in %s", w.Queue)
	case Leaving:
		if w.Detail != "" {
			return fmt.Sprintf("is being evicted from %s (%s)", w.Queue, w.Detail)
		}
		return fmt.Sprintf("is being evicted from %s", w.Queue)
	}
	amount := func(a Amount) string { return FormatAmount(w.Resource, a) }
	place := ""
	if w.Position > 0 {
		place = fmt.Sprintf(" (position %d in %s)", w.Position, w.Queue)
	}
	switch w.Reason {
	case NotYetTried:
		return "not tried yet" + place
	case NoMatchingFlavor:
		return "its pods can run on no flavor of " + string(w.Queue) + flavorList(w.Flavors)
	case NotCovered:
		return fmt.Sprintf("pod set %s asks for %s, for which %s has no quota", w.PodSet, w.Resource, w.Queue)
	case ExceedsMaxQuota:
		return fmt.Sprintf("pod set %s asks for %s %s of flavor %s, but %s can never have more than %s",
			w.PodSet, amount(w.Asked), w.Resource, w.Flavor, w.Queue, amount(w.Most)) + w.others()
	case WaitingForQuota, WaitingForPreempted:
		s := fmt.Sprintf("pod set %s asks for %s %s of flavor %s; %s has %s free and can borrow %s",
			w.PodSet, amount(w.Asked), w.Resource, w.Flavor, w.Queue, amount(w.Free), amount(w.Borrowable))
		if w.State == Promised {
			s = "its quota is promised"
		}
		if w.Reason == WaitingForPreempted {
			return s + "; waits for " + list(w.Awaits) + " to end" + place
		}
		return s + w.holders() + w.others() + place
	case WaitingForRoom:
		return "the budget allows it, but " + w.Room.String() + place
	case BehindHead:
		return fmt.Sprintf("waits behind %s, since %s keeps strict order%s", w.Head, w.Queue, place)
	case BackingOff:
		return "backs off " + w.Detail
	case OnHold:
		return "on hold: " + w.Detail
	case InactiveWorkload:
		return "deactivated (spec.active is false)"
	}
	if w.Detail != "" {
		return w.Detail
	}
	return string(w.Reason)
}

func (w Why) holders() string {
	var parts []string
	for _, h := range w.Holders {
		part := fmt.Sprintf("%s holds %s", h.Queue, FormatAmount(w.Resource, h.Used))
		if h.Borrowed > 0 {
			part += fmt.Sprintf(" (%s borrowed)", FormatAmount(w.Resource, h.Borrowed))
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return ""
	}
	return "; " + strings.Join(parts, ", ")
}

// others tells of the flavors besides the one that the sentence is about.
func (w Why) others() string {
	var parts []string
	for _, f := range w.Flavors {
		if f.Flavor != w.Flavor || f.PodSet != w.PodSet {
			parts = append(parts, fmt.Sprintf("%s: %s", f.Flavor, f.Phrase))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " [" + strings.Join(parts, "; ") + "]"
}

func flavorList(flavors []FlavorWhy) string {
	var parts []string
	for _, f := range flavors {
		parts = append(parts, fmt.Sprintf("%s: %s", f.Flavor, f.Phrase))
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, "; ") + ")"
}

func list(ids []WorkloadID) string {
	const shown = 3
	var parts []string
	for i, id := range ids {
		if i == shown {
			parts = append(parts, fmt.Sprintf("%d more", len(ids)-shown))
			break
		}
		parts = append(parts, string(id))
	}
	if len(parts) == 0 {
		return "evictions"
	}
	return strings.Join(parts, ", ")
}
