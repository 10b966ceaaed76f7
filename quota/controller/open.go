package controller

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/hami"
	"github.com/sluice-gpu/sluice/quota/jobs"
	"github.com/sluice-gpu/sluice/quota/lifecycle"
	"github.com/sluice-gpu/sluice/quota/pricing"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

// open lets a pod of an admitted workload go to the scheduler: it finds a node,
// writes the tickets of the pod's claims, nominates the node and removes the
// gate, in that order. A pod that came without the gate gets the same, but for
// the last step.
func (r *podReconciler) open(ctx context.Context, pod *corev1.Pod, wl *kueue.Workload, a *kueue.Admission, set string) error {
	given := setOf(a, set)
	if given == nil {
		return nil
	}
	if hami.Asked(&pod.Spec) {
		return &overError{text: errUntranslated.Error()}
	}
	claims, err := r.claimsOf(ctx, pod)
	if err != nil {
		return err
	}
	if !HasGate(pod) && len(claims) == 0 && !r.asksExtended(pod) {
		// Nothing holds it, and it asks for nothing that has to be granted.
		return nil
	}
	if !HasGate(pod) && len(claims) > 0 && !slices.ContainsFunc(claims, func(c *resourceapi.ResourceClaim) bool { return c.Status.Allocation == nil }) {
		// It has what it needs and is about to be bound.
		return nil
	}
	if err := r.surplus(pod, wl, a, set); err != nil {
		return err
	}
	if err := r.affordable(pod, wl, a, set, claims); err != nil {
		if errors.As(err, new(*pricing.Impossible)) {
			r.cardless(wl, a, set)
		}
		return err
	}
	node, err := r.placePod(pod, wl, a, set)
	if errors.As(err, new(*noRoomError)) && r.grows(given) {
		// The gate opens without a place: a pod that the scheduler finds no node for
		// is what makes nodes come.
		r.waitsForRoom(client.ObjectKeyFromObject(pod))
		node, err = "", nil
	}
	if err != nil {
		return err
	}
	for _, claim := range claims {
		if err := r.issue(ctx, claim, wl, a, set, node, pod.UID); err != nil {
			if unpaid(err) {
				r.placeLost(workloadID(wl.Namespace, wl.Name), pod.UID)
			}
			return err
		}
	}
	if node != "" && pod.Status.NominatedNodeName != node && r.nominates(pod, wl, given) {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": pod.UID},
			"status":   map[string]any{"nominatedNodeName": node},
		})
		if err != nil {
			return err
		}
		// The answer is of no use, so it is asked for in short.
		answer := &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		}
		if err := r.client.Status().Patch(ctx, answer, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldOwner)); err != nil {
			return err
		}
		r.wrote(answer)
	}
	birth, err := r.birth(pod, wl, a, set, node)
	if err != nil {
		if unpaid(err) {
			r.placeLost(workloadID(wl.Namespace, wl.Name), pod.UID)
		}
		return err
	}
	if !HasGate(pod) && birth == nil {
		return nil
	}
	err = r.letGo(ctx, pod, wl, given, birth)
	if birth != nil && (err == nil || surely(err)) {
		r.written(workloadID(wl.Namespace, wl.Name), claimRequest{claim: pod.UID})
	}
	return err
}

// unpaid says whether an admission does not pay for what a pod asks for.
func unpaid(err error) bool {
	return errors.As(err, new(*overError)) || errors.As(err, new(*outgrownError))
}

// surely says whether a write that failed is known not to have been done.
func surely(err error) bool {
	return apierrors.ReasonForError(err) != metav1.StatusReasonUnknown && !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) && !apierrors.IsInternalError(err)
}

// affordable asks, before a pod takes a place, whether its admission pays for
// all that it lacks, the claim for its extended resources included, which only
// the scheduler makes.
func (r *podReconciler) affordable(pod *corev1.Pod, wl *kueue.Workload, a *kueue.Admission, set string, claims []*resourceapi.ResourceClaim) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var asks []claimRequest
	for _, claim := range claims {
		// What has its ticket counts among those of the pod.
		if claim.Status.Allocation == nil && !ticket.Has(claim.Annotations) {
			asks = append(asks, claimRequest{claim: claim.UID, slot: pod.UID, devices: claim.Spec.Devices})
		}
	}
	if extended, _ := pricing.ExtendedResources(&pod.Spec, r.fit.Classes()); extended != nil && pod.Status.ExtendedResourceClaimStatus == nil && birthTicket(pod) == nil && !r.born(pod.UID) {
		asks = append(asks, claimRequest{claim: pod.UID, slot: pod.UID, devices: *extended})
	}
	var sum pricing.Price
	for _, ask := range asks {
		price, err := r.afford(wl, a, set, ask, sum)
		if err != nil {
			return err
		}
		sum = sum.Add(price)
	}
	return nil
}

// asksExtended says whether the scheduler makes a claim for a pod.
func (c *core) asksExtended(pod *corev1.Pod) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	extended, _ := pricing.ExtendedResources(&pod.Spec, c.fit.Classes())
	return extended != nil
}

// born says whether the scheduler has made its claim for a pod.
func (c *core) born(pod types.UID) bool {
	for _, claim := range c.claimsOf[pod] {
		if claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true" {
			return true
		}
	}
	return false
}

// letGo removes the gate, adds what the flavors need and what admission checks
// ask for, and notes the ticket of a claim that the scheduler will make, in one
// update. A pod that came without the gate gets the ticket alone: the API server
// lets nothing else be added.
func (r *podReconciler) letGo(ctx context.Context, pod *corev1.Pod, wl *kueue.Workload, given *kueue.PodSetAssignment, birth *ticket.Ticket) error {
	before := gatedPart(pod)
	pod = pod.DeepCopy()
	if birth != nil {
		text, err := encodeBirth(birth)
		if err != nil {
			return err
		}
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, BirthAnnotation, text)
	}
	if HasGate(pod) {
		if err := r.ungate(pod, wl, given); err != nil {
			return err
		}
	}
	ctx, done := whole(ctx)
	defer done()
	// The status patch before has moved the version; what guards this one is
	// the list of gates, which nobody else may change, and the UID: another pod may
	// have the name by now.
	after := gatedPart(pod)
	after.UID = pod.UID
	patch, err := client.MergeFrom(before).Data(after)
	if err != nil {
		return err
	}
	if err := r.client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldOwner)); err != nil {
		return err
	}
	r.wrote(pod)
	r.saw(pod)
	return nil
}

// gatedPart is the part of a pod that opening its gate may change. The rest
// need not be compared.
func gatedPart(pod *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(pod.Labels), Annotations: maps.Clone(pod.Annotations)},
		Spec: corev1.PodSpec{
			SchedulingGates: slices.Clone(pod.Spec.SchedulingGates),
			NodeSelector:    maps.Clone(pod.Spec.NodeSelector),
			Tolerations:     slices.Clone(pod.Spec.Tolerations),
		},
	}
}

// ungate removes the gate from a pod in memory, and puts into it what its
// admission adds.
func (r *podReconciler) ungate(pod *corev1.Pod, wl *kueue.Workload, given *kueue.PodSetAssignment) error {
	labels, tolerations, err := r.flavorPlacement(given)
	if err != nil {
		return err
	}
	r.mu.Lock()
	pod.Spec = *r.withShared(pod.Namespace, &pod.Spec)
	r.mu.Unlock()
	more := lifecycle.Updates(wl, string(given.Name))
	maps.Copy(labels, more.NodeSelector)
	tolerations = append(tolerations, more.Tolerations...)
	for k, v := range more.Labels {
		metav1.SetMetaDataLabel(&pod.ObjectMeta, k, v)
	}
	for k, v := range more.Annotations {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, k, v)
	}
	removeGate(pod)
	if len(labels) > 0 {
		pod.Spec.NodeSelector = maps.Clone(pod.Spec.NodeSelector)
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		maps.Copy(pod.Spec.NodeSelector, labels)
	}
	pod.Spec.Tolerations = jobs.AddTolerations(pod.Spec.Tolerations, tolerations)
	if pod.Labels[GroupLabel] != "" {
		// Its set follows from its spec, which changes here.
		metav1.SetMetaDataLabel(&pod.ObjectMeta, PodSetLabel, string(given.Name))
	}
	return nil
}

// removeGate opens the gate of a pod in memory.
func removeGate(pod *corev1.Pod) {
	pod.Spec.SchedulingGates = slices.DeleteFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == Gate })
}

// claimsOf returns the claims that were made for the pod alone. errWait if some
// are not there yet, or if a claim that it shares has no quota yet.
func (r *podReconciler) claimsOf(ctx context.Context, pod *corev1.Pod) ([]*resourceapi.ResourceClaim, error) {
	var own []*resourceapi.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		name, mustOwn, err := resourceclaim.Name(pod, ref)
		if err != nil {
			return nil, errWait
		}
		if name == nil {
			continue
		}
		claim := &resourceapi.ResourceClaim{}
		if err := r.client.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: *name}, claim, untouched); err != nil {
			return nil, errWait
		}
		if mustOwn {
			if err := resourceclaim.IsForPod(pod, claim, false); err != nil {
				return nil, errWait
			}
			own = append(own, claim)
			continue
		}
		if claim.Status.Allocation == nil && !ticket.Has(claim.Annotations) && r.pays(claim) {
			return nil, errWait
		}
	}
	return own, nil
}

// pays says whether a claim asks for anything that a budget knows.
func (c *core) pays(claim *resourceapi.ResourceClaim) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.costs(&claim.Spec.Devices)
}

// costs says whether a request asks for anything that a budget knows.
func (c *core) costs(devices *resourceapi.DeviceClaim) bool {
	for name := range c.flavors {
		p, err := c.price(name, []resourceapi.DeviceClaim{*devices})
		if err != nil || !p.IsZero() {
			return true
		}
	}
	return false
}

// placePod finds the pod's node. It refuses pods beyond the number admitted: a
// pod that replaces one that is still going has to wait for it.
func (r *podReconciler) placePod(pod *corev1.Pod, wl *kueue.Workload, a *kueue.Admission, set string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := workloadID(wl.Namespace, wl.Name)
	if r.pods[pod.UID] == nil && !r.gone.has(pod.UID) {
		// The caches have shown it here first.
		r.sawPod(pod)
	}
	given := engineSet(r.kept(r.works[id], a), set)
	if given == nil {
		return "", errWait
	}
	if !r.entitled(id, wl, set, pod.UID, given.Count) {
		r.awaits(id, pod.UID)
		return "", errWait
	}
	r.refit(id)
	return r.place(id, set, pod.UID)
}

// entitled says whether a pod is among the first count of its set. Those past
// the gate come first, then the oldest.
func (c *core) entitled(id engine.WorkloadID, wl *kueue.Workload, set string, uid types.UID, count int32) bool {
	me := c.pods[uid]
	if me == nil || !me.belongs(wl) {
		return false
	}
	before := int32(0)
	for _, p := range c.podsOf[id] {
		if p.uid == uid || p.ended || p.set != set || !p.belongs(wl) {
			continue
		}
		switch {
		case p.gated != me.gated:
			if !p.gated {
				before++
			}
		case p.created.Before(me.created), p.created.Equal(me.created) && p.uid < uid:
			before++
		}
	}
	return before < count
}

// issue writes the ticket of one claim, on the version that was seen without an
// allocation. *overError if the admission does not pay for it.
func (s *sources) issue(ctx context.Context, claim *resourceapi.ResourceClaim, wl *kueue.Workload, a *kueue.Admission, set, node string, slot types.UID) error {
	if claim.Status.Allocation != nil {
		return nil
	}
	ask := claimRequest{claim: claim.UID, slot: slot, devices: claim.Spec.Devices}
	t, err := s.ticketFor(ask, wl, a, set, node)
	if err != nil || t == nil {
		return err
	}
	id := workloadID(wl.Namespace, wl.Name)
	if old, err := ticket.Read(claim.Annotations); err == nil && old != nil && old.Equal(*t) {
		s.written(id, ask)
		return nil
	}
	claim = claim.DeepCopy()
	rest, _ := ticket.Strip(claim.Annotations)
	claim.Annotations = maps.Clone(rest)
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	maps.Copy(claim.Annotations, t.Annotations())
	ctx, done := whole(ctx)
	defer done()
	if err := s.client.Update(ctx, claim, client.FieldOwner(FieldOwner)); err != nil {
		if surely(err) {
			// Refused for certain. Otherwise it may have been written, and counts
			// until that is known.
			s.written(id, ask)
		}
		return err
	}
	s.metrics.tickets.Inc()
	if slot != claim.UID {
		s.wrote(claim)
	}
	s.saw(claim)
	s.written(id, ask)
	return nil
}

// written ends the time in which a ticket counts although no claim shows it.
func (c *core) written(id engine.WorkloadID, ask claimRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unspend(id, ask.claim)
}

// ticketFor is the ticket of a claim under an admission; nil for claims that
// cost nothing. From here on it counts as given: call written when the claim
// shows it or it is sure that it was not written.
func (c *core) ticketFor(ask claimRequest, wl *kueue.Workload, a *kueue.Admission, set, node string) (*ticket.Ticket, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	price, err := c.afford(wl, a, set, ask, pricing.Price{})
	if err != nil || price.IsZero() {
		return nil, err
	}
	id := workloadID(wl.Namespace, wl.Name)
	c.spending(id, ask, price)
	return &ticket.Ticket{
		Workload:  wl.Name,
		Price:     price,
		Pools:     c.pools(c.deviceFlavor(setOf(a, set)), node),
		Exclusive: c.fit.Exclusive(id, ask.slot, pricing.DriverName),
	}, nil
}

// flavorPools are the pools of a flavor's nodes, in order.
type flavorPools struct {
	all    []string
	byNode map[string][]string
}

// pools lists the pools that a ticket of a flavor names, those of the nominated
// node first, as many as a ticket holds.
func (c *core) pools(flavor, node string) []string {
	p := c.poolsOf(flavor)
	names := slices.Clone(p.byNode[node])
	for _, name := range p.all {
		if len(names) >= ticket.MaxPools {
			break
		}
		if !slices.Contains(p.byNode[node], name) {
			names = append(names, name)
		}
	}
	return names[:min(len(names), ticket.MaxPools)]
}

// poolsOf are the pools of a flavor, listed once until slices or nodes change.
func (c *core) poolsOf(flavor string) *flavorPools {
	p := c.poolNames[flavor]
	if p == nil {
		p = c.listPools(flavor)
		if c.poolNames == nil {
			c.poolNames = map[string]*flavorPools{}
		}
		c.poolNames[flavor] = p
	}
	return p
}

func (c *core) listPools(flavor string) *flavorPools {
	p := &flavorPools{byNode: map[string][]string{}}
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(c.slices)) {
		s := c.slices[name]
		if s.Spec.Driver != pricing.DriverName || seen[s.Spec.Pool.Name] || s.Spec.NodeName == nil || !c.inFlavor(*s.Spec.NodeName, flavor) {
			continue
		}
		seen[s.Spec.Pool.Name] = true
		p.all = append(p.all, s.Spec.Pool.Name)
		p.byNode[*s.Spec.NodeName] = append(p.byNode[*s.Spec.NodeName], s.Spec.Pool.Name)
	}
	return p
}

// revoke takes back the tickets of a pod's claims that are not allocated. The
// update fails if the claim has been allocated since it was read.
func (r *podReconciler) revoke(ctx context.Context, pod *corev1.Pod) error {
	var claims resourceapi.ResourceClaimList
	if err := r.live.List(ctx, &claims, client.InNamespace(pod.Namespace)); err != nil {
		return err
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if err := resourceclaim.IsForPod(pod, claim, false); err != nil {
			continue
		}
		if err := r.takeBack(ctx, claim); err != nil {
			return err
		}
	}
	return nil
}

// takeBack removes the ticket of a claim that holds no device.
func (s *sources) takeBack(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	if claim.Status.Allocation != nil {
		return nil
	}
	rest, had := ticket.Strip(claim.Annotations)
	if !had {
		return nil
	}
	claim = claim.DeepCopy()
	claim.Annotations = rest
	if err := s.client.Update(ctx, claim, client.FieldOwner(FieldOwner)); err != nil {
		return client.IgnoreNotFound(err)
	}
	s.saw(claim)
	return nil
}
