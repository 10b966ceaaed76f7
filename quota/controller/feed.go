package controller

import (
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/fit"
	"github.com/sluice-gpu/sluice/quota/pricing"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// This file is the one way in, with feedpods.go for pods and claims. Each function
// takes in one object as the API shows it, or its removal; each may be called any
// number of times, in any order.

// saw takes in an object of any kind that is watched.
func (c *core) saw(object any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o, ok := object.(metav1.Object); ok && c.gone.has(o.GetUID()) {
		return
	}
	c.noteSpec(object)
	switch o := object.(type) {
	case *kueue.Workload:
		c.sawWorkload(o)
	case *kueue.ClusterQueue:
		c.sawQueuePlacement(c.queues[o.Name], o)
		c.queues[o.Name] = o
		c.applyQueue(o)
	case *kueue.LocalQueue:
		c.sawLocalQueue(o)
		q := translate.LocalQueue(o)
		if o.DeletionTimestamp != nil && q.Stop != engine.HoldAndDrain {
			q.Stop = engine.Hold
		}
		c.tellNews(q.Name, engine.LocalQueueChanged{LocalQueue: q})
	case *kueue.Cohort:
		c.tellNews(engine.CohortName(o.Name), engine.CohortChanged{Cohort: translate.Cohort(o)})
	case *kueue.ResourceFlavor:
		c.sawFlavor(o)
	case *kueue.AdmissionCheck:
		c.checks[o.Name] = o
		c.checkChanged(o.Name)
	case *corev1.Namespace:
		before := c.unnamed.holds(o.Name)
		c.unnamed.namespaces[o.Name] = o.Labels
		if c.unnamed.holds(o.Name) != before {
			c.unnamedChanged(o.Name)
		}
		c.tellNews(namespaceName(o.Name), engine.NamespaceChanged{Name: o.Name, Labels: o.Labels})
	case *corev1.Node:
		c.sawNode(o)
	case *corev1.Pod:
		c.sawPod(o)
	case *unstructured.Unstructured:
		c.sawJob(o)
	case *resourceapi.ResourceClaim:
		c.sawClaim(o)
	case *resourceapi.ResourceClaimTemplate:
		name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
		old := c.templates[name]
		c.templates[name] = o
		if old != nil && equality.Semantic.DeepEqual(old.Spec, o.Spec) {
			return
		}
		c.templateChanged(name)
	case *resourceapi.ResourceSlice:
		if old := c.slices[o.Name]; old != nil && equality.Semantic.DeepEqual(old.Spec, o.Spec) {
			return
		}
		c.slices[o.Name] = o
		c.fit.SetSlice(o)
		c.devicesChanged()
	case *resourceapi.DeviceTaintRule:
		c.fit.SetTaintRule(o)
	case *resourceapi.DeviceClass:
		// We stamp our own class to wake the scheduler; that changes nothing here.
		old := c.fit.Classes()[o.Name]
		c.fit.SetClass(o)
		if old != nil && equality.Semantic.DeepEqual(old.Spec, o.Spec) {
			return
		}
		c.devicesChanged()
	}
	c.wake()
}

// noteSpec notes that reasons to wait may have changed. Statuses of queues are
// written all the time and change none.
func (c *core) noteSpec(object any) {
	switch o := object.(type) {
	case *kueue.ClusterQueue, *kueue.LocalQueue, *kueue.Cohort:
		if m, ok := o.(metav1.Object); ok && c.generations[m.GetUID()] != m.GetGeneration() {
			c.generations[m.GetUID()] = m.GetGeneration()
			c.retell = true
		}
	case *kueue.ResourceFlavor, *kueue.AdmissionCheck, *corev1.Namespace:
		c.retell = true
	}
}

// lost takes in the removal of an object.
func (c *core) lost(object any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o, ok := object.(metav1.Object); ok {
		c.gone.add(o.GetUID(), c.now())
		delete(c.generations, o.GetUID())
	}
	c.noteSpec(object)
	switch o := object.(type) {
	case *kueue.Workload:
		c.lostWorkload(workloadID(o.Namespace, o.Name))
	case *kueue.ClusterQueue:
		delete(c.queues, o.Name)
		c.tellGone(engine.QueueName(o.Name), engine.QueueRemoved{Name: engine.QueueName(o.Name)})
	case *kueue.LocalQueue:
		delete(c.locals, types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
		name := engine.LocalQueueName{Namespace: o.Namespace, Name: o.Name}
		c.tellGone(name, engine.LocalQueueRemoved{Name: name})
	case *kueue.Cohort:
		c.tellGone(engine.CohortName(o.Name), engine.CohortRemoved{Name: engine.CohortName(o.Name)})
	case *kueue.AdmissionCheck:
		delete(c.checks, o.Name)
		c.checkChanged(o.Name)
	case *kueue.ResourceFlavor:
		delete(c.flavors, o.Name)
		c.fit.RemoveFlavor(engine.FlavorName(o.Name))
		c.engine.Apply(engine.FlavorRemoved{Name: engine.FlavorName(o.Name)})
		c.devicesChanged()
	case *corev1.Namespace:
		delete(c.unnamed.namespaces, o.Name)
		c.tellGone(namespaceName(o.Name), engine.NamespaceRemoved{Name: o.Name})
	case *corev1.Node:
		delete(c.nodes, o.Name)
		c.fit.RemoveNode(o.Name)
		c.devicesChanged()
	case *corev1.Pod:
		c.lostPod(o.UID)
	case *unstructured.Unstructured:
		c.lostJob(o.GetUID())
	case *resourceapi.ResourceClaim:
		c.lostClaim(o)
	case *resourceapi.ResourceClaimTemplate:
		name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
		delete(c.templates, name)
		c.templateChanged(name)
	case *resourceapi.ResourceSlice:
		delete(c.slices, o.Name)
		c.fit.RemoveSlice(o.Name)
		c.devicesChanged()
	case *resourceapi.DeviceTaintRule:
		c.fit.RemoveTaintRule(o.Name)
	case *resourceapi.DeviceClass:
		c.fit.RemoveClass(o.Name)
		c.devicesChanged()
	}
	c.wake()
}

// heed takes in a Workload that the caches have shown to a reconciler before they
// showed it here: each informer has many listeners, and none waits for another.
// Otherwise whoever asks the core whether the Workload may run is told "not yet",
// and when the core hears of it, nothing brings him here again.
func (c *core) heed(o *kueue.Workload) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.works[workloadID(o.Namespace, o.Name)]
	if c.gone.has(o.UID) || w != nil && w.object != nil && version(o) <= version(w.object) {
		return
	}
	c.sawWorkload(o.DeepCopy())
	c.wake()
}

func (c *core) sawWorkload(o *kueue.Workload) {
	id := workloadID(o.Namespace, o.Name)
	w := c.works[id]
	if w == nil {
		w = &work{id: id}
		c.works[id] = w
	}
	if w.object != nil && w.object.UID == o.UID && version(o) <= version(w.object) {
		return
	}
	if !sameAsk(w.object, o) {
		c.dirty[id] = struct{}{}
	}
	before := w.object
	w.object, w.lost, w.late = o, false, false
	c.counts.set(id, o)
	c.noteForeign(w, before)
	if o.Status.Admission == nil {
		w.giving, w.last, w.lowered = nil, nil, nil
		w.beyond, w.beyondTold = nil, false
	}
	c.tell(id)
	c.followRelease(w, before)
	c.noteAsk(w, before, o)
	c.sharedAdmitted(before, o)
	if o.Status.Admission == nil || conditionTrue(o, kueue.WorkloadFinished) && !c.inUse(id) {
		return
	}
	if c.late(w, o) {
		c.tookLate(w)
		return
	}
	leaves := conditionTrue(o, kueue.WorkloadEvicted)
	if _, held := c.engine.Holding(id); held && w.admit == nil && !leaves && sameGrant(before, o) {
		return
	}
	if w.evict == nil && !leaves {
		// An eviction that the engine may remember is not in the API.
		c.engine.Apply(engine.EvictionFailed{ID: id})
	}
	at := o.CreationTimestamp
	for i := range o.Status.Conditions {
		if o.Status.Conditions[i].Type == kueue.WorkloadQuotaReserved {
			at = o.Status.Conditions[i].LastTransitionTime
		}
	}
	w.admit = nil
	c.engine.Apply(engine.Admitted{
		ID:         id,
		Assignment: translate.Charge(o),
		At:         at.Time,
		Reserved:   !conditionTrue(o, kueue.WorkloadAdmitted),
		Evicting:   conditionTrue(o, kueue.WorkloadEvicted) || conditionTrue(o, kueue.WorkloadFinished),
	})
}

// followRelease tells the engine that quota is free which it counts as held, if
// the API has shown it as reserved and does not any more. The leader released
// it, which may have been another replica than this one. An admission of our
// own that is not written yet is not touched, nor is a Workload that was made
// again: what it admitted may be in use.
func (c *core) followRelease(w *work, before *kueue.Workload) {
	if before == nil || before.UID != w.object.UID || before.Status.Admission == nil || w.admit != nil {
		return
	}
	// A watch that was broken may have missed the version in between.
	again := conditionTrue(before, kueue.WorkloadEvicted) && !conditionTrue(w.object, kueue.WorkloadEvicted)
	if w.object.Status.Admission == nil || again {
		c.released(w.id)
	}
}

// sameGrant says whether two versions of a Workload were given the same.
func sameGrant(a, b *kueue.Workload) bool {
	return a != nil && equality.Semantic.DeepEqual(a.Status.Admission, b.Status.Admission) &&
		equality.Semantic.DeepEqual(a.Status.ReclaimablePods, b.Status.ReclaimablePods) &&
		conditionTrue(a, kueue.WorkloadAdmitted) == conditionTrue(b, kueue.WorkloadAdmitted) &&
		conditionTrue(a, kueue.WorkloadEvicted) == conditionTrue(b, kueue.WorkloadEvicted)
}

// sameAsk says whether two versions of a Workload differ in nothing that the
// engine is told: most writes are of reasons to wait.
func sameAsk(a, b *kueue.Workload) bool {
	return a != nil && a.UID == b.UID && a.Generation == b.Generation &&
		(a.Status.Admission == nil) == (b.Status.Admission == nil) &&
		(a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		equality.Semantic.DeepEqual(a.Status.RequeueState, b.Status.RequeueState) &&
		equality.Semantic.DeepEqual(a.Status.AdmissionChecks, b.Status.AdmissionChecks) &&
		equality.Semantic.DeepEqual(a.Status.PreemptionGates, b.Status.PreemptionGates) &&
		a.Annotations[gatedBy] == b.Annotations[gatedBy] &&
		conditionTrue(a, kueue.WorkloadFinished) == conditionTrue(b, kueue.WorkloadFinished) &&
		conditionTrue(a, kueue.WorkloadEvicted) == conditionTrue(b, kueue.WorkloadEvicted)
}

// lostWorkload remembers a deleted Workload while something is in use by it:
// the object is made again then. Otherwise it is forgotten.
func (c *core) lostWorkload(id engine.WorkloadID) {
	w := c.works[id]
	if w == nil {
		return
	}
	if c.inUse(id) {
		w.lost = true
		c.tell(id)
		return
	}
	c.forget(id)
}

// forget ends a workload for good: its quota is free.
func (c *core) forget(id engine.WorkloadID) {
	c.engine.Apply(engine.WorkloadRemoved{ID: id})
	c.fit.RemoveWorkload(id)
	delete(c.writing, id)
	if w := c.works[id]; w != nil {
		c.noteAsk(w, w.object, nil)
	}
	delete(c.awaiting, id)
	delete(c.works, id)
	c.counts.set(id, nil)
	delete(c.dirty, id)
	delete(c.unplaced, id)
	c.room = true
	c.wake()
}

// released tells that a workload holds nothing any more and waits again.
func (c *core) released(id engine.WorkloadID) {
	c.engine.Apply(engine.Released{ID: id})
	c.fit.Drop(id)
	// Tickets of its pods that were awaited will not come any more.
	delete(c.writing, id)
	if w := c.works[id]; w != nil {
		w.evict = nil
		w.admit = nil
		w.placed = w.placed && !c.beside
	}
	c.dirty[id] = struct{}{}
	c.room = true
	c.wake()
}

func (c *core) applyQueue(o *kueue.ClusterQueue) {
	q := translate.ClusterQueue(o)
	if q.Inactive == "" {
		q.Inactive = c.unready(o).message
	}
	c.orderFlavors(&q)
	c.tellNews(q.Name, engine.QueueChanged{Queue: q})
}

func (c *core) sawFlavor(o *kueue.ResourceFlavor) {
	if old := c.flavors[o.Name]; old != nil && equality.Semantic.DeepEqual(old.Spec, o.Spec) && sameGrowth(old, o) {
		return
	}
	c.flavors[o.Name] = o
	name := engine.FlavorName(o.Name)
	c.fit.SetFlavor(name, fit.Flavor{NodeLabels: o.Spec.NodeLabels, Tolerations: o.Spec.Tolerations})
	c.engine.Apply(engine.FlavorChanged{Flavor: engine.FlavorSpec{Name: name, Elastic: elastic(o)}})
	for _, q := range c.queues {
		c.applyQueue(q)
	}
	c.devicesChanged()
}

// sawNode ignores what changes every few seconds: heartbeats.
func (c *core) sawNode(o *corev1.Node) {
	old := c.nodes[o.Name]
	if old != nil && maps.Equal(old.Labels, o.Labels) &&
		equality.Semantic.DeepEqual(old.Spec, o.Spec) &&
		equality.Semantic.DeepEqual(old.Status.Allocatable, o.Status.Allocatable) {
		return
	}
	c.nodes[o.Name] = o
	c.fit.SetNode(o)
	if old == nil || !maps.Equal(old.Labels, o.Labels) {
		c.devicesChanged()
		return
	}
	c.room = true
}

// devicesChanged drops what was derived from devices and looks at everything
// that waits once more.
func (c *core) devicesChanged() {
	c.fleets, c.sizes, c.published, c.poolNames, c.orderDue = nil, nil, nil, nil, true
	c.repriceAll()
	c.room = true
}

func (c *core) repriceAll() {
	clear(c.prices)
	for id, w := range c.works {
		if w.object != nil && w.object.Status.Admission == nil {
			c.dirty[id] = struct{}{}
		}
	}
}

// templateChanged prices again what waits and names a claim template. Prices are
// kept by what is asked, so they stay right.
func (c *core) templateChanged(name types.NamespacedName) {
	for id, w := range c.works {
		if w.object != nil && w.object.Namespace == name.Namespace && w.object.Status.Admission == nil && namesTemplate(w.object, name.Name) {
			c.dirty[id] = struct{}{}
		}
	}
}

func namesTemplate(wl *kueue.Workload, template string) bool {
	for i := range wl.Spec.PodSets {
		for _, ref := range wl.Spec.PodSets[i].Template.Spec.ResourceClaims {
			if ref.ResourceClaimTemplateName != nil && *ref.ResourceClaimTemplateName == template {
				return true
			}
		}
	}
	return false
}

// known says whether a version of an object says nothing new to who has seen
// another one. What a reconciler has just written is taken in at once; the caches
// deliver it again, and perhaps what was before it.
func known(this, seen uint64) bool { return this < seen || this == seen && this != 0 }

// version is an object's resourceVersion; they are ordered (KEP-5504).
func version(o metav1.Object) uint64 {
	n, _ := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	return n
}

// devicesOf lists the driver's published devices: of each pool the newest
// generation, and only once all of its slices are there.
func (c *core) devicesOf() []pricing.Device {
	type pool struct {
		generation, count int64
		slices            []*resourceapi.ResourceSlice
	}
	pools := map[string]*pool{}
	for _, name := range slices.Sorted(maps.Keys(c.slices)) {
		s := c.slices[name]
		if s.Spec.Driver != pricing.DriverName {
			continue
		}
		p := pools[s.Spec.Pool.Name]
		if p == nil || p.generation < s.Spec.Pool.Generation {
			p = &pool{generation: s.Spec.Pool.Generation, count: s.Spec.Pool.ResourceSliceCount}
			pools[s.Spec.Pool.Name] = p
		}
		if s.Spec.Pool.Generation == p.generation {
			p.slices = append(p.slices, s)
		}
	}
	var all []pricing.Device
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		p := pools[name]
		if int64(len(p.slices)) != p.count {
			continue
		}
		for _, s := range p.slices {
			node := ""
			if s.Spec.NodeName != nil {
				node = *s.Spec.NodeName
			}
			for i := range s.Spec.Devices {
				all = append(all, pricing.Device{Pool: name, Node: node, Device: &s.Spec.Devices[i]})
			}
		}
	}
	return all
}
