package controller

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/jobs"
	"github.com/sluice-gpu/sluice/quota/lifecycle"
)

// A pod of a job may be replaced, and its replacement be given the dearest again.
// Had the charge gone down by then, the replacement would get no ticket for what
// the scheduler chooses, and wait while its job holds what is left. So the charge
// of a set's pods is corrected once no other pod can come: all that are needed are
// there and have their devices, and none is made in place of one that fails.
//
// Others can still let more come: a user who raises the limit of a job that runs,
// or whoever deletes a pod from outside, where the kind's own controller makes all
// that are missing. Such a pod does not wait for what was given away, and nothing
// is charged that is not there: the workload goes back into its queue, with the
// dearest to be charged; see outgrownError.

// Corrected is the condition of the Workload of a job or group that is charged for
// what its pods were given, and not for what they might have been. Its reason says
// for which sets, if not for all: see correctedFor. What is a pod or a claim of its
// own has no other that could come.
const Corrected = "quota.sluice.dev/Corrected"

// allCorrected is the reason where all sets that have devices are corrected. Where
// some are, their places among the Workload's sets follow someCorrected.
const (
	allCorrected  = "Allocated"
	someCorrected = "AllocatedInSets"
)

// corrected notes that sets of a Workload, by their places, are charged for what
// their pods were given, beside those that were before.
func (c *core) corrected(wl *kueue.Workload, sets []int, message string, now time.Time) {
	reason, some := allCorrected, someCorrected
	for i := range wl.Status.Admission.PodSetAssignments {
		given := &wl.Status.Admission.PodSetAssignments[i]
		switch {
		case slices.Contains(sets, i) || correctedFor(wl, string(given.Name)):
			some += "_" + strconv.Itoa(i)
		case c.deviceFlavor(given) != "":
			reason = someCorrected
		}
	}
	if reason == someCorrected {
		reason = some
	}
	meta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{
		Type: Corrected, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(now),
		Reason: reason, Message: message, ObservedGeneration: wl.Generation,
	})
}

// correctedFor says whether a set of a Workload is charged for what its pods were
// given.
func correctedFor(wl *kueue.Workload, set string) bool {
	cond := meta.FindStatusCondition(wl.Status.Conditions, Corrected)
	if cond == nil || cond.Status != metav1.ConditionTrue || wl.Status.Admission == nil {
		return false
	}
	some, isSome := strings.CutPrefix(cond.Reason, someCorrected+"_")
	if !isSome {
		return true
	}
	i := slices.IndexFunc(wl.Status.Admission.PodSetAssignments, func(a kueue.PodSetAssignment) bool { return string(a.Name) == set })
	return slices.Contains(strings.Split(some, "_"), strconv.Itoa(i))
}

// outgrownError says that a pod has come for which what its workload is charged,
// since it was corrected, does not suffice.
type outgrownError struct{ text string }

func (e *outgrownError) Error() string { return e.text }

// noteLast remembers of a job for which of its sets it makes no other pods, and
// how many it can still need of each. It is asked each time the job has changed,
// and after a restart.
func (c *core) noteLast(wl *kueue.Workload, kind *jobs.Kind, job *unstructured.Unstructured) {
	left, last := kind.Left(job), map[string]int32{}
	for set := range kind.Last(job) {
		last[set] = left[set]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.works[workloadID(wl.Namespace, wl.Name)]
	if w == nil || w.object == nil || w.object.UID != wl.UID || maps.Equal(w.last, last) {
		return
	}
	w.last = last
	c.tell(w.id)
}

// lastOf is how many pods a set of a workload can still need, if none is made in
// place of one that fails.
func (c *core) lastOf(w *work, set string) (need int32, known bool) {
	if metav1.GetControllerOf(w.object) == nil {
		return 0, c.closed(w.object)
	}
	need, known = w.last[set]
	return need, known
}

// outgrew sends a workload back into its queue that is charged less than a pod
// which has come may need: admitted anew it is charged the dearest.
func (s *sources) outgrew(ctx context.Context, wl *kueue.Workload, why *outgrownError) error {
	wl = wl.DeepCopy()
	queue := string(wl.Status.Admission.ClusterQueue)
	v := lifecycle.Verdict{Reason: "Outgrown", Message: why.text + "; it waits for an admission that pays for that"}
	lifecycle.Evict(wl, v, s.now())
	if err := s.client.Status().Update(ctx, wl, client.FieldOwner(FieldOwner)); err != nil {
		return err
	}
	s.saw(wl.DeepCopy())
	s.metrics.evicted(queue, v, "")
	for i := range wl.OwnerReferences[:min(1, len(wl.OwnerReferences))] {
		o := &wl.OwnerReferences[i]
		regarding := &corev1.ObjectReference{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: wl.Namespace, Name: o.Name, UID: o.UID}
		s.recorder.Eventf(regarding, wl, corev1.EventTypeWarning, "EvictedDueTo"+v.Reason, "Quota", "%s", v.Message)
	}
	return nil
}

// lastPods are the claims of each pod of a set, if these pods are the last: all
// that the set was admitted with and has not given back are there, each has its
// devices, and no other is made. nil if not.
func (c *core) lastPods(w *work, a *kueue.Admission, set string) [][]*resourceapi.ResourceClaim {
	given := setOf(c.kept(w, a), set)
	if given == nil || !c.synced || !c.caughtUp || len(c.writing[w.id]) > 0 {
		return nil
	}
	count := ptr.Deref(given.Count, 0)
	if need, known := c.lastOf(w, set); !known || need > count {
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
