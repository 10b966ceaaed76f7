package controller

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/fit"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

// This file is what stands between the core and fit beyond single facts: by which
// policy a workload is placed, who is looked at again when room changes, and
// since when somebody has waited for it.

// placementOf is the policy for the pods of a Workload, "" for the configured
// one: what its LocalQueue says goes before what the ClusterQueue says. A name
// that is no policy counts as none.
func (c *core) placementOf(wl *kueue.Workload) fit.Policy {
	local := c.locals[types.NamespacedName{Namespace: wl.Namespace, Name: string(wl.Spec.QueueName)}]
	if local == nil {
		return ""
	}
	if p, err := fit.ParsePolicy(local.Annotations[PlacementAnnotation]); err == nil && p != "" {
		return p
	}
	if q := c.queues[string(local.Spec.ClusterQueue)]; q != nil {
		if p, err := fit.ParsePolicy(q.Annotations[PlacementAnnotation]); err == nil {
			return p
		}
	}
	return ""
}

// placementChanged tells fit again of the workloads of a queue.
func (c *core) placementChanged(concerns func(*kueue.LocalQueue) bool) {
	for id, w := range c.works {
		if w.object == nil {
			continue
		}
		local := c.locals[types.NamespacedName{Namespace: w.object.Namespace, Name: string(w.object.Spec.QueueName)}]
		if local != nil && concerns(local) {
			c.dirty[id] = struct{}{}
		}
	}
}

// sawLocalQueue takes in a LocalQueue.
func (c *core) sawLocalQueue(o *kueue.LocalQueue) {
	name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	old := c.locals[name]
	c.locals[name] = o
	if old == nil || old.Annotations[PlacementAnnotation] != o.Annotations[PlacementAnnotation] || old.Spec.ClusterQueue != o.Spec.ClusterQueue {
		c.placementChanged(func(l *kueue.LocalQueue) bool { return l == o })
	}
}

// sawQueuePlacement looks whether a ClusterQueue changes how its workloads are
// placed.
func (c *core) sawQueuePlacement(old, o *kueue.ClusterQueue) {
	if old == nil || old.Annotations[PlacementAnnotation] != o.Annotations[PlacementAnnotation] {
		c.placementChanged(func(l *kueue.LocalQueue) bool { return string(l.Spec.ClusterQueue) == o.Name })
	}
}

// nominates says whether a pod's node is to be named to the scheduler: other
// schedulers than the stock one would not look at it. Where its ticket cannot
// name all nodes of the flavor, the scheduler must not choose freely among them,
// since what it may not take would be refused.
func (c *core) nominates(pod *corev1.Pod, wl *kueue.Workload, given *kueue.PodSetAssignment) bool {
	if name := pod.Spec.SchedulerName; name != "" && name != corev1.DefaultSchedulerName {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fit.PolicyOf(workloadID(wl.Namespace, wl.Name)) != fit.None || len(c.poolsOf(c.deviceFlavor(given)).all) > ticket.MaxPools
}

// roomKey stands for all that fit looks at in a workload: of two that differ in
// it one may find room where the other does not.
func roomKey(places []fit.PodSet) string {
	h := sha256.New()
	e := json.NewEncoder(h)
	for i := range places {
		p := &places[i]
		var shared []types.UID
		for _, c := range p.Shared {
			shared = append(shared, c.UID)
		}
		_ = e.Encode(p.Claims)
		_ = e.Encode(shared)
		_ = e.Encode(p.Spec.NodeSelector)
		_ = e.Encode(p.Spec.Affinity)
		_ = e.Encode(p.Spec.Tolerations)
		for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for j := range list {
				_ = e.Encode(list[j].Resources)
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// waitsForRoom remembers a pod that is to be looked at when room changes.
func (c *core) waitsForRoom(pod types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.roomless[pod] = struct{}{}
}

// lookAgain has the pods looked at to which a change of room may matter: those
// that found none, and those that were given a place and are not there yet.
func (c *core) lookAgain() {
	for name := range c.roomless {
		c.tellPod(name)
	}
	clear(c.roomless)
	c.comingDue = true
}

// lookEvery is how soon pods on their way are looked at again: each that arrives
// changes room, and all the others would be looked at for it.
const lookEvery = time.Second

// lookAtComing looks at the latter, not too often. A pod that the scheduler finds
// no node for comes here by itself.
func (c *core) lookAtComing(now time.Time) {
	if !c.comingDue || now.Sub(c.comingAt) < lookEvery {
		return
	}
	c.comingDue, c.comingAt = false, now
	for _, uid := range c.fit.Coming() {
		if p := c.pods[uid]; p != nil && p.bound == "" {
			c.tellPod(p.name)
		}
	}
}

// trim gives up promised places that no pod of a set will need any more: those
// that have their devices came another way, such as past a restart.
func (c *core) trim(f *podFact) {
	w := c.works[f.workload]
	if w == nil || !w.placed {
		return
	}
	a := granted(w.object)
	if a == nil {
		return
	}
	if given := engineSet(c.kept(w, a), f.set); given != nil {
		c.trimSet(w, given)
	}
}

func (c *core) trimSet(w *work, given *engine.PodSetAssignment) {
	placed, promised := c.fit.Slots(w.id, given.Name)
	if promised == 0 {
		return
	}
	most, claims := given.Count, c.fit.Claims(w.id, given.Name)
	for _, p := range c.podsOf[w.id] {
		if p.set != given.Name || p.ended {
			continue
		}
		if _, has := placed[p.uid]; has || c.settledWith(p, claims) {
			most--
		}
	}
	c.fit.Trim(w.id, given.Name, max(0, most))
}

// done says that a pod has done its work, so that most jobs make none in its place.
func (p *podFact) done() bool { return p.ended && p.object.Status.Phase == corev1.PodSucceeded }

// replaced is called for a pod that is gone or has ended: its job makes another
// if it has not done its work, unless the workload is the pod's own.
func (c *core) replaced(f *podFact) {
	w := c.works[f.workload]
	if w == nil || w.object == nil || f.done() {
		return
	}
	if owner := metav1.GetControllerOf(w.object); owner == nil || owner.UID != f.uid {
		c.mayLackPlace(f.workload)
	}
}

// gaveBack is called when a claim has no devices any more that it had. The place
// that was given up for them is needed again.
func (c *core) gaveBack(claim *resourceapi.ResourceClaim) {
	owner := metav1.GetControllerOf(claim)
	if owner == nil || owner.Kind != "Pod" {
		// One by name is a workload of its own.
		if id := claimWorkload(claim); c.works[id] != nil && c.awaited(claim) {
			c.fit.Settle(id, claim.UID)
			c.mayLackPlace(id)
		}
		return
	}
	if f := c.pods[owner.UID]; f != nil && f.workload != "" && !f.ended {
		c.fit.Settle(f.workload, f.uid)
		c.mayLackPlace(f.workload)
	}
}

// awaited says whether a pod that is not on a node needs a claim by name.
func (c *core) awaited(claim *resourceapi.ResourceClaim) bool {
	now := c.claims[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}]
	if now == nil || now.UID != claim.UID {
		return false
	}
	for _, p := range c.pods {
		if p.name.Namespace == claim.Namespace && p.bound == "" && !p.ended && !p.deleting && slices.Contains(claimNames(p.object), claim.Name) {
			return true
		}
	}
	return false
}

// settled says that a pod counts by itself: it is on a node, or its claims are
// allocated.
func (c *core) settled(p *podFact) bool {
	return c.settledWith(p, c.fit.Claims(p.workload, p.set))
}

// settledWith is settled for a pod that needs so many claims.
func (c *core) settledWith(p *podFact, claims int) bool {
	return (p.bound != "" || claims > 0) && c.allocated(p) >= claims
}

// devicesAt is the node of the devices that a pod has, "" if there is no single
// one.
func (c *core) devicesAt(pod types.UID) string {
	for _, claim := range c.claimsOf[pod] {
		if node := nodeOf(claim); node != "" {
			return node
		}
	}
	return ""
}

// RoomAwaited is the condition of a Workload that has waited for room: since when
// is what a restart must not forget.
const RoomAwaited = "RoomAwaited"

// lacksRoom notes that a Workload waits for room; since when stays as it was.
func lacksRoom(wl *kueue.Workload, now time.Time) {
	meta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{
		Type: RoomAwaited, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(now),
		Reason: string(engine.WaitingForRoom), Message: "The budget admits it; cards have no room", ObservedGeneration: wl.Generation,
	})
}

// foundRoom ends that.
func foundRoom(wl *kueue.Workload, now time.Time) {
	if meta.FindStatusCondition(wl.Status.Conditions, RoomAwaited) == nil {
		return
	}
	meta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{
		Type: RoomAwaited, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(now),
		Reason: kueue.WorkloadQuotaReserved, Message: "It has room", ObservedGeneration: wl.Generation,
	})
}

// roomSince is since when a Workload has waited for room, the zero time if it
// does not.
func roomSince(wl *kueue.Workload) time.Time {
	if c := meta.FindStatusCondition(wl.Status.Conditions, RoomAwaited); c != nil && c.Status == metav1.ConditionTrue {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// optional are kinds that are watched where the API server has them.
func optional(mgr ctrl.Manager) ([]client.Object, error) {
	rule := resourceapi.SchemeGroupVersion.WithKind("DeviceTaintRule")
	_, err := mgr.GetRESTMapper().RESTMapping(rule.GroupKind(), rule.Version)
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	return []client.Object{&resourceapi.DeviceTaintRule{}}, err
}
