package fit

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

// node is a node with what is on it.
type node struct {
	name   string
	object *corev1.Node
	// slices are the node's own, cards the devices in them as if nobody had any,
	// nil while they are not listed.
	slices []*resourceapi.ResourceSlice
	cards  []card
	// counters are those that the cards draw from.
	counters tally
	// selected says which cards a class selects, as far as that was asked.
	selected map[string][]bool
	// plain is what slots of a kind ask of each card, nil where numbers do not tell.
	plain map[string]*demands
	// served are the kinds of pods that the allocator gave devices here, by the
	// requests that each device was for.
	served map[string][]string
	// could says which kinds of pods it could serve if nobody were there.
	could map[string]bool
	pods  map[types.UID]*podOnNode
	slots []*slot

	// base is what is left when everything counts, held what claims and bound pods
	// leave, if anything is promised besides; nil while they are not computed.
	base, held *view
	stale      bool
	// in are the indexes that have the node, by the keys at.
	in []*index
	at keys
}

// forgetKinds forgets what is known of kinds of pods here, since devices or classes
// are others now.
func (n *node) forgetKinds() {
	n.selected, n.plain, n.served, n.could = nil, nil, nil, nil
}

// podOnNode is a pod that is bound to a node and not finished.
type podOnNode struct {
	node     string
	workload engine.WorkloadID
	requests corev1.ResourceList
}

// SetPod tells of a pod: the node it is bound to, if any, and the workload it
// belongs to ("" for pods that no budget governs). Finished pods take nothing.
func (s *State) SetPod(p *corev1.Pod, workload engine.WorkloadID) {
	if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		s.RemovePod(p.UID)
		return
	}
	on := &podOnNode{node: p.Spec.NodeName, workload: workload, requests: s.requests(&p.Spec)}
	if old := s.pods[p.UID]; old != nil {
		if old.node == on.node && old.workload == on.workload && sameList(old.requests, on.requests) {
			return
		}
		s.RemovePod(p.UID)
	}
	s.pods[p.UID] = on
	if workload != "" {
		s.workload(workload).bound[p.UID] = on
	}
	n := s.node(on.node)
	n.pods[p.UID] = on
	s.burden(n, on.requests, true, false)
	if workload == "" && slices.ContainsFunc(n.slots, func(sl *slot) bool { return sl.pod != "" }) {
		// Those on their way there may have to go elsewhere.
		s.freed = true
	}
}

func sameList(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
}

// RemovePod says that a pod takes nothing any more.
func (s *State) RemovePod(uid types.UID) {
	on := s.pods[uid]
	if on == nil {
		return
	}
	s.freed = true
	delete(s.pods, uid)
	if w := s.workloads[on.workload]; w != nil {
		delete(w.bound, uid)
		s.forget(on.workload, w)
	}
	if n := s.nodes[on.node]; n != nil {
		delete(n.pods, uid)
		s.burden(n, on.requests, false, false)
		s.tidy(n)
	}
}

// requests is what a pod takes of a node's allocatable: without resources that
// DeviceClasses serve, which are the allocator's matter, and with the limits
// that stand for requests in templates.
func (s *State) requests(spec *corev1.PodSpec) corev1.ResourceList {
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
	maps.DeleteFunc(all, func(name corev1.ResourceName, q resource.Quantity) bool {
		return q.IsZero() || s.classes.ForExtendedResource(name) != nil
	})
	return all
}

// refusal is why a node was not taken.
type refusal struct {
	cause Cause
	text  string
}

// accepts says why the scheduler would not put a pod on a node, cards aside;
// nil if it would.
func (s *State) accepts(n *node, q *query, t *trial) *refusal {
	if why := q.welcome(n); why != nil {
		return why
	}
	return s.view(n, t).short(n, q)
}

// welcome is the part of accepts that does not depend on what others take.
func (q *query) welcome(n *node) *refusal {
	if n.object == nil {
		return &refusal{CauseNode, "unknown node"}
	}
	if n.object.Spec.Unschedulable && !q.tolerates(&corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}) {
		return &refusal{CauseNode, "cordoned"}
	}
	if len(n.object.Spec.Taints) > 0 {
		taint, untolerated := schedulinghelper.FindMatchingUntoleratedTaint(klog.Background(), n.object.Spec.Taints, q.pod.Spec.Tolerations, func(t *corev1.Taint) bool {
			return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
		}, false)
		if untolerated {
			return &refusal{CauseNode, "taint " + taint.ToString() + " is not tolerated"}
		}
	}
	if ok, err := q.affinity.Match(n.object); err != nil || !ok {
		return &refusal{CauseNode, "not selected by nodeSelector or affinity"}
	}
	return nil
}

func (q *query) tolerates(taint *corev1.Taint) bool {
	return schedulinghelper.TolerationsTolerateTaint(klog.Background(), q.pod.Spec.Tolerations, taint, false)
}

// short names the first resource of which a node has not enough left.
func (v *view) short(n *node, q *query) *refusal {
	if pods, ok := n.object.Status.Allocatable[corev1.ResourcePods]; ok && v.pods+1 > pods.Value() {
		return &refusal{CauseResources, "too many pods"}
	}
	for _, name := range q.names {
		need, free := q.needs[name], n.object.Status.Allocatable[name].DeepCopy()
		free.Sub(v.used[name])
		if need.Cmp(free) > 0 {
			return &refusal{CauseResources, fmt.Sprintf("%s %s asked, %s free", need.String(), name, free.String())}
		}
	}
	return nil
}

// large says why a pod could not run on a node although it were empty.
func (q *query) large(n *node) *refusal {
	return (&view{}).short(n, q)
}

// busyPlugin refuses nodes on which a device plugin serves a resource that a
// DeviceClass serves too: the scheduler would take the plugin's there, outside
// of every claim.
func (q *query) busyPlugin(n *node) *refusal {
	for _, name := range q.extended {
		if a := n.object.Status.Allocatable[name]; !a.IsZero() {
			return &refusal{CauseNode, fmt.Sprintf("a device plugin serves %s there", name)}
		}
	}
	return nil
}

func addAll(sum, more corev1.ResourceList) {
	for name, q := range more {
		total := sum[name]
		total.Add(q)
		sum[name] = total
	}
}

func flavorsOf(a *engine.PodSetAssignment) []engine.FlavorName {
	var names []engine.FlavorName
	for _, f := range a.Flavors {
		if !slices.Contains(names, f) {
			names = append(names, f)
		}
	}
	slices.Sort(names)
	return names
}

// extendedOf is the claim that the scheduler makes for a pod's extended
// resources, nil if none is served by a DeviceClass, and their names.
func (s *State) extendedOf(spec *corev1.PodSpec) (*resourceapi.DeviceClaim, []corev1.ResourceName) {
	return pricing.ExtendedResources(spec, s.classes)
}
