package fit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// node is a node with what is on it.
type node struct {
	name   string
	object *corev1.Node
	slices []*resourceapi.ResourceSlice
	pods   map[types.UID]*podOnNode
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
	s.RemovePod(p.UID)
	if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return
	}
	on := &podOnNode{node: p.Spec.NodeName, workload: workload, requests: s.requests(&p.Spec)}
	s.pods[p.UID] = on
	s.node(on.node).pods[p.UID] = on
}

// RemovePod says that a pod takes nothing any more.
func (s *State) RemovePod(uid types.UID) {
	on := s.pods[uid]
	if on == nil {
		return
	}
	delete(s.pods, uid)
	if n := s.nodes[on.node]; n != nil {
		delete(n.pods, uid)
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

// accepts says why the scheduler would not put a pod on a node, cards aside; ""
// if it would. pod carries the flavor's labels and tolerations already.
func (s *State) accepts(n *node, pod *corev1.Pod, needs corev1.ResourceList, t *trial) string {
	if n.object == nil {
		return "unknown node"
	}
	if n.object.Spec.Unschedulable && !tolerates(pod, &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}) {
		return "cordoned"
	}
	taint, untolerated := schedulinghelper.FindMatchingUntoleratedTaint(klog.Background(), n.object.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}, false)
	if untolerated {
		return "taint " + taint.ToString() + " is not tolerated"
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(n.object); err != nil || !ok {
		return "not selected by nodeSelector or affinity"
	}
	return s.short(n, needs, t)
}

func tolerates(pod *corev1.Pod, taint *corev1.Taint) bool {
	return schedulinghelper.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations, taint, false)
}

// short names the first resource of which a node has not enough left.
func (s *State) short(n *node, needs corev1.ResourceList, t *trial) string {
	used := corev1.ResourceList{}
	count := int64(0)
	for _, p := range n.pods {
		if !t.without[p.workload] {
			addAll(used, p.requests)
			count++
		}
	}
	for _, sl := range t.slots {
		if sl.node == n.name {
			addAll(used, sl.requests)
			count++
		}
	}
	if pods, ok := n.object.Status.Allocatable[corev1.ResourcePods]; ok && count+1 > pods.Value() {
		return "too many pods"
	}
	for _, name := range slices.Sorted(maps.Keys(needs)) {
		need, free := needs[name], n.object.Status.Allocatable[name].DeepCopy()
		free.Sub(used[name])
		if need.Cmp(free) > 0 {
			return fmt.Sprintf("%s %s asked, %s free", need.String(), name, free.String())
		}
	}
	return ""
}

func addAll(sum, more corev1.ResourceList) {
	for name, q := range more {
		total := sum[name]
		total.Add(q)
		sum[name] = total
	}
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

// refusals counts why nodes were refused, for one sentence.
type refusals map[string]int

func (r refusals) String() string {
	reasons := slices.Sorted(maps.Keys(r))
	slices.SortStableFunc(reasons, func(a, b string) int { return r[b] - r[a] })
	var parts []string
	for i, reason := range reasons {
		if i == 3 {
			break
		}
		parts = append(parts, fmt.Sprintf("%d nodes: %s", r[reason], reason))
	}
	return strings.ReplaceAll(strings.Join(parts, "; "), "1 nodes: ", "1 node: ")
}
