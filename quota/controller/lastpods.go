package controller

import (
	"maps"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/jobs"
)

// A pod of a job may be replaced, and its replacement be given the dearest again.
// Had the charge gone down by then, the replacement would get no ticket for what
// the scheduler chooses, and wait while its job holds what is left. So the charge
// of a job's pods is corrected once no other pod can come: all that are needed are
// there and have their devices, and the job ends with the next that fails.
//
// A user can still let more come, by raising the limit of a job that runs. Their
// tickets stay within what is charged then, like all tickets.

// noteLast remembers of a job whether it makes another pod. It is asked each time
// the job has changed, and after a restart.
func (c *core) noteLast(wl *kueue.Workload, kind *jobs.Kind, job *unstructured.Unstructured) {
	var last map[string]int32
	if kind.Last(job) {
		last = kind.Left(job)
		if last == nil {
			last = map[string]int32{}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.works[workloadID(wl.Namespace, wl.Name)]
	if w == nil || w.object == nil || w.object.UID != wl.UID || (w.last == nil) == (last == nil) && maps.Equal(w.last, last) {
		return
	}
	w.last = last
	c.tell(w.id)
}

// lastPods are the claims of each pod of a job's set, if these pods are the last:
// all that the set was admitted with and has not given back are there, each has
// its devices, and the job makes no other. nil if not.
func (c *core) lastPods(w *work, a *kueue.Admission, set string) [][]*resourceapi.ResourceClaim {
	given := setOf(c.kept(w, a), set)
	if w.last == nil || given == nil || !c.synced || !c.caughtUp || len(c.writing[w.id]) > 0 {
		return nil
	}
	count := ptr.Deref(given.Count, 0)
	if need, known := w.last[set]; known && need > count {
		return nil
	}
	for pod := range c.promises[w.id] {
		if !c.redeemed(pod) {
			return nil
		}
	}
	for uid, name := range c.charges[w.id] {
		claim := c.claims[name]
		if claim == nil || claim.UID != uid {
			continue
		}
		// Every ticket has to be that of a pod which is there: the lower charge pays
		// for no other.
		o := metav1.GetControllerOf(claim)
		if o == nil {
			return nil
		}
		if p := c.pods[o.UID]; p == nil || p.ended || p.workload != w.id || !p.belongs(w.object) {
			return nil
		}
	}
	var all [][]*resourceapi.ResourceClaim
	for _, p := range c.podsOf[w.id] {
		if p.set != set || !p.belongs(w.object) {
			continue
		}
		if p.ended {
			if c.equippedAtAll(p) {
				return nil
			}
			continue
		}
		mine := c.ownClaims(p)
		if p.gated || p.deleting || p.bound == "" || mine == nil {
			return nil
		}
		all = append(all, mine)
	}
	if len(all) != int(count) {
		return nil
	}
	return all
}

// ownClaims are the claims that were made for a pod; nil if one of them is missing
// or has no devices.
func (c *core) ownClaims(p *podFact) []*resourceapi.ResourceClaim {
	templates := 0
	for _, ref := range p.object.Spec.ResourceClaims {
		if ref.ResourceClaimTemplateName != nil {
			templates++
		}
	}
	if !c.equipped(p) || len(c.claimsOf[p.uid]) < templates {
		return nil
	}
	var all []*resourceapi.ResourceClaim
	for _, claim := range c.claimsOf[p.uid] {
		if claim.Status.Allocation == nil {
			return nil
		}
		all = append(all, claim)
	}
	return all
}
