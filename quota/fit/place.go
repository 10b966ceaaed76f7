package fit

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

// slot is the place of one pod: promised until its claims are seen allocated.
type slot struct {
	workload engine.WorkloadID
	set      string
	node     string
	// pod is the pod that the slot was given to, "" while none has.
	pod      types.UID
	requests corev1.ResourceList
	// results are what the allocator gave for the trial, one for each claim.
	results []resourceapi.AllocationResult
	// claims are what those results answer.
	claims []*resourceapi.ResourceClaim
}

// trial is one look at the state: who is left out of account and which slots
// count as taken.
type trial struct {
	without map[engine.WorkloadID]bool
	slots   []*slot
}

// look starts a trial in which the slots of the workloads in without do not
// count.
func (s *State) look(without ...engine.WorkloadID) *trial {
	t := &trial{without: map[engine.WorkloadID]bool{}}
	for _, id := range without {
		t.without[id] = true
	}
	for id, w := range s.workloads {
		if !t.without[id] {
			t.slots = append(t.slots, w.slots...)
		}
	}
	// The order decides nothing, but keeps results reproducible.
	slices.SortStableFunc(t.slots, func(a, b *slot) int {
		return cmp.Or(cmp.Compare(a.workload, b.workload), cmp.Compare(a.set, b.set), cmp.Compare(a.node, b.node))
	})
	return t
}

// Place implements the engine's Fit.
func (s *State) Place(w *engine.Workload, flavors engine.Assignment, without []engine.WorkloadID) (engine.Placement, *engine.NoRoom) {
	known := s.workloads[w.ID]
	if known == nil {
		return engine.Placement{}, &engine.NoRoom{Reason: "what its pods need is not known yet"}
	}
	t := s.look(without...)
	// What the workload itself was promised does not count against it.
	t.slots = slices.DeleteFunc(t.slots, func(sl *slot) bool { return sl.workload == w.ID })
	var placed []*slot
	for i := range flavors.PodSets {
		a := &flavors.PodSets[i]
		set := known.set(a.Name)
		if set == nil {
			return engine.Placement{}, &engine.NoRoom{Reason: fmt.Sprintf("what the pods of set %q need is not known yet", a.Name)}
		}
		shared := map[string]string{}
		for range a.Count {
			sl, why := s.placeOne(w.ID, set, a, t, shared)
			if why != nil {
				if total := podsOf(&flavors); total > 1 {
					why.Reason = fmt.Sprintf("%d of %d pods have room; %s", len(placed), total, why.Reason)
				}
				return engine.Placement{}, why
			}
			t.slots = append(t.slots, sl)
			placed = append(placed, sl)
		}
	}
	p := engine.Placement{Detail: placed}
	index := map[string]int32{}
	for _, sl := range placed {
		p.Pods = append(p.Pods, engine.PlacedPod{PodSet: sl.set, Index: index[sl.set], Node: sl.node})
		index[sl.set]++
	}
	return p, nil
}

func podsOf(a *engine.Assignment) int32 {
	var n int32
	for i := range a.PodSets {
		n += a.PodSets[i].Count
	}
	return n
}

func (w *workload) set(name string) *PodSet {
	for i := range w.sets {
		if w.sets[i].Name == name {
			return &w.sets[i]
		}
	}
	return nil
}

// placeOne finds a node for one more pod. shared remembers where the claims by
// name were put that the pods of this trial use together.
func (s *State) placeOne(id engine.WorkloadID, set *PodSet, a *engine.PodSetAssignment, t *trial, shared map[string]string) (*slot, *engine.NoRoom) {
	pod := s.withFlavors(set, a)
	needs := s.requests(&set.Spec)
	claims, fixed, err := s.claimsOf(set, shared, t)
	if err != nil {
		return nil, &engine.NoRoom{Reason: err.Error(), Never: true}
	}
	why := refusals{}
	var accepted []*node
	hard := 0
	for _, n := range s.candidates(t) {
		if fixed != "" && n.name != fixed {
			why["a claim that it shares is on "+fixed]++
			continue
		}
		if reason := s.accepts(n, pod, needs, t); reason != "" {
			why[reason]++
			continue
		}
		accepted = append(accepted, n)
		if reason := s.busyPlugin(n, &set.Spec); reason != "" {
			why[reason]++
			continue
		}
		results, err := s.allocate(id, n, s.allocated(n, t), claims)
		if errors.Is(err, errTooMany) {
			hard++
			continue
		}
		if err != nil {
			return nil, &engine.NoRoom{Reason: strings.TrimSpace(err.Error())}
		}
		if results == nil {
			continue
		}
		for _, c := range set.Shared {
			shared[c.Name] = n.name
		}
		return &slot{workload: id, set: set.Name, node: n.name, requests: needs, results: results, claims: claims}, nil
	}
	no := s.noRoom(set, claims, accepted, why, t)
	if hard > 0 {
		no.Reason, no.Holes = fmt.Sprintf("%s (%d of %d nodes were not searched to the end)", errTooMany, hard, len(accepted)), nil
	}
	return nil, no
}

// claimsOf lists the claims that still need devices for one pod, and the node
// to which allocated ones bind it, "" for none.
func (s *State) claimsOf(set *PodSet, shared map[string]string, t *trial) ([]*resourceapi.ResourceClaim, string, error) {
	var claims []*resourceapi.ResourceClaim
	fixed := ""
	for i := range set.Claims {
		claims = append(claims, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("claim-%d", i), UID: types.UID(fmt.Sprintf("trial-%d", i))},
			Spec:       set.Claims[i],
		})
	}
	for _, c := range set.Shared {
		switch {
		case shared[c.Name] != "":
			fixed = shared[c.Name]
		case c.Status.Allocation != nil:
			if name := nodeOf(c.Status.Allocation); name != "" {
				fixed = name
			}
		case t.promised(c.UID) != "":
			fixed = t.promised(c.UID)
		default:
			claims = append(claims, c)
		}
	}
	if extended, _ := pricing.ExtendedResources(&set.Spec, s.classes); extended != nil {
		claims = append(claims, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "extended", UID: "trial-extended"},
			Spec:       resourceapi.ResourceClaimSpec{Devices: *extended},
		})
	}
	return claims, fixed, nil
}

// promised is the node on which a claim has a place already, "" for none.
func (t *trial) promised(claim types.UID) string {
	for _, sl := range t.slots {
		for _, c := range sl.claims {
			if c.UID == claim {
				return sl.node
			}
		}
	}
	return ""
}

// nodeOf is the node to which an allocation is bound, "" for devices that are
// not local to one.
func nodeOf(a *resourceapi.AllocationResult) string {
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

// busyPlugin refuses nodes on which a device plugin serves a resource that a
// DeviceClass serves too: the scheduler would take the plugin's there, outside
// of every claim.
func (s *State) busyPlugin(n *node, spec *corev1.PodSpec) string {
	_, names := pricing.ExtendedResources(spec, s.classes)
	for _, name := range names {
		if q := n.object.Status.Allocatable[name]; !q.IsZero() {
			return fmt.Sprintf("a device plugin serves %s there", name)
		}
	}
	return ""
}

// candidates lists the nodes in the order of the policy.
func (s *State) candidates(t *trial) []*node {
	type scored struct {
		*node
		free int64
	}
	all := make([]scored, 0, len(s.nodes))
	for _, n := range s.nodes {
		if n.object != nil {
			all = append(all, scored{n, s.freeMemory(n, t)})
		}
	}
	slices.SortFunc(all, func(a, b scored) int {
		order := cmp.Compare(a.free, b.free)
		if s.policy == Spread {
			order = -order
		}
		return cmp.Or(order, cmp.Compare(a.name, b.name))
	})
	nodes := make([]*node, len(all))
	for i := range all {
		nodes[i] = all[i].node
	}
	return nodes
}
