package controller

import (
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/quota/ticket"
)

// BornWith is the ticket of a claim that the scheduler is about to make for the
// extended resources of a pod, nil if the pod is not admitted, an error if its
// admission does not pay for the claim. The webhook asks
// it in whichever replica it runs: the answer follows from what the API shows.
func (c *Controller) BornWith(claim *resourceapi.ResourceClaim) (*ticket.Ticket, error) {
	owner := metav1.GetControllerOf(claim)
	if owner == nil || owner.Kind != "Pod" {
		return nil, nil
	}
	core := c.core
	core.mu.Lock()
	pod := core.pods[owner.UID]
	if pod == nil || pod.workload == "" || pod.gated || pod.ended {
		core.mu.Unlock()
		return nil, nil
	}
	w := core.works[pod.workload]
	if w == nil || w.object == nil {
		core.mu.Unlock()
		return nil, nil
	}
	wl := w.object
	a, run := admitted(wl)
	if !run {
		core.mu.Unlock()
		return nil, nil
	}
	given := engineSet(a, pod.set)
	entitled := given != nil && core.entitled(pod.workload, wl, pod.set, pod.uid, given.Count)
	node := core.fit.NodeOf(pod.workload, pod.uid)
	core.mu.Unlock()
	if !entitled {
		return nil, nil
	}
	// The claim has no UID yet, and whether it is made in the end is not told
	// here: the ticket counts under its pod until the claim is seen.
	return core.ticketFor(claimRequest{claim: pod.uid, slot: pod.uid, devices: claim.Spec.Devices}, wl, a, pod.set, node)
}
