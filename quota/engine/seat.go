package engine

import "sort"

// Who may wait in a queue, and whether a queue admits at all.

// seat puts a workload that holds nothing where its facts say: into its queue,
// or nowhere.
func (e *Engine) seat(w *work) {
	if w.hold != nil && w.hold.state != promised {
		return
	}
	if w.notBefore > e.now {
		e.startTimer(w)
	} else {
		e.stopTimer(w)
	}
	reason, _ := e.standing(w)
	switch {
	case reason != "" && w.class != nil:
		e.leave(w)
	case reason != "":
		e.cancelPromise(w)
	case w.class == nil && w.hold == nil:
		e.enter(w.local.queue, w)
	}
}

func (e *Engine) reseatLocal(l *local) {
	for _, w := range l.works {
		if w.hold != nil && w.hold.state != promised {
			e.suspect(w)
			continue
		}
		e.seat(w)
	}
}

// reseatQueue follows what changed around a queue: its plans, whether it is
// active, who may wait in it.
func (e *Engine) reseatQueue(q *queue) {
	code, reason := e.judge(q)
	moved := q.respec || code != q.code || reason != q.reason
	q.code, q.reason = code, reason
	q.inReady = false
	if moved {
		q.respec = false
		for _, name := range sortedLocals(q.locals) {
			l := q.locals[name]
			for _, w := range l.works {
				if w.class != nil {
					e.leave(w)
				}
			}
			e.reseatLocal(l)
		}
	}
	for _, c := range q.classes {
		if c.parked {
			c.parked = false
			c.round++
			q.replace(c)
		}
	}
	e.wakeQueue(q)
}

func sortedLocals(m map[LocalQueueName]*local) []LocalQueueName {
	names := make([]LocalQueueName, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	sort.Slice(names, func(i, j int) bool { return names[i].before(names[j]) })
	return names
}

// judge says whether a queue is active.
func (e *Engine) judge(q *queue) (InactiveCode, string) {
	if !q.defined {
		return CodeMissing, "ClusterQueue " + string(q.name) + " does not exist"
	}
	switch q.spec.Stop {
	case Hold, HoldAndDrain:
		return CodeStopped, "ClusterQueue " + string(q.name) + " is stopped (stopPolicy " + string(q.spec.Stop) + ")"
	}
	if q.fault != "" {
		return CodeMisconfigured, q.fault
	}
	if q.spec.Inactive != "" {
		return CodeExternal, q.spec.Inactive
	}
	for _, g := range q.spec.Groups {
		for _, f := range g.Flavors {
			if _, ok := e.flavors[f.Flavor]; !ok {
				return CodeFlavorNotFound, "ResourceFlavor " + string(f.Flavor) + " does not exist"
			}
		}
	}
	if q.node.cyclic {
		return CodeCohortCycle, "the parents of cohort " + string(q.spec.Cohort) + " go round in a circle: " + q.node.loop()
	}
	for n := q.node.parent; n != nil; n = n.parent {
		if n.fault != "" {
			return CodeMisconfigured, "cohort " + n.name + ": " + n.fault
		}
	}
	return CodeReady, ""
}

// loop names the cohorts of the circle above a node.
func (n *node) loop() string {
	seen := map[*node]bool{}
	for n = n.parent; !seen[n]; n = n.parent {
		seen[n] = true
	}
	first := n.leastOfLoop()
	path := first.name
	for m := first.parent; m != first; m = m.parent {
		path += " > " + m.name
	}
	return path + " > " + first.name
}

// standing says why a workload is not in a queue, "" if it may be.
func (e *Engine) standing(w *work) (Reason, string) {
	switch {
	case !w.told:
		return Misconfigured, "not described yet"
	case w.inactive:
		return InactiveWorkload, ""
	case w.pause != "":
		return OnHold, w.pause
	case w.refused != "":
		return Misconfigured, w.refused
	case w.shape.fault != "":
		return Misconfigured, w.shape.fault
	case !w.local.defined:
		return QueueMissing, "LocalQueue " + w.local.name.String() + " does not exist"
	}
	q := w.local.queue
	switch {
	case !q.defined:
		return QueueMissing, "ClusterQueue " + string(q.name) + " does not exist"
	case w.local.spec.Stop == Hold || w.local.spec.Stop == HoldAndDrain:
		return QueueStopped, "LocalQueue " + w.local.name.String() + " is stopped (stopPolicy " + string(w.local.spec.Stop) + ")"
	case q.code == CodeStopped:
		return QueueStopped, q.reason
	case q.code != CodeReady:
		return QueueInactive, q.reason
	case !e.serves(q, w.local.name.Namespace):
		return NamespaceMismatch, "ClusterQueue " + string(q.name) + " does not serve namespace " + w.local.name.Namespace
	case w.notBefore > e.now:
		return BackingOff, ""
	}
	return "", ""
}

func (e *Engine) serves(q *queue, namespace string) bool {
	return q.spec.Namespaces.Matches(e.namespaces[namespace])
}
