package fit

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

// query is what one pod of a set asks for on the flavors that it was given, in
// the form in which nodes are asked.
type query struct {
	workload engine.WorkloadID
	set      *PodSet
	policy   Policy
	// pod is the pod as it will be when its gate opens.
	pod      *corev1.Pod
	affinity nodeaffinity.RequiredNodeAffinity
	needs    corev1.ResourceList
	names    []corev1.ResourceName
	extended []corev1.ResourceName
	// index has the nodes that may do.
	index *index

	// claims still need devices; fixed is the node to which others bind the pod,
	// "" for none. key stands for the claims, "" where an answer to them cannot be
	// remembered.
	claims []*resourceapi.ResourceClaim
	fixed  string
	key    string
	wants  wants
}

// want is what a request asks of each card; -1 is not named.
type want struct{ memory, cores, count int64 }

// oneOf is one request: any one of its wants will do.
type oneOf []want

// wants is all that a pod asks of cards, as far as plain numbers tell.
type wants struct {
	asks []oneOf
	// memory is the largest size that any request is sure to ask of one card, -1
	// if none names a size; sized says whether there is anything to ask of cards
	// at all.
	memory int64
	sized  bool
	// loose says that the index tells nothing: of the alternatives of a request some
	// name a size and others none.
	loose bool
	// many says that the pod gets more than one card.
	many bool
	// blind says that numbers tell nothing: a request tolerates taints, or some
	// node's devices are everybody's.
	blind bool
}

// query prepares the question for the pods of a set. shared is where the claims
// by name have been put that the pods of this trial use together.
func (s *State) query(id engine.WorkloadID, w *workload, set *PodSet, a *engine.PodSetAssignment, shared map[string]string, t *trial) *query {
	q := &query{workload: id, set: set, policy: s.policyOf(w), pod: s.withFlavors(set, a), needs: s.requests(&set.Spec)}
	q.names = slices.Sorted(maps.Keys(q.needs))
	q.affinity = nodeaffinity.GetRequiredNodeAffinity(q.pod)
	q.index = s.indexes[""]
	for _, f := range flavorsOf(a) {
		if ix := s.indexes[f]; ix != nil && len(ix.free) < len(q.index.free) {
			q.index = ix
		}
	}
	var extended *resourceapi.DeviceClaim
	extended, q.extended = s.extendedOf(&set.Spec)
	q.claim(s, extended, shared, t)
	return q
}

// claim lists the claims that still need devices for one pod.
func (q *query) claim(s *State, extended *resourceapi.DeviceClaim, shared map[string]string, t *trial) {
	q.claims, q.fixed = nil, ""
	for i := range q.set.Claims {
		q.claims = append(q.claims, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("claim-%d", i), UID: types.UID(fmt.Sprintf("trial-%d", i))},
			Spec:       q.set.Claims[i],
		})
	}
	for _, c := range q.set.Shared {
		switch {
		case shared[c.Name] != "":
			q.fixed = shared[c.Name]
		case c.Status.Allocation != nil:
			if name := NodeOfAllocation(c.Status.Allocation); name != "" {
				q.fixed = name
			}
		case s.promised(t, c.UID) != "":
			q.fixed = s.promised(t, c.UID)
		default:
			q.claims = append(q.claims, c)
		}
	}
	if extended != nil {
		q.claims = append(q.claims, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "extended", UID: "trial-extended"},
			Spec:       resourceapi.ResourceClaimSpec{Devices: *extended},
		})
	}
	q.wants = wantsOf(q.claims)
	q.wants.blind = q.wants.blind || s.openly(q.wants)
	q.key = signature(q.claims)
}

// openly says whether devices that belong to no single node might serve any of
// this; then the nodes' own say nothing.
func (s *State) openly(w wants) bool {
	if len(s.shared) == 0 {
		return false
	}
	cards := cardsOf(s.shared)
	for _, a := range w.asks {
		for i := range cards {
			c := &cards[i]
			c.open, c.freeMemory, c.freeCores = true, max(0, c.memory), max(0, c.cores)
			if slices.ContainsFunc(a, c.gives) {
				return true
			}
		}
	}
	return false
}

// promised is the node on which a claim has a place already, "" for none.
func (s *State) promised(t *trial, claim types.UID) string {
	for _, sl := range t.slots {
		if sl.has(claim) {
			return sl.node
		}
	}
	for _, w := range s.workloads {
		for _, sl := range w.slots {
			if t.counts(sl) && sl.has(claim) {
				return sl.node
			}
		}
	}
	return ""
}

// NodeOfAllocation is the node to which an allocation is bound, "" for devices that are
// not local to one.
func NodeOfAllocation(a *resourceapi.AllocationResult) string {
	if a.NodeSelector == nil {
		return ""
	}
	for _, term := range a.NodeSelector.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

// withFlavors is the pod as it will be when its gate opens: with the labels of
// its flavors selected and their tolerations.
func (s *State) withFlavors(set *PodSet, a *engine.PodSetAssignment) *corev1.Pod {
	pod := &corev1.Pod{Spec: *set.Spec.DeepCopy()}
	pod.Spec.NodeSelector = maps.Clone(pod.Spec.NodeSelector)
	if pod.Spec.NodeSelector == nil {
		pod.Spec.NodeSelector = map[string]string{}
	}
	for _, name := range flavorsOf(a) {
		f := s.flavors[name]
		for k, v := range f.NodeLabels {
			pod.Spec.NodeSelector[k] = v
		}
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, f.Tolerations...)
	}
	return pod
}

// signature tells claims apart by all that the allocator looks at; "" for none.
func signature(claims []*resourceapi.ResourceClaim) string {
	if len(claims) == 0 {
		return ""
	}
	specs := make([]resourceapi.ResourceClaimSpec, len(claims))
	for i := range claims {
		specs[i] = claims[i].Spec
	}
	b, err := json.Marshal(specs)
	if err != nil {
		return ""
	}
	return string(b)
}

// wantsOf reads from claims what each asks of a card. It never says more than is
// asked.
func wantsOf(claims []*resourceapi.ResourceClaim) wants {
	w := wants{memory: -1}
	cards := int64(0)
	for _, c := range claims {
		for i := range c.Spec.Devices.Requests {
			r := &c.Spec.Devices.Requests[i]
			var a oneOf
			if r.Exactly != nil {
				w.blind = w.blind || len(r.Exactly.Tolerations) > 0
				if r.Exactly.AdminAccess != nil && *r.Exactly.AdminAccess {
					continue
				}
				a = oneOf{wantOf(r.Exactly.AllocationMode, r.Exactly.Count, r.Exactly.Capacity)}
			}
			for j := range r.FirstAvailable {
				sub := &r.FirstAvailable[j]
				w.blind = w.blind || len(sub.Tolerations) > 0
				a = append(a, wantOf(sub.AllocationMode, sub.Count, sub.Capacity))
			}
			if len(a) == 0 {
				continue
			}
			w.sized = true
			w.asks = append(w.asks, a)
			least, count := a[0].memory, a[0].count
			for _, x := range a {
				least, count = min(least, x.memory), max(count, x.count)
			}
			w.memory = max(w.memory, least)
			w.loose = w.loose || least < 0 && slices.ContainsFunc(a, func(x want) bool { return x.memory >= 0 })
			cards += count
		}
	}
	w.many = cards > 1
	// Where another request is sure to ask a size, the index tells by that.
	w.loose = w.loose && w.memory < 0
	return w
}

func wantOf(mode resourceapi.DeviceAllocationMode, count int64, capacity *resourceapi.CapacityRequirements) want {
	x := want{memory: -1, cores: -1, count: max(1, count)}
	if mode == resourceapi.DeviceAllocationModeAll {
		// However many match: one at least.
		x.count = 1
	}
	if capacity != nil {
		if m, ok := capacity.Requests[pricing.CapacityMemory]; ok {
			x.memory = max(0, m.Value())
		}
		if c, ok := capacity.Requests[pricing.CapacityCores]; ok {
			x.cores = max(0, c.Value())
		}
	}
	return x
}

// gives says whether a card may have what a request asks.
func (c *card) gives(x want) bool {
	if !c.open {
		return false
	}
	if !c.shareable {
		return x.memory <= c.memory && x.cores <= c.cores
	}
	if x.memory < 0 {
		x.memory = c.usualMemory
	} else if c.memory < 0 {
		return false
	}
	if x.cores < 0 {
		x.cores = c.usualCores
	} else if c.cores < 0 {
		return false
	}
	return x.memory <= c.freeMemory && x.cores <= c.freeCores
}

// spare says that a card may have what a request asks that names no size, cores aside.
func (c *card) spare() bool {
	return c.open && (!c.shareable || c.usualMemory <= c.freeMemory)
}

// mayHold says whether a node may have what a pod asks of its cards.
func (v *view) mayHold(w wants) bool {
	if w.blind {
		return true
	}
	for _, a := range w.asks {
		if !slices.ContainsFunc(a, func(x want) bool { return v.enough(x) }) {
			return false
		}
	}
	return true
}

func (v *view) enough(x want) bool {
	n := int64(0)
	for i := range v.cards {
		if v.cards[i].tainted || !v.cards[i].gives(x) {
			continue
		}
		if n++; n >= x.count {
			return true
		}
	}
	return false
}

// sizesOf are the memory sizes that a pod of a set asks for.
func sizesOf(set *PodSet) []int64 {
	var all []int64
	for i := range set.Claims {
		for _, a := range wantsOf([]*resourceapi.ResourceClaim{{Spec: set.Claims[i]}}).asks {
			for _, x := range a {
				if x.memory > 0 {
					all = append(all, x.memory)
				}
			}
		}
	}
	return all
}
