package controller

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/fit"
	"github.com/sluice-gpu/sluice/quota/jobs"
)

// A claim by name is a workload of its own: it is charged, and it has a flavor.
// Pods that use it are charged nothing for it and so are given no flavor for
// devices; but they have to run where the claim's devices are, and to tolerate
// what keeps others off those nodes.

// sharedFlavors are the flavors of the claims by name that a pod uses.
func (c *core) sharedFlavors(namespace string, spec *corev1.PodSpec) []*kueue.ResourceFlavor {
	var all []*kueue.ResourceFlavor
	for _, ref := range spec.ResourceClaims {
		if ref.ResourceClaimName == nil {
			continue
		}
		claim := c.claims[types.NamespacedName{Namespace: namespace, Name: *ref.ResourceClaimName}]
		if claim == nil {
			continue
		}
		w := c.works[claimWorkload(claim)]
		if w == nil || w.object == nil {
			continue
		}
		a, run := admitted(w.object)
		if !run || len(a.PodSetAssignments) == 0 {
			continue
		}
		if f := c.flavors[c.deviceFlavor(&a.PodSetAssignments[0])]; f != nil {
			all = append(all, f)
		}
	}
	return all
}

// withShared is a pod's spec with what the flavors of its claims by name ask
// for. The argument is not changed.
func (c *core) withShared(namespace string, spec *corev1.PodSpec) *corev1.PodSpec {
	flavors := c.sharedFlavors(namespace, spec)
	if len(flavors) == 0 {
		return spec
	}
	spec = spec.DeepCopy()
	for _, f := range flavors {
		if len(f.Spec.NodeLabels) > 0 && spec.NodeSelector == nil {
			spec.NodeSelector = map[string]string{}
		}
		maps.Copy(spec.NodeSelector, f.Spec.NodeLabels)
		spec.Tolerations = jobs.AddTolerations(spec.Tolerations, f.Spec.Tolerations)
	}
	return spec
}

// placedLater says whether a claim by name gets its place when it is admitted, which
// it is not yet: only then its flavor is known. A pod that has room before takes none
// for the claim, where its flavor may not have any. The pod's gate stays closed until
// the claim has its ticket, and then the pod goes where the claim is.
func (c *core) placedLater(claim *resourceapi.ResourceClaim) bool {
	id := claimWorkload(claim)
	if id == "" || claim.Status.Allocation != nil || !c.costs(&claim.Spec.Devices) {
		return false
	}
	if w := c.works[id]; w != nil && w.object != nil {
		_, run := admitted(w.object)
		return !run
	}
	return true
}

// refit tells fit of a workload that uses claims by name what its pods need by
// now: the claims may have got their flavor and their devices since.
func (c *core) refit(id engine.WorkloadID) {
	w := c.works[id]
	if w == nil || w.object == nil || !namesClaims(w.object, "") {
		return
	}
	var places []fit.PodSet
	for i := range w.object.Spec.PodSets {
		_, place, err := c.podSet(w.object, &w.object.Spec.PodSets[i])
		if err != nil {
			return
		}
		places = append(places, place)
	}
	c.fit.SetWorkload(id, places, c.placementOf(w.object))
}

// namesClaims says whether a workload's pods use a claim by name, or any if the
// name is empty.
func namesClaims(wl *kueue.Workload, name string) bool {
	for i := range wl.Spec.PodSets {
		for _, ref := range wl.Spec.PodSets[i].Template.Spec.ResourceClaims {
			if ref.ResourceClaimName != nil && (name == "" || *ref.ResourceClaimName == name) {
				return true
			}
		}
	}
	return false
}

// sharedAdmitted looks at those again that wait for room and use a claim whose
// admission has changed.
func (c *core) sharedAdmitted(before, now *kueue.Workload) {
	owner := metav1.GetControllerOf(now)
	if owner == nil || owner.Kind != "ResourceClaim" || before != nil && equality.Semantic.DeepEqual(before.Status.Admission, now.Status.Admission) {
		return
	}
	for id, w := range c.works {
		if w.object != nil && w.object != now && w.object.Namespace == now.Namespace && w.object.Status.Admission == nil && namesClaims(w.object, owner.Name) {
			c.dirty[id] = struct{}{}
			c.room = true
		}
	}
}
