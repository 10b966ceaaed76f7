package controller

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
	"github.com/sluice-gpu/sluice/quota/ticket"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// This file holds the one rule that every ticket obeys, whatever claims, pods
// and templates look like by the time it is written: all tickets of a Workload
// together stay within its admission, and those of one pod within a pod's part
// of it. Claims say what is asked, labels and owners who asks; tenants write
// both. Neither can make the sum larger.

// spend is a ticket that is being written and that no cache shows yet.
type spend struct {
	slot  types.UID
	price pricing.Price
	until time.Time
}

// unseen is how long a ticket counts of which it is not known whether it was
// written: no API server works longer on one request.
const unseen = time.Minute

// overError is a ticket that the admission does not pay for.
type overError struct {
	// passing says that it is others' tickets which are in the way: they end.
	passing bool
	text    string
}

func (e *overError) Error() string { return e.text }

// claimRequest is a ticket that is wanted.
type claimRequest struct {
	// claim is the claim's UID; the pod's for a claim that has none yet.
	claim types.UID
	// slot is the pod, or the claim that is its own workload.
	slot    types.UID
	devices resourceapi.DeviceClaim
}

// deviceFlavor is the flavor that a pod set was given for its devices, "" if
// nothing was charged for devices.
func (c *core) deviceFlavor(given *kueue.PodSetAssignment) string {
	for _, r := range devices {
		if f := given.Flavors[corev1.ResourceName(r)]; f != "" {
			return string(f)
		}
	}
	for _, r := range c.dimensions.Names() {
		if f := given.Flavors[corev1.ResourceName(r)]; f != "" {
			return string(f)
		}
	}
	return ""
}

// afford prices a claim and says whether the admission pays for it, on top of
// all other tickets of the Workload. also is what the same pod asks for besides
// and has no ticket for yet. The zero price needs no ticket.
func (c *core) afford(wl *kueue.Workload, a *kueue.Admission, set string, ask claimRequest, also pricing.Price) (pricing.Price, error) {
	if !c.synced || c.halted != "" {
		// Tickets that are not known yet would not be counted.
		return pricing.Price{}, errWait
	}
	a = c.kept(c.works[workloadID(wl.Namespace, wl.Name)], a)
	given := setOf(a, set)
	flavor := c.deviceFlavor(given)
	if flavor == "" {
		// Nothing was charged for devices, so none are given.
		return pricing.Price{}, nil
	}
	price, err := c.price(flavor, []resourceapi.DeviceClaim{ask.devices})
	if err != nil || price.IsZero() {
		return pricing.Price{}, err
	}
	others, mine := c.spent(workloadID(wl.Namespace, wl.Name), ask)
	others, mine = others.Add(also), mine.Add(also)

	// What the same request costs now: cards may have come and gone since.
	requested, known := c.requested(wl, set, flavor)
	own := amounts(mine.Add(price))
	for _, r := range devices {
		part, bounded := share(given, r)
		switch {
		case bounded && own[r] > part && known && amounts(requested)[r] >= own[r] && correctedFor(wl, set):
			return price, &outgrownError{fmt.Sprintf(
				"Workload %s is charged for what its pods were given, %s %s for each pod of set %q, and another pod has come, which may be given %s",
				wl.Name, engine.FormatAmount(r, part), r, set, engine.FormatAmount(r, own[r]))}
		case bounded && own[r] > part && known && amounts(requested)[r] >= own[r]:
			// The request is the admitted one, the cards are larger ones: it may
			// still have those that it was admitted for.
			clip(&price, r, max(0, part-amounts(mine)[r]))
		case bounded && own[r] > part:
			return price, over(wl, set, r, part, own[r])
		case !bounded && known && own[r] > amounts(requested)[r]:
			return price, over(wl, set, r, amounts(requested)[r], own[r])
		}
	}
	all := amounts(others.Add(price))
	for _, r := range devices {
		if total, bounded := c.total(a, r); bounded && all[r] > total {
			c.awaits(workloadID(wl.Namespace, wl.Name), ask.slot)
			return price, &overError{passing: true, text: fmt.Sprintf(
				"Workload %s was admitted with %s %s in all, and with this pod its tickets would be for %s: it waits until claims of its other pods are released",
				wl.Name, engine.FormatAmount(r, total), r, engine.FormatAmount(r, all[r]))}
		}
	}
	return price, nil
}

// complete adds to an admission what its pods ask for of devices that their
// queue has no quota for. It is charged to nobody, and bounds their tickets, so
// that whatever becomes of claim templates, and whoever leads, knows what was
// admitted.
func (c *core) complete(wl *kueue.Workload, a *kueue.Admission) {
	for i := range a.PodSetAssignments {
		given := &a.PodSetAssignments[i]
		flavor := c.deviceFlavor(given)
		if flavor == "" {
			continue
		}
		price, known := c.requested(wl, string(given.Name), flavor)
		if !known || price.IsZero() {
			continue
		}
		for _, r := range devices {
			name := corev1.ResourceName(r)
			if _, listed := given.ResourceUsage[name]; listed {
				continue
			}
			n := engine.Unlimited
			if one, count := amounts(price)[r], engine.Amount(ptr.Deref(given.Count, 0)); one == 0 || count <= engine.Unlimited/one {
				n = one * count
			}
			given.ResourceUsage[name] = translate.Quantity(r, n)
		}
	}
}

func over(wl *kueue.Workload, set string, r engine.Resource, granted, asked engine.Amount) error {
	return &overError{text: fmt.Sprintf(
		"Workload %s was admitted with %s %s for each pod of set %q, and this pod's claims ask for %s: what it asks for has changed since; delete the job or pod and make it again",
		wl.Name, engine.FormatAmount(r, granted), r, set, engine.FormatAmount(r, asked))}
}

// share is one pod's part of what its set was given of a resource.
func share(given *kueue.PodSetAssignment, r engine.Resource) (engine.Amount, bool) {
	q, listed := given.ResourceUsage[corev1.ResourceName(r)]
	if !listed {
		return 0, false
	}
	return translate.Amount(corev1.ResourceName(r), q) / engine.Amount(max(1, ptr.Deref(given.Count, 0))), true
}

// total is what all sets were given of a resource.
func (c *core) total(a *kueue.Admission, r engine.Resource) (engine.Amount, bool) {
	sum, bounded := engine.Amount(0), false
	for i := range a.PodSetAssignments {
		given := &a.PodSetAssignments[i]
		q, listed := given.ResourceUsage[corev1.ResourceName(r)]
		if !listed {
			if c.deviceFlavor(given) != "" {
				return 0, false
			}
			continue
		}
		bounded = true
		n := translate.Amount(corev1.ResourceName(r), q)
		if sum > engine.Unlimited-n {
			return engine.Unlimited, true
		}
		sum += n
	}
	return sum, bounded
}

func clip(p *pricing.Price, r engine.Resource, most engine.Amount) {
	switch r {
	case pricing.ResourceMemory:
		p.Memory = min(p.Memory, int64(most))
	case pricing.ResourceCores:
		p.Cores = min(p.Cores, int64(most))
	case pricing.ResourceDevices:
		p.Devices = min(p.Devices, int64(most))
	}
}

// spent sums the other tickets of a Workload, those that are being written and
// those that pods wait to be born with included, and those of the same pod among
// them.
func (c *core) spent(id engine.WorkloadID, ask claimRequest) (all, mine pricing.Price) {
	for uid, name := range c.charges[id] {
		claim := c.claims[name]
		if uid == ask.claim || claim == nil || claim.UID != uid {
			continue
		}
		price, ok := ticket.Charge(claim.Annotations)
		if !ok {
			// The API server allows nothing on such a ticket.
			continue
		}
		all = all.Add(price)
		if owner := metav1.GetControllerOf(claim); uid == ask.slot || owner != nil && owner.UID == ask.slot {
			mine = mine.Add(price)
		}
	}
	for pod := range c.promises[id] {
		if pod == ask.claim || c.redeemed(pod) {
			continue
		}
		all = all.Add(c.promised[pod].price)
		if pod == ask.slot {
			mine = mine.Add(c.promised[pod].price)
		}
	}
	for key, s := range c.writing[id] {
		if c.now().After(s.until) {
			c.unspend(id, key)
			continue
		}
		if key == ask.claim {
			continue
		}
		all = all.Add(s.price)
		if s.slot == ask.slot {
			mine = mine.Add(s.price)
		}
	}
	return all, mine
}

// spending counts a ticket from before it is written.
func (c *core) spending(id engine.WorkloadID, ask claimRequest, price pricing.Price) {
	if c.writing[id] == nil {
		c.writing[id] = map[types.UID]spend{}
	}
	c.writing[id][ask.claim] = spend{slot: ask.slot, price: price, until: c.now().Add(unseen)}
}

// landed ends the time of a ticket that a claim shows now.
func (c *core) landed(id engine.WorkloadID, claim *resourceapi.ResourceClaim) {
	c.unspend(id, claim.UID)
	if owner := metav1.GetControllerOf(claim); owner != nil && claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true" {
		c.unspend(id, owner.UID)
	}
}

func (c *core) unspend(id engine.WorkloadID, key types.UID) {
	delete(c.writing[id], key)
	if len(c.writing[id]) == 0 {
		delete(c.writing, id)
	}
}

// requested is what a pod of a set asks for by the request that was admitted,
// at today's devices. The request is that of the Workload, with the claim
// templates as they were when it was last priced before its admission; after a
// restart, as they were found then.
func (c *core) requested(wl *kueue.Workload, set, flavor string) (pricing.Price, bool) {
	w := c.works[workloadID(wl.Namespace, wl.Name)]
	if w == nil {
		return pricing.Price{}, false
	}
	if w.asked == nil {
		c.remember(w, wl)
	}
	claims, known := w.asked[set]
	if !known {
		return pricing.Price{}, false
	}
	p, err := c.price(flavor, claims)
	return p, err == nil
}

// remember keeps what a workload asks for while it may still change.
func (c *core) remember(w *work, wl *kueue.Workload) {
	w.asked = map[string][]resourceapi.DeviceClaim{}
	for i := range wl.Spec.PodSets {
		set := &wl.Spec.PodSets[i]
		if claims, ok := c.claimsAsked(wl, &set.Template); ok {
			w.asked[string(set.Name)] = claims
		}
	}
}

// claimsAsked lists what the claims of one pod will ask for. false if that
// cannot be told now, or if the pod uses only claims by name, which are workloads
// of their own.
func (c *core) claimsAsked(wl *kueue.Workload, template *corev1.PodTemplateSpec) ([]resourceapi.DeviceClaim, bool) {
	a, err := c.asks(wl, template)
	if err != nil {
		return nil, false
	}
	all := a.devices()
	return all, len(all) > 0 || len(a.spec.ResourceClaims) == 0
}

// outgrown says why a job must not start on its admission: its pods would ask
// for more than was admitted. "" if they do not.
func (c *core) outgrown(wl *kueue.Workload, a *kueue.Admission, set string, count int32, template *corev1.PodTemplateSpec) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	given := setOf(a, set)
	if given == nil {
		return ""
	}
	for i := range wl.Spec.PodSets {
		if s := &wl.Spec.PodSets[i]; string(s.Name) == set && count > s.Count {
			return fmt.Sprintf("%d pods are asked for, %d were admitted", count, s.Count)
		}
	}
	claims, known := c.claimsAsked(wl, template)
	flavor := c.deviceFlavor(given)
	if !known {
		return ""
	}
	if flavor == "" {
		if p, err := c.price("", claims); err != nil || !p.IsZero() {
			return "its pods ask for devices, and none were admitted"
		}
		return ""
	}
	price, err := c.price(flavor, claims)
	if err != nil {
		// No devices of that kind at the moment; tickets are checked one by one.
		return ""
	}
	requested, was := c.requested(wl, set, flavor)
	var more []string
	for _, r := range devices {
		part, bounded := share(given, r)
		now := amounts(price)[r]
		if was && now <= amounts(requested)[r] || bounded && now <= part || !bounded && !was {
			continue
		}
		if !bounded {
			part = amounts(requested)[r]
		}
		more = append(more, fmt.Sprintf("%s %s are asked for, %s were admitted", engine.FormatAmount(r, now), r, engine.FormatAmount(r, part)))
	}
	if len(more) == 0 {
		return ""
	}
	return "for each pod " + strings.Join(more, ", ")
}
