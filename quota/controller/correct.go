package controller

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
	"github.com/sluice-gpu/sluice/quota/ticket"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// This file makes the charge of a workload what it was really given. Before the
// scheduler has chosen, the dearest that it might choose is charged: of several
// alternatives, of unlike cards in a flavor, of nodes with more or fewer cards.
// Afterwards the same rule applied to the allocation says what it costs, and what
// was charged beyond that is free for others.
//
// It is done for pods and claims that are workloads of their own, and for the pods
// of jobs and groups once no other can come; see lastpods.go. All pods of a set are charged
// as the dearest of them: what a set is charged is the same part for each, and a
// part is given back with each that has done its work.

// correction is what an allocation really costs.
type correction struct {
	// claims are the allocated ones, with the price of each.
	claims []correctedClaim
	// admission has the lower usage, of the sets at these places.
	admission *kueue.Admission
	sets      []int
}

type correctedClaim struct {
	*resourceapi.ResourceClaim
	price pricing.Price
}

// correction says what is to be corrected of a workload; nil for nothing, which
// is also the answer while not all is allocated or a device is not published.
func (c *core) correction(id engine.WorkloadID) *correction {
	w := c.works[id]
	if w == nil || w.object == nil {
		return nil
	}
	a, run := admitted(w.object)
	if !run {
		return nil
	}
	cor := &correction{admission: a}
	for i := range a.PodSetAssignments {
		given := &a.PodSetAssignments[i]
		flavor := c.deviceFlavor(given)
		if flavor == "" {
			continue
		}
		dearest, claims := c.dearestOf(c.podsGranted(w, a, string(given.Name)), flavor)
		if len(claims) == 0 {
			continue
		}
		if usage, less := c.lessUsage(given, dearest); less {
			if cor.admission == a {
				cor.admission = a.DeepCopy()
			}
			cor.admission.PodSetAssignments[i].ResourceUsage = usage
			cor.sets = append(cor.sets, i)
			cor.claims = append(cor.claims, claims...)
		}
	}
	if len(cor.claims) == 0 {
		return nil
	}
	return cor
}

// dearestOf prices the claims of pods as they were allocated, and finds the most
// that one of the pods costs in each dimension. No claims if a price is not known.
func (c *core) dearestOf(pods [][]*resourceapi.ResourceClaim, flavor string) (dearest pricing.Price, claims []correctedClaim) {
	for _, pod := range pods {
		var sum pricing.Price
		for _, claim := range pod {
			price, err := c.tariff(flavor).Allocated(context.Background(), claim.Status.Allocation, c.device)
			if err != nil {
				return pricing.Price{}, nil
			}
			sum = sum.Add(price)
			claims = append(claims, correctedClaim{claim, price})
		}
		dearest = dearest.Max(sum)
	}
	return dearest, claims
}

// lessUsage is what a set is charged if each of its pods costs that much, where
// that is less than it is charged now.
func (c *core) lessUsage(given *kueue.PodSetAssignment, each pricing.Price) (usage corev1.ResourceList, less bool) {
	real, count := c.amountsOf(each), engine.Amount(max(1, ptr.Deref(given.Count, 1)))
	usage = maps.Clone(given.ResourceUsage)
	for name, charged := range usage {
		r := engine.Resource(name)
		one, counted := real[r]
		if !counted || one > engine.Unlimited/count || one*count >= translate.Amount(name, charged) {
			continue
		}
		usage[name] = translate.Quantity(r, one*count)
		less = true
	}
	return usage, less
}

// severalPods says whether a workload is a job or a group: other pods may come.
func severalPods(wl *kueue.Workload) bool {
	owner := metav1.GetControllerOf(wl)
	if owner == nil {
		return wl.Labels[GroupLabel] != ""
	}
	return owner.Kind != "Pod" && owner.Kind != "ResourceClaim"
}

// podsGranted are the claims of each pod of a set, if it is known what all of them
// cost for good.
func (c *core) podsGranted(w *work, a *kueue.Admission, set string) [][]*resourceapi.ResourceClaim {
	if severalPods(w.object) {
		return c.lastPods(w, a, set)
	}
	if claims := c.grantedTo(w); claims != nil && len(a.PodSetAssignments) == 1 && w.object.Spec.PodSets[0].Count == 1 {
		return [][]*resourceapi.ResourceClaim{claims}
	}
	return nil
}

// grantedTo lists the claims that a workload pays for, if it is a pod or a claim
// and all of them are allocated.
func (c *core) grantedTo(w *work) []*resourceapi.ResourceClaim {
	owner := metav1.GetControllerOf(w.object)
	if owner == nil {
		return nil
	}
	var all []*resourceapi.ResourceClaim
	switch owner.Kind {
	case "Pod":
		pod := c.pods[owner.UID]
		if pod == nil || !c.equipped(pod) {
			return nil
		}
		for _, claim := range c.claimsOf[owner.UID] {
			all = append(all, claim)
		}
	case "ResourceClaim":
		claim := c.claims[types.NamespacedName{Namespace: w.object.Namespace, Name: owner.Name}]
		if claim == nil || claim.UID != owner.UID {
			return nil
		}
		all = append(all, claim)
	}
	for _, claim := range all {
		if claim.Status.Allocation == nil {
			return nil
		}
	}
	return all
}

// device finds a published device, nil if it is not there now.
func (c *core) device(pool, name string) *pricing.Device {
	if c.published == nil {
		c.published = map[[2]string]*pricing.Device{}
		all := c.devicesOf()
		for i := range all {
			c.published[[2]string{all[i].Pool, all[i].Device.Name}] = &all[i]
		}
	}
	return c.published[[2]string{pool, name}]
}

// correct lowers what a workload is charged to what it was given. Its tickets go
// first: at no moment does a ticket allow more than is charged, whatever becomes
// of the claim.
func (r *workloads) correct(ctx context.Context, wl *kueue.Workload) error {
	id := workloadID(wl.Namespace, wl.Name)
	r.mu.Lock()
	cor := r.correction(id)
	if cor != nil {
		// From here on no ticket is granted on more, although the API does not show
		// it yet.
		r.works[id].lowered = cor.admission
	}
	r.mu.Unlock()
	if cor == nil {
		return nil
	}
	for _, claim := range cor.claims {
		if err := r.lower(ctx, claim); err != nil {
			return ignoreConflict(client.IgnoreNotFound(err))
		}
	}
	wl = wl.DeepCopy()
	wl.Status.Admission = cor.admission
	message := "Charged for what was allocated: " + describeUsage(translate.Assignment(cor.admission))
	if severalPods(wl) {
		r.mu.Lock()
		r.corrected(wl, cor.sets, message, r.now())
		r.mu.Unlock()
	}
	if err := r.write(ctx, wl); err != nil {
		if apierrors.IsConflict(err) {
			// The version that won brings the Workload here again.
			return nil
		}
		return err
	}
	r.event(wl, corev1.EventTypeNormal, "Corrected", message)
	return nil
}

// lower makes the ticket of an allocated claim no larger than what it holds.
func (r *workloads) lower(ctx context.Context, claim correctedClaim) error {
	t, err := ticket.Read(claim.Annotations)
	if err != nil || t == nil {
		// What cannot be read allows nothing.
		return nil
	}
	least := t.Price.Min(claim.price)
	least.More = pricing.More{}
	if least == t.Price {
		return nil
	}
	t.Price = least
	changed := claim.ResourceClaim.DeepCopy()
	maps.Copy(changed.Annotations, t.Annotations())
	if err := r.client.Update(ctx, changed, client.FieldOwner(FieldOwner)); err != nil {
		return err
	}
	r.saw(changed)
	return nil
}
