package engine

import "container/heap"

// Apply takes in one fact. It decides nothing; its cost follows what the fact
// changes.
func (e *Engine) Apply(ev Event) {
	switch ev := ev.(type) {
	case QueueChanged:
		e.applyQueue(ev.Queue)
	case QueueRemoved:
		e.removeQueue(ev.Name)
	case CohortChanged:
		e.applyCohort(ev.Cohort)
	case CohortRemoved:
		e.removeCohort(ev.Name)
	case FlavorChanged:
		e.flavors[ev.Flavor.Name] = ev.Flavor
		e.respecFlavor(ev.Flavor.Name)
	case FlavorRemoved:
		delete(e.flavors, ev.Name)
		e.respecFlavor(ev.Name)
	case LocalQueueChanged:
		e.applyLocal(ev.LocalQueue)
	case LocalQueueRemoved:
		e.removeLocal(ev.Name)
	case NamespaceChanged:
		e.applyNamespace(ev.Name, ev.Labels)
	case NamespaceRemoved:
		e.applyNamespace(ev.Name, nil)
	case WorkloadChanged:
		e.applyWorkload(&ev.Workload)
	case WorkloadRemoved:
		e.removeWorkload(ev.ID)
	case Admitted:
		e.applyAdmitted(&ev)
	case AdmissionFailed:
		e.admissionFailed(ev)
	case Evicting:
		if w := e.works[ev.ID]; w != nil && w.hold != nil && w.hold.state == holding {
			e.newsOf(w)
			e.startLeaving(w)
		}
	case EvictionFailed:
		e.evictionFailed(ev.ID)
	case Released:
		e.released(ev.ID)
	case RoomChanged:
		e.roomChanged(ev.Flavors)
	case LocalUsageRecalled:
		e.recallUsage(ev)
	case Tick:
		e.tick(instantOf(ev.Now))
	}
}

func (e *Engine) applyQueue(spec ClusterQueue) {
	q := e.queue(spec.Name)
	q.defined = true
	q.spec = spec
	q.spec.Groups = copyGroups(spec.Groups)
	q.spec.Preemption.BorrowThreshold = copyPtr(spec.Preemption.BorrowThreshold)
	q.fault = validateGroups(spec.Groups)
	q.groupOf = map[Resource]int{}
	q.coversDevices = false
	for i, g := range q.spec.Groups {
		for _, r := range g.Resources {
			q.groupOf[r] = i
			q.coversDevices = q.coversDevices || e.opts.devices[r]
		}
	}
	q.node.weight = weightOf(spec.Weight)
	q.node.quotas = nil
	if q.fault == "" {
		q.node.quotas = flatten(q.spec.Groups)
	}
	q.respec = true
	e.suspectAll(q)
	e.link(q.node, e.cohort(spec.Cohort))
}

func weightOf(w *Weight) Weight {
	if w == nil {
		return OneWeight
	}
	return max(0, *w)
}

func copyGroups(groups []ResourceGroup) []ResourceGroup {
	out := make([]ResourceGroup, len(groups))
	for i, g := range groups {
		out[i].Resources = append([]Resource(nil), g.Resources...)
		for _, f := range g.Flavors {
			quotas := make([]Quota, len(f.Quotas))
			for j, q := range f.Quotas {
				quotas[j] = q.copy()
			}
			out[i].Flavors = append(out[i].Flavors, FlavorQuotas{f.Flavor, quotas})
		}
	}
	return out
}

// queue returns the queue of a name, made undefined if need be.
func (e *Engine) queue(name QueueName) *queue {
	q, ok := e.queues[name]
	if !ok {
		q = &queue{
			name: name, code: CodeMissing,
			lanes: map[LocalQueueName]*lane{}, classes: map[classKey]*class{}, plans: map[*shape]*plan{}, locals: map[LocalQueueName]*local{},
		}
		q.node = &node{name: string(name), queue: q, weight: OneWeight}
		e.queues[name] = q
		e.soil(q.node)
	}
	return q
}

func (e *Engine) removeQueue(name QueueName) {
	q, ok := e.queues[name]
	if !ok {
		return
	}
	q.defined = false
	q.spec = ClusterQueue{Name: name}
	q.groupOf, q.coversDevices, q.fault = nil, false, ""
	q.node.quotas, q.node.weight = nil, OneWeight
	q.respec = true
	e.link(q.node, nil)
	e.settle()
	e.forgetQueue(q)
}

// forgetQueue drops an undefined queue that nothing refers to.
func (e *Engine) forgetQueue(q *queue) {
	if q.defined || len(q.locals) > 0 || len(q.holders) > 0 || len(q.promises) > 0 {
		return
	}
	e.leaveTree(q.node)
	delete(e.soiled, q.node)
	delete(e.queues, q.name)
}

func (e *Engine) applyCohort(spec Cohort) {
	n := e.cohort(spec.Name)
	if n == nil {
		return
	}
	n.described = true
	n.fault = validateGroups(spec.Groups)
	n.quotas = nil
	if n.fault == "" {
		n.quotas = flatten(spec.Groups)
	}
	n.weight = weightOf(spec.Weight)
	e.link(n, e.cohort(spec.Parent))
}

func (e *Engine) removeCohort(name CohortName) {
	n, ok := e.cohorts[name]
	if !ok {
		return
	}
	n.described, n.quotas, n.fault, n.weight = false, nil, "", OneWeight
	e.link(n, nil)
	e.forget(n)
}

// respecFlavor follows a flavor that came, went or changed.
func (e *Engine) respecFlavor(name FlavorName) {
	for _, q := range e.queues {
		for _, g := range q.spec.Groups {
			for _, f := range g.Flavors {
				if f.Flavor == name {
					q.respec = true
					e.soil(q.node)
				}
			}
		}
	}
}

func (e *Engine) applyLocal(spec LocalQueue) {
	l := e.local(spec.Name)
	l.defined = true
	l.spec = spec
	l.spec.Weight = copyPtr(spec.Weight)
	q := e.queue(spec.Queue)
	if old := l.queue; old != q {
		e.emptyLocal(l)
		l.queue = q
		q.locals[l.name] = l
		if old != nil {
			delete(old.locals, l.name)
			e.forgetQueue(old)
		}
	}
	e.reseatLocal(l)
}

// local returns the LocalQueue of a name, made undefined if need be.
func (e *Engine) local(name LocalQueueName) *local {
	l, ok := e.locals[name]
	if !ok {
		l = &local{name: name}
		e.locals[name] = l
	}
	return l
}

func (e *Engine) removeLocal(name LocalQueueName) {
	l, ok := e.locals[name]
	if !ok {
		return
	}
	e.emptyLocal(l)
	l.defined = false
	l.spec = LocalQueue{Name: name}
	if q := l.queue; q != nil {
		l.queue = nil
		delete(q.locals, name)
		e.forgetQueue(q)
	}
	e.forgetLocal(l)
}

func (e *Engine) forgetLocal(l *local) {
	if !l.defined && len(l.works) == 0 {
		delete(e.locals, l.name)
	}
}

// emptyLocal takes the workloads of a LocalQueue out of its queue.
func (e *Engine) emptyLocal(l *local) {
	for _, w := range l.works {
		e.leave(w)
		e.cancelPromise(w)
	}
}

func (e *Engine) applyNamespace(name string, labels map[string]string) {
	if labels == nil {
		delete(e.namespaces, name)
	} else {
		copied := make(map[string]string, len(labels))
		for k, v := range labels {
			copied[k] = v
		}
		e.namespaces[name] = copied
	}
	for _, l := range e.locals {
		if l.name.Namespace == name {
			e.reseatLocal(l)
		}
	}
}

func (e *Engine) applyWorkload(spec *Workload) {
	w, known := e.works[spec.ID]
	if !known {
		w = &work{id: spec.ID, timer: -1}
		e.works[spec.ID] = w
	}
	s := e.shapeOf(spec.PodSets)
	queuedAt, notBefore := instantOf(spec.QueuedAt), instantOf(spec.NotBefore)
	same := w.told && w.shape == s && w.priority == spec.Priority && w.queuedAt == queuedAt &&
		w.roomKey == spec.RoomKey && w.local.name == spec.LocalQueue && w.gated == spec.PreemptionGated &&
		w.notBefore == notBefore && w.inactive == spec.Inactive && w.pause == spec.Hold && w.refused == spec.Refused
	if same {
		e.dropShape(s)
		return
	}
	e.newsOf(w)
	e.leave(w)
	e.cancelPromise(w)
	q := w.holder()
	if q != nil {
		e.uncharge(w) // its priority is part of the charge
	}
	e.dropShape(w.shape)
	w.shape, w.told = s, true
	w.priority, w.queuedAt, w.notBefore = spec.Priority, queuedAt, notBefore
	w.roomKey, w.gated, w.inactive = spec.RoomKey, spec.PreemptionGated, spec.Inactive
	w.pause, w.refused = spec.Hold, spec.Refused
	w.said = saying{}
	e.unkeep(w, false)
	w.roomSince = instantOf(spec.RoomSince)
	e.move(w, e.local(spec.LocalQueue))
	if q != nil {
		e.charge(w)
		e.suspect(w)
	}
	e.newsOf(w)
	e.seat(w)
}

// newsOf tells the trees that a workload has to do with that it came, changed or
// goes.
func (e *Engine) newsOf(w *work) {
	if w.hold != nil {
		e.news(w.hold.queue)
	}
	if w.local != nil {
		e.news(w.local.queue)
	}
}

// holder is the queue in whose list of holders a workload is.
func (w *work) holder() *queue {
	if w.hold == nil || w.hold.state == promised {
		return nil
	}
	return w.hold.queue
}

// move puts a workload into the list of a LocalQueue, nil for none.
func (e *Engine) move(w *work, l *local) {
	if w.local == l {
		return
	}
	if old := w.local; old != nil {
		last := old.works[len(old.works)-1]
		old.works[w.inLocal] = last
		last.inLocal = w.inLocal
		old.works = old.works[:len(old.works)-1]
		w.local = nil
		e.forgetLocal(old)
	}
	if w.local = l; l != nil {
		w.inLocal = len(l.works)
		l.works = append(l.works, w)
	}
}

func (e *Engine) removeWorkload(id WorkloadID) {
	w, ok := e.works[id]
	if !ok {
		return
	}
	e.newsOf(w)
	e.leave(w)
	e.cancelPromise(w)
	e.dropHold(w)
	e.stopTimer(w)
	e.unkeep(w, false)
	e.move(w, nil)
	e.dropShape(w.shape)
	delete(e.works, id)
}

func (e *Engine) tick(now instant) {
	if now <= e.now {
		return
	}
	e.now = now
	for len(e.timers) > 0 && e.timers[0].notBefore <= now {
		w := heap.Pop(&e.timers).(*work)
		e.seat(w)
	}
	e.tickUsage()
}
