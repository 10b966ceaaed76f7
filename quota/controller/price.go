package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/fit"
	"github.com/sluice-gpu/sluice/quota/lifecycle"
	"github.com/sluice-gpu/sluice/quota/pricing"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// priced is a price on one flavor, or why there is none.
type priced struct {
	price pricing.Price
	err   error
}

// tellEngine prices a workload and tells the engine and fit of it.
func (c *core) tellEngine(w *work) {
	wl := w.object
	if wl == nil {
		return
	}
	if conditionTrue(wl, kueue.WorkloadFinished) {
		// It is forgotten when its finalizer is off.
		return
	}
	ask := engine.Workload{
		ID:         w.id,
		LocalQueue: engine.LocalQueueName{Namespace: wl.Namespace, Name: string(wl.Spec.QueueName)},
		Priority:   ptr.Deref(wl.Spec.Priority, 0),
		QueuedAt:   lifecycle.QueuedAt(wl, c.rules),
		NotBefore:  lifecycle.NotBefore(wl),
		Inactive:   !ptr.Deref(wl.Spec.Active, true),
	}
	switch gates := wl.Annotations[gatedBy]; {
	case wl.DeletionTimestamp != nil:
		ask.Hold = "it is being deleted"
	case gates != "":
		ask.Hold = "annotation " + gatedBy + " names " + gates
	}
	ask.PreemptionGated = translate.PreemptionGated(wl)
	ask.Refused = translate.Unsupported(wl)
	if w.asked == nil || wl.Status.Admission == nil && w.admit == nil {
		c.remember(w, wl)
	}
	var places []fit.PodSet
	for i := range wl.Spec.PodSets {
		set := &wl.Spec.PodSets[i]
		needs, place, err := c.podSet(wl, set)
		if err != nil {
			ask.Refused = err.Error()
			needs = engine.PodSet{Name: string(set.Name), Count: set.Count}
		}
		ask.PodSets = append(ask.PodSets, needs)
		places = append(places, place)
	}
	ask.RoomKey, ask.RoomSince = roomKey(places), roomSince(wl)
	c.fit.SetWorkload(w.id, places, c.placementOf(wl))
	c.engine.Apply(engine.WorkloadChanged{Workload: ask})
	w.told, w.generation = true, wl.Generation
}

// podSet is what one set asks for, of the budget and of nodes.
func (c *core) podSet(wl *kueue.Workload, set *kueue.PodSet) (engine.PodSet, fit.PodSet, error) {
	asks, err := c.asks(wl, &set.Template)
	spec := asks.spec
	if more := lifecycle.Updates(wl, string(set.Name)); len(more.NodeSelector)+len(more.Tolerations) > 0 {
		changed := lifecycle.With(*spec, more)
		spec = &changed
	}
	to := engine.PodSet{Name: string(set.Name), Count: set.Count, MinCount: ptr.Deref(set.MinCount, 0), Requests: engine.Amounts{}}
	place := fit.PodSet{Name: string(set.Name), Spec: *c.withShared(wl.Namespace, spec), Claims: asks.made}
	if err != nil {
		return to, place, err
	}
	own := asks.devices()
	for _, ref := range spec.ResourceClaims {
		if ref.ResourceClaimName == nil {
			continue
		}
		claim := c.claims[types.NamespacedName{Namespace: wl.Namespace, Name: *ref.ResourceClaimName}]
		if claim == nil {
			return to, place, fmt.Errorf("ResourceClaim %q does not exist in namespace %s", *ref.ResourceClaimName, wl.Namespace)
		}
		// A claim by name is a workload of its own, charged once for all pods.
		mine := claimWorkload(claim) == workloadID(wl.Namespace, wl.Name)
		if mine {
			own = append(own, claim.Spec.Devices)
		}
		if mine || !c.placedLater(claim) {
			place.Shared = append(place.Shared, claim)
		}
	}
	if spec.NodeName != "" && len(own) > 0 {
		return to, place, fmt.Errorf("the pod template names node %s, so the scheduler, which allocates devices, would not see its pods: leave out spec.nodeName", spec.NodeName)
	}
	for name, q := range podRequests(spec) {
		if !slices.Contains(asks.names, name) {
			to.Requests[engine.Resource(name)] = translate.Amount(name, q)
		}
	}

	to.Unfit = map[engine.FlavorName]string{}
	to.ByFlavor = map[engine.FlavorName]engine.Amounts{}
	var dearest pricing.Price
	_, err = c.price("", own)
	ours := err != nil
	for _, name := range slices.Sorted(maps.Keys(c.flavors)) {
		if why := misfit(c.flavors[name], spec); why != "" {
			to.Unfit[engine.FlavorName(name)] = why
			continue
		}
		p, err := c.price(name, own)
		if err != nil {
			var impossible *pricing.Impossible
			if !errors.As(err, &impossible) {
				return to, place, err
			}
			to.Unfit[engine.FlavorName(name)] = fmt.Sprintf("request %q: %s", impossible.Request, impossible.Detail)
			ours = true
			continue
		}
		dearest = dearest.Max(p)
		if !p.IsZero() {
			to.ByFlavor[engine.FlavorName(name)] = c.amountsOf(p)
		}
	}
	if dearest.IsZero() && ours {
		// No flavor can serve it: it must not pass for a pod without devices.
		dearest.Devices = 1
	}
	if !dearest.IsZero() {
		maps.Copy(to.Requests, c.amountsOf(dearest))
	}
	return to, place, nil
}

// amountsOf is a price in every dimension. Amounts of nothing are listed too:
// whoever takes no cores still needs the flavor that the cores are of.
func (c *core) amountsOf(p pricing.Price) engine.Amounts {
	all := amounts(p)
	for i, name := range c.dimensions.Names() {
		all[engine.Resource(name)] = engine.Amount(p.More[i])
	}
	return all
}

// amounts is a price in the dimensions that tickets hold.
func amounts(p pricing.Price) engine.Amounts {
	return engine.Amounts{
		pricing.ResourceDevices: engine.Amount(p.Devices),
		pricing.ResourceMemory:  engine.Amount(p.Memory),
		pricing.ResourceCores:   engine.Amount(p.Cores),
	}
}

// price is the sum of several claims on one flavor.
func (c *core) price(flavor string, claims []resourceapi.DeviceClaim) (pricing.Price, error) {
	var total pricing.Price
	for i := range claims {
		key, err := json.Marshal(&claims[i])
		if err != nil {
			return total, err
		}
		at := flavor + "\x00" + string(key)
		got, ok := c.prices[at]
		if !ok {
			got.price, got.err = c.fleet(flavor).Claim(context.Background(), &claims[i])
			c.prices[at] = got
		}
		if got.err != nil {
			return total, got.err
		}
		total = total.Add(got.price)
	}
	return total, nil
}

// fleet is the devices of a flavor; of the flavor "", which selects no node, it
// is empty and tells only whether a request is the driver's at all.
func (c *core) fleet(flavor string) *pricing.Fleet {
	if f := c.fleets[flavor]; f != nil {
		return f
	}
	if c.fleets == nil {
		c.fleets = map[string]*pricing.Fleet{}
	}
	tariff := pricing.WithTariff(c.tariff(flavor))
	f := pricing.NewFleet(flavor, c.fit.Classes(), c.devicesOf(), func(node string) bool { return c.inFlavor(node, flavor) }, tariff)
	if card, ok := expected(c.flavors[flavor]); ok && f.Empty() {
		f = pricing.NewFleet(flavor, c.fit.Classes(), []pricing.Device{card}, nil, tariff)
	}
	c.fleets[flavor] = f
	return f
}

// tariff is how devices are priced in a flavor.
func (c *core) tariff(flavor string) pricing.Tariff {
	t := pricing.Tariff{Dimensions: c.dimensions, Flavor: flavor}
	if f := c.flavors[flavor]; f != nil {
		t.NodeLabels = f.Spec.NodeLabels
	}
	return t
}

// inFlavor says whether a node is one of a flavor's.
func (c *core) inFlavor(node, flavor string) bool {
	f, n := c.flavors[flavor], c.nodes[node]
	if f == nil || n == nil {
		return false
	}
	for k, v := range f.Spec.NodeLabels {
		if n.Labels[k] != v {
			return false
		}
	}
	return true
}

// podRequests are a template's requests, with limits where no request is given,
// as the API server sets them on pods.
func podRequests(spec *corev1.PodSpec) corev1.ResourceList {
	spec = spec.DeepCopy()
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			r := &list[i].Resources
			for name, q := range r.Limits {
				if _, ok := r.Requests[name]; !ok {
					if r.Requests == nil {
						r.Requests = corev1.ResourceList{}
					}
					r.Requests[name] = q
				}
			}
		}
	}
	all := resourcehelper.PodRequests(&corev1.Pod{Spec: *spec}, resourcehelper.PodResourcesOptions{})
	maps.DeleteFunc(all, func(_ corev1.ResourceName, q resource.Quantity) bool { return q.IsZero() })
	return all
}

// misfit says why the pods cannot run on a flavor by what its object says; ""
// if they can. As in Kueue, a selector counts only on the labels that the flavor
// names, and a taint of the flavor must be tolerated by the pod or by the
// flavor itself.
func misfit(f *kueue.ResourceFlavor, spec *corev1.PodSpec) string {
	tolerations := append(slices.Clone(spec.Tolerations), f.Spec.Tolerations...)
	taint, found := schedulinghelper.FindMatchingUntoleratedTaint(klog.Background(), f.Spec.NodeTaints, tolerations, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}, false)
	if found {
		return "taint " + taint.ToString() + " is not tolerated"
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{}}}
	for k, v := range spec.NodeSelector {
		if _, named := f.Spec.NodeLabels[k]; named {
			pod.Spec.NodeSelector[k] = v
		}
	}
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		required := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.DeepCopy()
		var terms []corev1.NodeSelectorTerm
		for _, t := range required.NodeSelectorTerms {
			t.MatchFields = nil
			t.MatchExpressions = slices.DeleteFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
				_, named := f.Spec.NodeLabels[r.Key]
				return !named
			})
			if len(t.MatchExpressions) == 0 {
				// Nothing in this term speaks against the flavor.
				terms = nil
				break
			}
			terms = append(terms, t)
		}
		if len(terms) > 0 {
			required.NodeSelectorTerms = terms
			pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
		}
	}
	node := &corev1.Node{}
	node.Labels = f.Spec.NodeLabels
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !ok {
		return "its node labels are not those that the pod selects"
	}
	return ""
}
