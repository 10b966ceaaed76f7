package controller

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/quota/jobs"
)

// Jobs are made of jobs: a JobSet of Jobs, a RayJob of a RayCluster. The
// outermost of them that names a queue has the Workload, and all pods below are
// its pods. This file knows who is above whom.

// ownerFact is what is remembered of a job.
type ownerFact struct {
	kind *jobs.Kind
	name types.NamespacedName
	uid  types.UID
	// parent is the job that controls this one, "" if none does.
	parent  types.UID
	queue   string
	version uint64
	// ours says that it carries what an admission added, or that it was suspended
	// for a queue.
	ours bool
}

// jobRequest names a job.
type jobRequest struct {
	kind *jobs.Kind
	name types.NamespacedName
}

// deepest bounds the steps up a chain of owners, which may be forged into a
// circle.
const deepest = 8

// sawJob takes in a job of a governed kind.
func (c *core) sawJob(o *unstructured.Unstructured) {
	kind := c.kinds.Find(o.GetAPIVersion(), o.GetKind())
	if kind == nil {
		return
	}
	old := c.owners[o.GetUID()]
	f := &ownerFact{
		kind: kind, uid: o.GetUID(), version: version(o), queue: c.queueOf(kind, o), ours: jobs.Held(o) || jobs.Started(o),
		name: types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()},
	}
	if old != nil && f.version < old.version {
		return
	}
	if ref := metav1.GetControllerOf(o); ref != nil && c.kinds.Find(ref.APIVersion, ref.Kind) != nil {
		f.parent = ref.UID
	}
	if old != nil && old.parent != f.parent {
		c.unlink(old.parent, old.uid)
	}
	c.link(f.parent, f.uid)
	if f.queue == "" {
		f.queue = c.queueOfMade(f)
	}
	c.owners[f.uid] = f
	c.unnamed.noteJob(f, true)
	c.jobs[jobRequest{kind, f.name}] = f.uid
	if old == nil || old.parent != f.parent || old.queue != f.queue {
		c.rehome(f.uid, 0)
	}
	c.tellJob(jobRequest{kind, f.name})
	if p := c.above(f); p != nil {
		if p.queue == "" && f.queue != "" {
			p.queue = f.queue
			c.unnamed.noteJob(p, true)
			c.rehome(p.uid, 0)
		}
		c.tellJob(jobRequest{p.kind, p.name})
	}
}

// lostJob takes in that a job is gone. It is remembered while it has members:
// its pods may still run, and go on being its pods.
func (c *core) lostJob(uid types.UID) {
	f := c.owners[uid]
	if f == nil {
		return
	}
	if at := (jobRequest{f.kind, f.name}); c.jobs[at] == uid {
		delete(c.jobs, at)
	}
	c.departed[uid] = struct{}{}
	c.bury(uid)
}

// bury forgets a job that is gone and has no members, and with it its ancestors
// of whom the same is true.
func (c *core) bury(uid types.UID) {
	for range deepest {
		f := c.owners[uid]
		if _, gone := c.departed[uid]; f == nil || !gone || len(c.under[uid]) > 0 {
			return
		}
		delete(c.owners, uid)
		c.unnamed.noteJob(f, false)
		delete(c.departed, uid)
		c.unlink(f.parent, uid)
		uid = f.parent
	}
}

// link notes that a job controls a job or a pod.
func (c *core) link(parent, child types.UID) {
	if parent == "" {
		return
	}
	if c.under[parent] == nil {
		c.under[parent] = map[types.UID]struct{}{}
	}
	c.under[parent][child] = struct{}{}
}

func (c *core) unlink(parent, child types.UID) {
	delete(c.under[parent], child)
	if len(c.under[parent]) == 0 {
		delete(c.under, parent)
	}
}

// rehome looks again to which workload everything below a job belongs.
func (c *core) rehome(uid types.UID, depth int) {
	if depth == deepest {
		return
	}
	for child := range c.under[uid] {
		if p := c.pods[child]; p != nil {
			c.placePodFact(p.object)
			c.tellPod(p.name)
			continue
		}
		if f := c.owners[child]; f != nil {
			c.tellJob(jobRequest{f.kind, f.name})
		}
		c.rehome(child, depth+1)
	}
}

// governor is the outermost job above a pod or job that names a queue; where none
// does, or nothing is known of them, the one that owns it directly.
func (c *core) governor(namespace string, kind *jobs.Kind, ref *metav1.OwnerReference) *ownerFact {
	best := &ownerFact{kind: kind, uid: ref.UID, name: types.NamespacedName{Namespace: namespace, Name: ref.Name}}
	at := ref.UID
	for range deepest {
		f := c.owners[at]
		if f == nil || f.name.Namespace != namespace {
			break
		}
		if f.queue != "" || f.uid == ref.UID {
			best = f
		}
		at = f.parent
	}
	return best
}

// jobNamed is what is known of a job, and whether it has no Workload of its own
// because a job above it is governed. nil if it is not there.
// held says that it is one of those that are suspended until they name a queue.
func (c *core) jobNamed(at jobRequest) (fact *ownerFact, nested, held bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.owners[c.jobs[at]]
	if f == nil {
		return nil, false, false
	}
	return f, c.nested(f), f.queue == "" && f.parent == "" && c.unnamed.holds(f.name.Namespace)
}

func (c *core) nested(f *ownerFact) bool {
	at := f.parent
	for range deepest {
		p := c.owners[at]
		if p == nil || p.name.Namespace != f.name.Namespace {
			return false
		}
		if p.queue != "" {
			return true
		}
		at = p.parent
	}
	return false
}

// Kinds are the kinds of jobs that are governed.
func (c *Controller) Kinds() *jobs.Table { return c.core.kinds }

// QueueLabel is the label that names a queue.
func (c *Controller) QueueLabel() string { return c.core.queueLabel() }

// QueueOf is the LocalQueue that a job names, "" for none.
func (c *Controller) QueueOf(kind *jobs.Kind, job *unstructured.Unstructured) string {
	return c.core.queueOf(kind, job)
}

// Governed says whether a job's pods, or jobs made of it, belong to it or to a
// job above it. One that is not known counts as governed: it is about to be.
func (c *Controller) Governed(owner *metav1.OwnerReference) bool {
	if c.core.kinds.Find(owner.APIVersion, owner.Kind) == nil {
		return false
	}
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	f := c.core.owners[owner.UID]
	return f == nil || f.queue != "" || c.core.nested(f)
}

// jobsUnder are the jobs of a kind that another controls.
func (c *core) jobsUnder(uid types.UID) []jobRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []jobRequest
	for child := range c.under[uid] {
		if f := c.owners[child]; f != nil {
			all = append(all, jobRequest{f.kind, f.name})
		}
	}
	return all
}
