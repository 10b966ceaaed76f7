package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// Whatever is written comes back by a watch. Who wrote it has done what there was to
// do, so that pods need not be looked at once more for each ticket, each node and
// each gate of their own. Nor have they anything to do while their Workload waits.
// What is left out here is left out of one reconciler's queue alone: the core takes
// in every version.

// mostEchoes bounds how many versions are remembered. One that is forgotten has its
// pod looked at in vain.
const mostEchoes = 4096

// echoes are versions that were written here and may not have come back yet.
type echoes struct {
	known map[echo]struct{}
	order []echo
	next  int
}

type echo struct {
	uid     types.UID
	version string
}

func (e *echoes) add(o metav1.Object) {
	if e.known == nil {
		e.known, e.order = map[echo]struct{}{}, make([]echo, mostEchoes)
	}
	delete(e.known, e.order[e.next])
	this := echo{o.GetUID(), o.GetResourceVersion()}
	e.known[this], e.order[e.next] = struct{}{}, this
	e.next = (e.next + 1) % mostEchoes
}

func (e *echoes) has(o metav1.Object) bool {
	_, known := e.known[echo{o.GetUID(), o.GetResourceVersion()}]
	return known
}

// wrote notes a version of a pod, or of a claim of its own, whose writer sees to
// all that follows from it.
func (c *core) wrote(o metav1.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.echoes.add(o)
}

// others lets no update pass that was written by wrote.
func (c *core) others() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		c.mu.Lock()
		echo := c.echoes.has(e.ObjectNew)
		c.mu.Unlock()
		return !echo || !couldBeOurs(e.ObjectOld, e.ObjectNew)
	}}
}

// couldBeOurs says whether two versions of a pod differ in nothing that is not
// written here. A patch that changes nothing any more is answered with the version
// that is there, which may be somebody else's; and a watch that was broken may show
// others' changes together with ours. Claims are written on the version that was
// seen, so theirs is always the next one.
func couldBeOurs(before, now client.Object) bool {
	a, ok := before.(*corev1.Pod)
	b, also := now.(*corev1.Pod)
	if !ok || !also {
		return true
	}
	was, is := a.Status, b.Status
	was.NominatedNodeName, is.NominatedNodeName = "", ""
	return a.Spec.NodeName == b.Spec.NodeName && (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		equality.Semantic.DeepEqual(was, is)
}

// forPods lets those changes of Workloads pass that give a pod something to do: not
// the reasons for which one waits, nor that it was made, as each pod comes by itself.
var forPods = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool {
		wl, ok := e.Object.(*kueue.Workload)
		return !ok || !stillWaits(wl)
	},
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*kueue.Workload)
		now, also := e.ObjectNew.(*kueue.Workload)
		return !ok || !also || !stillWaits(before) || !stillWaits(now) || before.UID != now.UID || before.Generation != now.Generation || !sameMeta(before, now)
	},
}

// stillWaits says that a Workload has been given nothing and is wanted still.
func stillWaits(wl *kueue.Workload) bool {
	return wl.Status.Admission == nil && wl.DeletionTimestamp == nil && !conditionTrue(wl, kueue.WorkloadFinished) && !conditionTrue(wl, kueue.WorkloadEvicted)
}

func sameMeta(a, b client.Object) bool {
	return equality.Semantic.DeepEqual(a.GetLabels(), b.GetLabels()) && equality.Semantic.DeepEqual(a.GetAnnotations(), b.GetAnnotations()) &&
		equality.Semantic.DeepEqual(a.GetOwnerReferences(), b.GetOwnerReferences())
}

// runs says that a Workload was admitted here and nothing has been decided about it
// since: that more is in use by it gives its reconciler nothing to do.
func (c *core) runs(id engine.WorkloadID) bool {
	w := c.works[id]
	if w == nil || c.beside || w.lost || w.late || w.foreign || w.evict != nil || w.object == nil || w.object.DeletionTimestamp != nil {
		return false
	}
	_, run := admitted(w.object)
	return run
}
