package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/jobs"
	"github.com/sluice-gpu/sluice/quota/ticket"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// A job of many completions runs a few pods at a time, and fewer towards its end.
// What the last ones do not need is given back before the job has ended
// (status.reclaimablePods), and never taken again under the same admission.
//
// What is about to be given back may buy no more tickets. So it is noted here
// first, under the lock under which tickets are granted, then written, and only
// what was written is free for others.

// giveBack works out how many pods of each set a workload can do without: those
// that its job cannot need any more, but none that is there, or whose devices
// are. less says that those keep some back that the job does not need; all is what
// is to be written, nil for nothing new.
func (c *core) giveBack(wl *kueue.Workload, left map[string]int32) (all []kueue.ReclaimablePod, less bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := workloadID(wl.Namespace, wl.Name)
	w := c.works[id]
	if w == nil || w.object == nil || w.object.UID != wl.UID || w.object.Status.Admission == nil || !c.caughtUp {
		return nil, false
	}
	news := false
	for i := range wl.Status.Admission.PodSetAssignments {
		given := &wl.Status.Admission.PodSetAssignments[i]
		set, count := string(given.Name), ptr.Deref(given.Count, 0)
		before := reclaimed(w.object, set)
		now := max(before, w.giving[set])
		if need, known := left[set]; known {
			live := c.present(w, set)
			less = less || live > need && need < count
			now = max(now, count-max(need, live))
		}
		if now <= 0 {
			continue
		}
		if w.giving == nil {
			w.giving = map[string]int32{}
		}
		w.giving[set] = now
		news = news || now > before
		all = append(all, kueue.ReclaimablePod{Name: given.Name, Count: now})
	}
	if !news {
		return nil, less
	}
	return all, less
}

// present counts the pods of a set that are there, and those that are not but
// whose devices are. A claim of which it cannot be said whose it is counts for
// every set.
func (c *core) present(w *work, set string) int32 {
	seen := map[any]bool{}
	for _, p := range c.podsOf[w.id] {
		if p.set == set && (!p.ended || c.equippedAtAll(p)) {
			seen[p.uid] = true
		}
	}
	for uid, name := range c.charges[w.id] {
		claim := c.claims[name]
		if claim == nil || claim.UID != uid {
			continue
		}
		known := false
		for _, o := range claim.OwnerReferences {
			known = known || c.pods[o.UID] != nil
		}
		if !known {
			seen[uid] = true
		}
	}
	return int32(len(seen))
}

// equippedAtAll says whether any claim of a pod has devices, or may get them.
func (c *core) equippedAtAll(p *podFact) bool {
	for _, claim := range c.claimsOf[p.uid] {
		if claim.Status.Allocation != nil || ticket.Has(claim.Annotations) {
			return true
		}
	}
	return false
}

// reclaimed is how many pods of a set a Workload's status has given back.
func reclaimed(wl *kueue.Workload, set string) int32 {
	for _, r := range wl.Status.ReclaimablePods {
		if string(r.Name) == set {
			return r.Count
		}
	}
	return 0
}

// kept is what a workload was given, less what it has given back or is about to,
// whole pods or what their devices cost less.
func (c *core) kept(w *work, a *kueue.Admission) *kueue.Admission {
	if w == nil || len(w.giving) == 0 && w.lowered == nil && (w.object == nil || len(w.object.Status.ReclaimablePods) == 0) {
		return a
	}
	a = a.DeepCopy()
	for i := range a.PodSetAssignments {
		given := &a.PodSetAssignments[i]
		set, count := string(given.Name), ptr.Deref(given.Count, 0)
		if lowered := w.loweredSet(set); lowered != nil {
			for name, q := range given.ResourceUsage {
				if now, listed := lowered.ResourceUsage[name]; listed && now.Cmp(q) < 0 {
					given.ResourceUsage[name] = now
				}
			}
		}
		less := w.giving[set]
		if w.object != nil {
			less = max(less, reclaimed(w.object, set))
		}
		if less <= 0 || count <= 0 {
			continue
		}
		rest := max(0, count-less)
		given.Count = &rest
		for name, q := range given.ResourceUsage {
			given.ResourceUsage[name] = part(engine.Resource(name), q, count, rest)
		}
	}
	return a
}

// loweredSet is what a set is about to be charged, nil if that is not less.
func (w *work) loweredSet(set string) *kueue.PodSetAssignment {
	if w.lowered == nil {
		return nil
	}
	return setOf(w.lowered, set)
}

// part is what rest of count pods are charged.
func part(r engine.Resource, q resource.Quantity, count, rest int32) resource.Quantity {
	n := translate.Amount(corev1.ResourceName(r), q)
	if n >= engine.Unlimited {
		return q
	}
	return translate.Quantity(r, n/engine.Amount(count)*engine.Amount(rest))
}

// reclaim gives back what a running job does not need any more. again says that
// some of it is in use yet.
func (r *jobReconciler) reclaim(ctx context.Context, kind *jobs.Kind, job *unstructured.Unstructured, wl *kueue.Workload) (again bool, err error) {
	left := kind.Left(job)
	if len(left) == 0 || wl.Status.Admission == nil {
		return false, nil
	}
	all, less := r.giveBack(wl, left)
	if all == nil {
		return less, nil
	}
	wl = wl.DeepCopy()
	wl.Status.ReclaimablePods = all
	if err := r.client.Status().Update(ctx, wl, client.FieldOwner(FieldOwner)); err != nil {
		return true, client.IgnoreNotFound(ignoreConflict(err))
	}
	r.saw(wl.DeepCopy())
	r.event(job, corev1.EventTypeNormal, "Reclaimed", "Gives back quota before its end: %s", describeReclaimed(all))
	return less, nil
}

func describeReclaimed(all []kueue.ReclaimablePod) string {
	text := ""
	for _, r := range all {
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf("%d pods of set %q", r.Count, r.Name)
	}
	return text + " are not needed any more"
}
