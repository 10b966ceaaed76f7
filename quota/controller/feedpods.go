package controller

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/fit"
	"github.com/sluice-gpu/sluice/quota/lifecycle"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

// This file takes in pods and claims: which pod is whose, who has devices, and who
// pays for them.

func (c *core) sawPod(o *corev1.Pod) {
	old := c.pods[o.UID]
	if old != nil && known(version(o), old.version) {
		return
	}
	c.placePodFact(o)
	if f := c.pods[o.UID]; old != nil && f.ended && !old.ended {
		c.room = true
		c.replaced(f)
		c.gaveWay(f.workload)
	}
}

// placePodFact derives what is remembered of a pod from the object and the jobs
// above it.
func (c *core) placePodFact(o *corev1.Pod) {
	old := c.pods[o.UID]
	f := &podFact{
		object:   o,
		version:  version(o),
		name:     types.NamespacedName{Namespace: o.Namespace, Name: o.Name},
		uid:      o.UID,
		created:  o.CreationTimestamp.Time,
		gated:    HasGate(o),
		ended:    ended(o),
		ready:    isReady(o),
		told:     o.Annotations[lifecycle.PreemptedAnnotation] != "",
		bound:    o.Spec.NodeName,
		deleting: o.DeletionTimestamp != nil,
	}
	m := c.membership(o)
	f.workload, f.set, f.owner = m.workload, m.set, m.owner
	if m.kind != nil {
		f.parent = metav1.GetControllerOf(o).UID
		c.link(f.parent, f.uid)
	}
	if old != nil && old.parent != f.parent {
		c.unlink(old.parent, f.uid)
	}
	if old != nil && old.workload != f.workload {
		delete(c.podsOf[old.workload], o.UID)
	}
	c.pods[o.UID] = f
	c.unnamed.notePod(f, true)
	c.sawPromise(o)
	c.fit.SetPod(o, f.workload)
	if f.workload != "" {
		if c.podsOf[f.workload] == nil {
			c.podsOf[f.workload] = map[types.UID]*podFact{}
		}
		c.podsOf[f.workload][o.UID] = f
		c.settle(f)
		if old == nil || !f.same(old) && !(f.opened(old) && c.runs(f.workload)) {
			c.tell(f.workload)
		}
	}
}

// same says whether a pod matters to its workload as it did before: most of its
// changes are of other things.
func (p *podFact) same(before *podFact) bool {
	return p.workload == before.workload && p.set == before.set && p.owner == before.owner && p.bound == before.bound &&
		p.gated == before.gated && p.ended == before.ended && p.ready == before.ready && p.told == before.told && p.deleting == before.deleting
}

// opened says that nothing has changed but that the pod may go to a node.
func (p *podFact) opened(before *podFact) bool {
	gated := *before
	gated.gated = false
	return before.gated && !p.gated && p.same(&gated)
}

func (c *core) lostPod(uid types.UID) {
	f := c.pods[uid]
	if f == nil {
		return
	}
	delete(c.pods, uid)
	c.unnamed.notePod(f, false)
	if w := c.works[f.workload]; w != nil {
		delete(w.beyond, uid)
	}
	c.lostPromise(uid)
	delete(c.podsOf[f.workload], uid)
	if len(c.podsOf[f.workload]) == 0 {
		delete(c.podsOf, f.workload)
	}
	c.unlink(f.parent, uid)
	c.bury(f.parent)
	c.fit.RemovePod(uid)
	c.fit.Settle(f.workload, uid)
	c.room = true
	if f.workload != "" {
		c.replaced(f)
		c.gaveWay(f.workload)
		c.tell(f.workload)
	}
}

// settle ends the promise of a place once the pod is on a node and its claims
// are seen to be allocated. Binding comes after allocation, but pods and claims
// are watched apart, and either may be seen first.
func (c *core) settle(f *podFact) {
	if f.ended || f.bound != "" && c.equipped(f) {
		c.fit.Settle(f.workload, f.uid)
	}
	c.trim(f)
}

// equipped says whether all claims that were made for a pod have their devices.
func (c *core) equipped(f *podFact) bool {
	return c.allocated(f) >= c.fit.Claims(f.workload, f.set)
}

// allocated is how many claims of a pod have their devices.
func (c *core) allocated(f *podFact) int {
	n := 0
	for _, claim := range c.claimsOf[f.uid] {
		if claim.Status.Allocation != nil {
			n++
		}
	}
	return n
}

func (c *core) sawClaim(o *resourceapi.ResourceClaim) {
	name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	old := c.claims[name]
	if old != nil && old.UID == o.UID && known(version(o), version(old)) {
		return
	}
	if old != nil && old.UID != o.UID {
		c.lostClaim(old)
		old = nil
	}
	id := chargedTo(o)
	if old != nil && chargedTo(old) != "" {
		c.uncharge(chargedTo(old), old.UID)
		if chargedTo(old) != id {
			c.gaveWay(chargedTo(old))
		}
	}
	c.claims[name] = o
	if id != "" {
		if c.charges[id] == nil {
			c.charges[id] = map[types.UID]types.NamespacedName{}
		}
		c.charges[id][o.UID] = name
		c.landed(id, o)
	}
	c.fit.SetClaim(o, id)
	if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == "Pod" {
		if c.claimsOf[owner.UID] == nil {
			c.claimsOf[owner.UID] = map[types.NamespacedName]*resourceapi.ResourceClaim{}
		}
		c.claimsOf[owner.UID][name] = o
		if f := c.pods[owner.UID]; f != nil && f.workload != "" && c.equipped(f) {
			c.fit.Equipped(f.workload, f.uid, nodeOf(o))
			c.settle(f)
		}
	} else if o.Status.Allocation != nil && id != "" {
		c.fit.Settle(id, o.UID)
		if id == claimWorkload(o) {
			// It may have been allocated before its own was looked for.
			c.fit.Trim(id, mainSet, 0)
		}
	}
	if old != nil && old.Status.Allocation != nil && o.Status.Allocation == nil {
		c.room = true
		c.gaveBack(o)
	}
	own := claimWorkload(o)
	if id != "" && (id == own || !gotTicket(old, o) || !c.runs(id)) {
		c.tell(id)
	}
	if own != "" && own != id {
		c.tell(own)
	}
	if bare(o) && (old == nil || bare(old)) || gotTicket(old, o) && c.runs(id) {
		// Its pod looks after it; nothing is used yet.
		return
	}
	for _, owner := range o.OwnerReferences {
		if f := c.pods[owner.UID]; f != nil && f.workload != "" {
			c.tell(f.workload)
		}
	}
}

// bare says that a claim has neither a ticket nor devices.
func bare(o *resourceapi.ResourceClaim) bool {
	return o.Status.Allocation == nil && chargedTo(o) == ""
}

// gotTicket says that all that has changed of a claim is that it got a ticket.
func gotTicket(before, now *resourceapi.ResourceClaim) bool {
	return before != nil && bare(before) && now.Status.Allocation == nil && chargedTo(now) != "" && before.DeletionTimestamp == nil && now.DeletionTimestamp == nil
}

// nodeOf is the node to which the devices of a claim belong, "" if there is no
// single one.
func nodeOf(o *resourceapi.ResourceClaim) string {
	if o.Status.Allocation == nil {
		return ""
	}
	return fit.NodeOfAllocation(o.Status.Allocation)
}

func (c *core) lostClaim(o *resourceapi.ResourceClaim) {
	name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	if now := c.claims[name]; now != nil && now.UID == o.UID {
		c.uncharge(chargedTo(now), now.UID)
		delete(c.claims, name)
	}
	c.uncharge(chargedTo(o), o.UID)
	if owner := metav1.GetControllerOf(o); owner != nil {
		delete(c.claimsOf[owner.UID], name)
		if len(c.claimsOf[owner.UID]) == 0 {
			delete(c.claimsOf, owner.UID)
		}
	}
	c.fit.RemoveClaim(o.UID)
	if o.Status.Allocation != nil {
		c.gaveBack(o)
	}
	if id := claimWorkload(o); id != "" {
		c.fit.Settle(id, o.UID)
	}
	c.room = true
	if id := chargedTo(o); id != "" {
		c.gaveWay(id)
		c.tell(id)
	}
}

func (c *core) uncharge(id engine.WorkloadID, uid types.UID) {
	delete(c.charges[id], uid)
	if len(c.charges[id]) == 0 {
		delete(c.charges, id)
	}
}

// chargedTo is the workload that pays for a claim: the one its ticket names, as
// long as it has the ticket.
func chargedTo(o *resourceapi.ResourceClaim) engine.WorkloadID {
	if name := o.Annotations[ticket.ByWorkload]; name != "" {
		return workloadID(o.Namespace, name)
	}
	return ""
}
