package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/lifecycle"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// sources is what the reconcilers of users' objects (jobs, pods, claims) have in
// common: each such object has one Workload.
type sources struct {
	*core
	client   client.Client
	recorder events.EventRecorder
	metrics  *metrics
}

// wanted is the Workload that an object should have.
type wanted struct {
	owner client.Object
	gvk   schema.GroupVersionKind
	queue string
	sets  []kueue.PodSet
	// class is the pod's priority class, priority its value if the API server
	// has set one.
	class    string
	priority *int32
	// name is the Workload's if it does not follow from the owner, members the
	// pods of a group, of which owner is the first.
	name    string
	members []*corev1.Pod
}

// workload returns the object's Workload, made if there is none, and changed if
// the object has changed while nothing was reserved for it.
func (s *sources) workload(ctx context.Context, w wanted) (*kueue.Workload, error) {
	name := w.name
	if name == "" {
		name = workloadName(w.gvk.Kind, w.owner.GetName(), w.owner.GetUID())
	}
	key := types.NamespacedName{Namespace: w.owner.GetNamespace(), Name: name}
	wl := &kueue.Workload{}
	err := s.client.Get(ctx, key, wl)
	if apierrors.IsNotFound(err) {
		return s.create(ctx, key, w)
	}
	if err != nil {
		return nil, err
	}
	if wl.Status.Admission != nil || conditionTrue(wl, kueue.WorkloadFinished) {
		return wl, nil
	}
	changed := wl.DeepCopy()
	news := copyWishes(changed, w.owner)
	if len(members(wl, w.members)) != len(w.members) {
		changed.OwnerReferences, news = references(w.members), true
	}
	if s.newPriority(wl, w) {
		ref, value, err := s.priorityOf(ctx, w)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		// With a class that does not exist it keeps the priority that it has.
		if err == nil && !equality.Semantic.DeepEqual(wl.Spec.PriorityClassRef, ref) {
			changed.Spec.PriorityClassRef, changed.Spec.Priority, news = ref, &value, true
		}
	}
	if string(wl.Spec.QueueName) == w.queue && sameSets(wl.Spec.PodSets, w.sets) && !news {
		return wl, nil
	}
	// The user changed the object while it waits.
	changed.Spec.QueueName = kueue.LocalQueueName(w.queue)
	changed.Spec.PodSets = w.sets
	if err := s.charge(w.owner, changed); err != nil {
		return nil, err
	}
	if err := s.client.Update(ctx, changed, client.FieldOwner(FieldOwner)); err != nil {
		return nil, err
	}
	return changed, nil
}

// wishes are the annotations by which a user's object says something of its
// Workload.
func wishes(o client.Object) map[string]string {
	all := map[string]string{}
	for _, key := range []string{gatedBy, lifecycle.NoticeAnnotation} {
		if v, ok := o.GetAnnotations()[key]; ok {
			all[key] = v
		}
	}
	return all
}

// copyWishes makes a waiting Workload's wishes those of the object, and says
// whether they were others.
func copyWishes(wl *kueue.Workload, o client.Object) bool {
	now, before := wishes(o), wishes(wl)
	if maps.Equal(now, before) {
		return false
	}
	if wl.Annotations == nil {
		wl.Annotations = map[string]string{}
	}
	for key := range before {
		delete(wl.Annotations, key)
	}
	maps.Copy(wl.Annotations, now)
	return true
}

func sameSets(a, b []kueue.PodSet) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || a[i].Count != b[i].Count || !equality.Semantic.DeepEqual(a[i].Template.Spec, b[i].Template.Spec) {
			return false
		}
	}
	return true
}

func (s *sources) create(ctx context.Context, key types.NamespacedName, w wanted) (*kueue.Workload, error) {
	wl := &kueue.Workload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name,
			Labels: map[string]string{"kueue.x-k8s.io/job-uid": string(w.owner.GetUID())},
			// From the beginning, as there must be no moment at which quota is held
			// and the object can be gone.
			Finalizers: []string{Finalizer},
		},
		Spec: kueue.WorkloadSpec{QueueName: kueue.LocalQueueName(w.queue), PodSets: w.sets},
	}
	wl.Annotations = wishes(w.owner)
	if text := w.owner.GetLabels()[maxRun]; text != "" {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n <= 0 {
			s.event(w.owner, corev1.EventTypeWarning, "InvalidLabel", "Label %s is %q; a number of seconds above zero is needed. It may run for any time", maxRun, text)
		} else {
			wl.Spec.MaximumExecutionTimeSeconds = ptr.To(int32(n))
		}
	}
	if w.members == nil {
		owner := metav1.NewControllerRef(w.owner, w.gvk)
		owner.BlockOwnerDeletion = nil
		wl.OwnerReferences = []metav1.OwnerReference{*owner}
	} else {
		wl.Labels = map[string]string{GroupLabel: w.owner.GetLabels()[GroupLabel]}
		wl.OwnerReferences = references(w.members)
	}
	ref, value, err := s.priorityOf(ctx, w)
	if err != nil {
		return nil, err
	}
	wl.Spec.PriorityClassRef, wl.Spec.Priority = ref, &value
	if err := s.charge(w.owner, wl); err != nil {
		return nil, err
	}
	if err := s.client.Create(ctx, wl, client.FieldOwner(FieldOwner)); err != nil {
		return nil, err
	}
	id := workloadID(key.Namespace, key.Name)
	s.mu.Lock()
	held, holding := s.engine.Holding(id)
	busy := s.holds(id)
	s.mu.Unlock()
	if holding && busy {
		// The Workload of something that runs was deleted: its quota goes on.
		s.mu.Lock()
		s.madeAgain(wl, held)
		s.mu.Unlock()
		if err := s.client.Status().Update(ctx, wl, client.FieldOwner(FieldOwner)); err != nil {
			return nil, err
		}
	}
	s.saw(wl.DeepCopy())
	return wl, nil
}

// references make pods the owners of their group's Workload: it goes when none of
// them is left.
func references(pods []*corev1.Pod) []metav1.OwnerReference {
	var all []metav1.OwnerReference
	for _, p := range pods {
		all = append(all, podReference(p))
	}
	return all
}

func podReference(p *corev1.Pod) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID}
}

// newPriority says whether a waiting Workload's priority may not be the one that
// its object names: the label names another class, or none any more. What was
// written into a Workload by hand stays.
func (s *sources) newPriority(wl *kueue.Workload, w wanted) bool {
	ref := wl.Spec.PriorityClassRef
	names := func(kind kueue.PriorityClassKind, name string) bool {
		return ref != nil && ref.Kind == kind && ref.Name == name
	}
	if label := w.owner.GetLabels()[PriorityLabel]; label != "" {
		return !names(kueue.WorkloadPriorityClassKind, label)
	}
	if w.class != "" {
		return !names(kueue.PodPriorityClassKind, w.class)
	}
	return ref != nil
}

// priorityOf is priority, and tells the user of a class that does not exist.
func (s *sources) priorityOf(ctx context.Context, w wanted) (*kueue.PriorityClassRef, int32, error) {
	ref, value, err := s.priority(ctx, w)
	if apierrors.IsNotFound(err) {
		s.event(w.owner, corev1.EventTypeWarning, "NotQueued", "Not queued by its priority: %s; make the class, or name another", err)
	}
	return ref, value, err
}

// priority is that of a WorkloadPriorityClass if the label names one, else the
// pods'.
func (s *sources) priority(ctx context.Context, w wanted) (*kueue.PriorityClassRef, int32, error) {
	if name := w.owner.GetLabels()[PriorityLabel]; name != "" {
		wpc := &kueue.WorkloadPriorityClass{}
		if err := s.client.Get(ctx, types.NamespacedName{Name: name}, wpc); err != nil {
			return nil, 0, fmt.Errorf("label %s: %w", PriorityLabel, err)
		}
		return kueue.NewWorkloadPriorityClassRef(name), wpc.Value, nil
	}
	if w.class != "" {
		pc := &schedulingv1.PriorityClass{}
		if err := s.client.Get(ctx, types.NamespacedName{Name: w.class}, pc); err != nil {
			return nil, 0, fmt.Errorf("priorityClassName: %w", err)
		}
		return kueue.NewPodPriorityClassRef(w.class), pc.Value, nil
	}
	if w.priority != nil {
		return nil, *w.priority, nil
	}
	var classes schedulingv1.PriorityClassList
	if err := s.client.List(ctx, &classes); err != nil {
		return nil, 0, err
	}
	for i := range classes.Items {
		if pc := &classes.Items[i]; pc.GlobalDefault {
			return kueue.NewPodPriorityClassRef(pc.Name), pc.Value, nil
		}
	}
	return nil, 0, nil
}

// end marks a Workload finished. Its quota is released when nothing is in use.
func (s *sources) end(ctx context.Context, wl *kueue.Workload, succeeded bool, message string) error {
	if conditionTrue(wl, kueue.WorkloadFinished) {
		return nil
	}
	how := outcome{succeeded, message}
	if s.beside {
		// Nothing else brings the object here again.
		s.heed(wl)
		s.mu.Lock()
		defer s.mu.Unlock()
		id := workloadID(wl.Namespace, wl.Name)
		if known := s.works[id]; known != nil && known.ended == nil {
			known.ended = &how
			s.tell(id)
		}
		return nil
	}
	return s.markFinished(ctx, wl, how)
}

// markFinished writes that a Workload is finished.
func (s *sources) markFinished(ctx context.Context, wl *kueue.Workload, how outcome) error {
	reason, message := kueue.WorkloadFinishedReasonSucceeded, how.message
	if !how.succeeded {
		reason = kueue.WorkloadFinishedReasonFailed
	}
	if message == "" {
		message = "Finished"
	}
	wl = wl.DeepCopy()
	meta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{
		Type: kueue.WorkloadFinished, Status: metav1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: wl.Generation,
	})
	if err := s.client.Status().Update(ctx, wl, client.FieldOwner(FieldOwner)); err != nil {
		return client.IgnoreNotFound(err)
	}
	s.saw(wl.DeepCopy())
	return nil
}

// event is put on a user's object.
func (s *sources) event(o client.Object, kind, reason, format string, args ...any) {
	s.recorder.Eventf(o, nil, kind, reason, "Quota", format, args...)
}

// flavorsOf lists the flavors of one pod set's assignment.
func flavorsOf(a *kueue.PodSetAssignment) []string {
	seen := map[string]bool{}
	var names []string
	for _, f := range a.Flavors {
		if !seen[string(f)] {
			seen[string(f)] = true
			names = append(names, string(f))
		}
	}
	// Of labels that two flavors set the last counts, for fit as for the pod.
	slices.Sort(names)
	return names
}

// flavorPlacement is what the flavors of a pod set ask of its pods.
func (c *core) flavorPlacement(a *kueue.PodSetAssignment) (map[string]string, []corev1.Toleration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	labels := map[string]string{}
	var tolerations []corev1.Toleration
	for _, name := range flavorsOf(a) {
		f := c.flavors[name]
		if f == nil {
			return nil, nil, fmt.Errorf("flavor %q does not exist any more", name)
		}
		for k, v := range f.Spec.NodeLabels {
			labels[k] = v
		}
		tolerations = append(tolerations, f.Spec.Tolerations...)
	}
	return labels, tolerations, nil
}

// setOf is the part of an admission that a pod set has.
func setOf(a *kueue.Admission, name string) *kueue.PodSetAssignment {
	for i := range a.PodSetAssignments {
		if string(a.PodSetAssignments[i].Name) == name {
			return &a.PodSetAssignments[i]
		}
	}
	return nil
}

// engineSet is the engine's form of the same.
func engineSet(a *kueue.Admission, name string) *engine.PodSetAssignment {
	all := translate.Assignment(a)
	for i := range all.PodSets {
		if all.PodSets[i].Name == name {
			return &all.PodSets[i]
		}
	}
	return nil
}
