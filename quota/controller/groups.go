package controller

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// A pod group is pods that somebody makes one by one and that run all together or
// not at all. They carry the group's name as a label and the number of its pods
// as an annotation. Pods that agree on the name, the number and the queue are a
// group: whoever says otherwise is in another one. Its Workload is made when that
// many are there, and lists those that belong to it as its owners: no other pod
// runs on its quota, whatever its labels say.
const (
	GroupLabel = "kueue.x-k8s.io/pod-group-name"
	GroupTotal = "kueue.x-k8s.io/pod-group-total-count"
	// GroupRetriable says, on any pod of a group and with the value false, that no
	// pod takes the place of another.
	GroupRetriable = "kueue.x-k8s.io/retriable-in-group"
)

// groupReconciler makes the Workloads of pod groups, lets pods replace others of
// their group, and ends groups.
type groupReconciler struct{ *sources }

// groupKey is what the pods of a group agree on.
type groupKey struct {
	name, queue string
	total       int
}

// groupKeyOf is the group that a pod says it is in, nil if in none. queue is the
// label that names queues.
func groupKeyOf(p *corev1.Pod, queue string) *groupKey {
	total, err := strconv.Atoi(p.Annotations[GroupTotal])
	if err != nil || total < 1 {
		total = 0
	}
	if p.Labels[GroupLabel] == "" || p.Labels[queue] == "" {
		return nil
	}
	return &groupKey{p.Labels[GroupLabel], p.Labels[queue], total}
}

// workload is the name of the group's Workload.
func (k groupKey) workload() string {
	return workloadName("PodGroup", k.name, types.UID(fmt.Sprintf("podgroup/%s/%s/%d", k.name, k.queue, k.total)))
}

// role is the pod set of a pod in a group: pods that ask for the same are of one
// set. A pod past its gate has what its flavor added; its set was noted then.
func role(p *corev1.Pod) string {
	if set := p.Labels[PodSetLabel]; set != "" && !HasGate(p) {
		return set
	}
	type ask struct {
		Resources corev1.ResourceRequirements
		Restart   *corev1.ContainerRestartPolicy
	}
	asks := func(list []corev1.Container) (all []ask) {
		for i := range list {
			all = append(all, ask{list[i].Resources, list[i].RestartPolicy})
		}
		return all
	}
	s := &p.Spec
	b, err := json.Marshal([]any{
		asks(s.InitContainers), asks(s.Containers), s.Resources, s.Overhead, s.ResourceClaims, s.NodeSelector, s.Affinity,
		s.Tolerations, s.TopologySpreadConstraints, s.RuntimeClassName, s.PriorityClassName, s.SchedulerName,
	})
	if err != nil {
		return mainSet
	}
	sum := sha256.Sum256(b)
	return "set-" + hex.EncodeToString(sum[:])[:8]
}

// group is what is there of a pod group.
type group struct {
	groupKey
	// live are the pods that go on, the oldest first; ended those that have run to
	// their end.
	live, ended []*corev1.Pod
}

// Reconcile is asked for by the namespace and name of groups.
func (r *groupReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	groups, err := r.read(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	again := ctrl.Result{}
	for _, g := range groups {
		err := r.one(ctx, req.Namespace, g)
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			again.RequeueAfter = recheck
		} else if err != nil {
			return ctrl.Result{}, err
		}
	}
	return again, nil
}

func (r *groupReconciler) one(ctx context.Context, namespace string, g *group) error {
	if g.total == 0 {
		if len(g.live) > 0 {
			r.event(g.live[0], corev1.EventTypeWarning, "NotInGroup", "Not admitted with group %s: annotation %s is %q, it must be the number of pods of the group", g.name, GroupTotal, g.live[0].Annotations[GroupTotal])
		}
		return nil
	}
	key := types.NamespacedName{Namespace: namespace, Name: g.workload()}
	wl := r.existing(ctx, key)
	switch {
	case wl == nil && slices.ContainsFunc(g.live, func(p *corev1.Pod) bool { return r.doubly(p) }):
		r.event(g.live[0], corev1.EventTypeWarning, "NotGoverned", "Not admitted: %s", errDoubly)
	case wl == nil || wl.Status.Admission == nil && !conditionTrue(wl, kueue.WorkloadFinished):
		return r.gather(ctx, key, g, wl)
	case conditionTrue(wl, kueue.WorkloadFinished):
		// Pods made anew under the name of a group that has ended are a new one.
		if len(g.live) >= g.total && len(members(wl, g.live)) == 0 {
			return r.discard(ctx, wl)
		}
	case wl.DeletionTimestamp == nil && !conditionTrue(wl, kueue.WorkloadEvicted):
		return r.attend(ctx, g, wl)
	}
	return nil
}

// read finds the groups of a name: those that have pods, and those of which only
// the Workload is left.
func (r *groupReconciler) read(ctx context.Context, name types.NamespacedName) ([]*group, error) {
	var list corev1.PodList
	if err := r.client.List(ctx, &list, client.InNamespace(name.Namespace), client.MatchingLabels{GroupLabel: name.Name}); err != nil {
		return nil, err
	}
	var left kueue.WorkloadList
	if err := r.client.List(ctx, &left, client.InNamespace(name.Namespace), client.MatchingLabels{GroupLabel: name.Name}); err != nil {
		return nil, err
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	var all []*group
	of := func(k groupKey) *group {
		if i := slices.IndexFunc(all, func(g *group) bool { return g.groupKey == k }); i >= 0 {
			return all[i]
		}
		all = append(all, &group{groupKey: k})
		return all[len(all)-1]
	}
	for i := range left.Items {
		wl := &left.Items[i]
		total := int32(0)
		for _, s := range wl.Spec.PodSets {
			total += s.Count
		}
		of(groupKey{name.Name, string(wl.Spec.QueueName), int(total)})
	}
	for i := range list.Items {
		p := &list.Items[i]
		m := r.member(p)
		if m.group == nil || m.group.name != name.Name {
			continue
		}
		switch g := of(*m.group); {
		case ended(p):
			g.ended = append(g.ended, p)
		case p.DeletionTimestamp == nil:
			g.live = append(g.live, p)
		}
	}
	return all, nil
}

// gather makes the Workload when the group is complete, and takes it back, while
// nothing is reserved, when it is not any more.
func (r *groupReconciler) gather(ctx context.Context, key types.NamespacedName, g *group, wl *kueue.Workload) error {
	if len(g.live) < g.total {
		if len(g.live) > 0 {
			r.event(g.live[0], corev1.EventTypeNormal, "GroupIncomplete", "Group %s has %d of its %d pods; it is queued when all are there, with the same queue and the same %s", g.name, len(g.live), g.total, GroupTotal)
		}
		if wl != nil {
			return r.discard(ctx, wl)
		}
		return nil
	}
	pods := g.live[:g.total]
	if wl != nil {
		if in := members(wl, g.live); len(in) == g.total {
			pods = in
		}
	}
	w := wanted{owner: pods[0], name: key.Name, members: pods, queue: g.queue, class: pods[0].Spec.PriorityClassName, priority: pods[0].Spec.Priority}
	for _, p := range pods {
		name := kueue.PodSetReference(role(p))
		if i := slices.IndexFunc(w.sets, func(s kueue.PodSet) bool { return s.Name == name }); i >= 0 {
			w.sets[i].Count++
			continue
		}
		spec := *p.Spec.DeepCopy()
		spec.SchedulingGates, spec.NodeName = nil, ""
		w.sets = append(w.sets, kueue.PodSet{Name: name, Count: 1, Template: corev1.PodTemplateSpec{Spec: spec}})
	}
	slices.SortFunc(w.sets, func(a, b kueue.PodSet) int { return cmp.Compare(a.Name, b.Name) })
	_, err := r.workload(ctx, w)
	if apierrors.IsInvalid(err) {
		r.event(pods[0], corev1.EventTypeWarning, "NotGoverned", "Not admitted: group %s cannot be queued: %s", g.name, err)
		return nil
	}
	return err
}

// members are those of the pods that a Workload lists.
func members(wl *kueue.Workload, pods []*corev1.Pod) []*corev1.Pod {
	var in []*corev1.Pod
	for _, p := range pods {
		if lists(wl, p.UID) {
			in = append(in, p)
		}
	}
	return in
}

func lists(wl *kueue.Workload, uid types.UID) bool {
	for _, o := range wl.OwnerReferences {
		if o.UID == uid {
			return true
		}
	}
	return false
}

// attend looks after a group that quota is reserved for: it lets pods take the
// place of members that are gone or have failed, and ends it when none is left.
func (r *groupReconciler) attend(ctx context.Context, g *group, wl *kueue.Workload) error {
	live, done := members(wl, g.live), members(wl, g.ended)
	r.mu.Lock()
	closed := r.closed(wl)
	r.mu.Unlock()
	taken := map[string]int32{}
	succeeded := 0
	for _, p := range live {
		taken[role(p)]++
	}
	for _, p := range done {
		if p.Status.Phase == corev1.PodSucceeded {
			succeeded++
			taken[role(p)]++
		}
	}
	changed := wl.DeepCopy()
	for _, p := range g.live {
		if lists(wl, p.UID) {
			continue
		}
		set := role(p)
		i := slices.IndexFunc(wl.Spec.PodSets, func(s kueue.PodSet) bool { return string(s.Name) == set })
		if closed {
			r.event(p, corev1.EventTypeWarning, "NotInGroup", "Not admitted with group %s: none of its pods is replaced, as annotation %s: \"false\" on one of them says", g.name, GroupRetriable)
			continue
		}
		if len(live) == 0 || i < 0 || taken[set] >= wl.Spec.PodSets[i].Count {
			r.event(p, corev1.EventTypeWarning, "NotInGroup", "Not admitted with group %s: it runs with %d other pods, and none that this one could replace is gone", g.name, g.total)
			continue
		}
		taken[set]++
		changed.OwnerReferences = append(changed.OwnerReferences, podReference(p))
	}
	if len(changed.OwnerReferences) != len(wl.OwnerReferences) {
		if err := r.client.Update(ctx, changed, client.FieldOwner(FieldOwner)); err != nil {
			return err
		}
		r.saw(changed.DeepCopy())
		return nil
	}
	switch {
	case len(live) > 0:
		return nil
	case len(done) == 0:
		return r.discard(ctx, wl)
	}
	return r.end(ctx, wl, succeeded == g.total, fmt.Sprintf("All pods of group %s have ended, %d of %d with success", g.name, succeeded, g.total))
}

// closed says that no pod takes the place of another in a group: one of its pods
// says so, or said so when the group was charged for what its pods were given.
func (c *core) closed(wl *kueue.Workload) bool {
	if conditionTrue(wl, Corrected) {
		return true
	}
	for _, p := range c.podsOf[workloadID(wl.Namespace, wl.Name)] {
		if p.object.Annotations[GroupRetriable] == "false" && p.belongs(wl) {
			return true
		}
	}
	return false
}

// discard deletes a Workload. One that holds quota stays until that is free.
func (r *groupReconciler) discard(ctx context.Context, wl *kueue.Workload) error {
	uid, version := wl.UID, wl.ResourceVersion
	return client.IgnoreNotFound(r.client.Delete(ctx, wl, client.Preconditions{UID: &uid, ResourceVersion: &version}))
}

// groupOf maps a pod, or the Workload of a group, to the group.
func groupOf(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[GroupLabel]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}
