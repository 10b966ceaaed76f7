package controller

import (
	"context"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

// Claims for extended resources are made by the scheduler, after the gate is
// open, and get their ticket from the webhook while they are made. Every replica
// serves the webhook, and none knows what another has given a moment ago. So the
// replica that leads decides, as for all other tickets: it writes the ticket on
// the pod, in the update that opens the gate, and counts it as given from then
// on. The webhook only hands it over.

// BirthAnnotation, on a pod, is the ticket that the claim for its extended
// resources will be born with. Only the quota controller writes it.
const BirthAnnotation = "quota.sluice.dev/birth-ticket"

// promise is such a ticket.
type promise struct {
	workload engine.WorkloadID
	price    pricing.Price
}

func encodeBirth(t *ticket.Ticket) (string, error) {
	b, err := json.Marshal(t.Annotations())
	return string(b), err
}

// birthTicket reads it, nil for a pod that has none that can be read.
func birthTicket(pod metav1.Object) *ticket.Ticket {
	text, ok := pod.GetAnnotations()[BirthAnnotation]
	if !ok {
		return nil
	}
	var annotations map[string]string
	if json.Unmarshal([]byte(text), &annotations) != nil {
		return nil
	}
	t, err := ticket.Read(annotations)
	if err != nil {
		return nil
	}
	return t
}

// birth is the ticket to write on a pod that is to be let go; nil if it needs
// none, or has it. It counts as given from here on.
func (r *podReconciler) birth(pod *corev1.Pod, wl *kueue.Workload, a *kueue.Admission, set, node string) (*ticket.Ticket, error) {
	if pod.Status.ExtendedResourceClaimStatus != nil || birthTicket(pod) != nil {
		return nil, nil
	}
	r.mu.Lock()
	extended, _ := pricing.ExtendedResources(&pod.Spec, r.fit.Classes())
	born := r.born(pod.UID)
	r.mu.Unlock()
	if extended == nil || born {
		return nil, nil
	}
	return r.ticketFor(claimRequest{claim: pod.UID, slot: pod.UID, devices: *extended}, wl, a, set, node)
}

// sawPromise takes in what a pod shows of a birth ticket.
func (c *core) sawPromise(pod *corev1.Pod) {
	t := birthTicket(pod)
	if t == nil || ended(pod) {
		c.lostPromise(pod.UID)
		return
	}
	id := workloadID(pod.Namespace, t.Workload)
	c.unspend(id, pod.UID)
	if old, known := c.promised[pod.UID]; known && old.workload != id {
		c.lostPromise(pod.UID)
	}
	c.promised[pod.UID] = promise{workload: id, price: t.Price}
	if c.promises[id] == nil {
		c.promises[id] = map[types.UID]struct{}{}
	}
	c.promises[id][pod.UID] = struct{}{}
}

func (c *core) lostPromise(pod types.UID) {
	p, known := c.promised[pod]
	if !known {
		return
	}
	delete(c.promised, pod)
	delete(c.promises[p.workload], pod)
	if len(c.promises[p.workload]) == 0 {
		delete(c.promises, p.workload)
	}
}

// redeemed says whether the scheduler has made a claim with a ticket for a pod:
// the claim counts from then on, and not the promise.
func (c *core) redeemed(pod types.UID) bool {
	for _, claim := range c.claimsOf[pod] {
		if claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true" && ticket.Has(claim.Annotations) {
			return true
		}
	}
	return false
}

// BornWith is the ticket of a claim that the scheduler is about to make for the
// extended resources of a pod; nil if none was written for it. The webhook asks
// it in whichever replica it runs, so both the pod and its Workload are read past
// the caches.
func (c *Controller) BornWith(claim *resourceapi.ResourceClaim) (*ticket.Ticket, error) {
	owner := metav1.GetControllerOf(claim)
	if owner == nil || owner.Kind != "Pod" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	pod := &corev1.Pod{}
	if err := c.live.Get(ctx, types.NamespacedName{Namespace: claim.Namespace, Name: owner.Name}, pod); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	t := birthTicket(pod)
	if t == nil || pod.UID != owner.UID || pod.DeletionTimestamp != nil || ended(pod) || HasGate(pod) {
		return nil, nil
	}
	wl := &kueue.Workload{}
	if err := c.live.Get(ctx, types.NamespacedName{Namespace: claim.Namespace, Name: t.Workload}, wl); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if _, run := admitted(wl); !run {
		return nil, nil
	}
	return t, nil
}
