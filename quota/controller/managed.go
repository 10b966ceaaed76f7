package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gpu/sluice/quota/config"
	"github.com/sluice-gpu/sluice/quota/hami"
	"github.com/sluice-gpu/sluice/quota/jobs"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

// DefaultQueue is the LocalQueue of jobs that name none, where the configuration
// says so.
const DefaultQueue = "default"

// unnamed says what becomes of jobs that name no queue.
type unnamed struct {
	// defaulted puts them into the namespace's default queue, held suspends them
	// where there is none.
	defaulted, held bool
	in              labels.Selector
	namespaces      map[string]labels.Set
	// jobs and pods are those that name no queue, of pods those at their gates, by
	// namespace.
	jobs map[string]map[types.UID]*ownerFact
	pods map[string]map[types.UID]*podFact
}

func newUnnamed(c *config.QuotaConfiguration) unnamed {
	in, err := metav1.LabelSelectorAsSelector(c.ManagedJobsNamespaceSelector)
	if err != nil {
		in = labels.Nothing() // Decode has refused it
	}
	return unnamed{defaulted: c.LocalQueueDefaulting, held: c.ManageJobsWithoutQueueName, in: in, namespaces: map[string]labels.Set{},
		jobs: map[string]map[types.UID]*ownerFact{}, pods: map[string]map[types.UID]*podFact{}}
}

// holds says whether jobs of a namespace that name no queue are suspended. A
// namespace that is not known is about to be.
func (u *unnamed) holds(namespace string) bool {
	set, known := u.namespaces[namespace]
	return u.held && known && u.in.Matches(set)
}

// unnamedChanged looks again at what names no queue in a namespace, and at nothing
// else.
func (c *core) unnamedChanged(namespace string) {
	for _, f := range c.unnamed.jobs[namespace] {
		c.tellJob(jobRequest{f.kind, f.name})
	}
	for _, p := range c.unnamed.pods[namespace] {
		c.tellPod(p.name)
	}
}

// noteJob keeps a job that is there among those without a queue, or takes it out.
func (u *unnamed) noteJob(f *ownerFact, there bool) {
	note(u.jobs, f.name.Namespace, f.uid, f, there && f.queue == "")
}

// notePod does so with a pod.
func (u *unnamed) notePod(p *podFact, there bool) {
	note(u.pods, p.name.Namespace, p.uid, p, there && p.workload == "" && p.gated)
}

func note[T any](all map[string]map[types.UID]T, namespace string, uid types.UID, one T, in bool) {
	if in {
		if all[namespace] == nil {
			all[namespace] = map[types.UID]T{}
		}
		all[namespace][uid] = one
		return
	}
	delete(all[namespace], uid)
	if len(all[namespace]) == 0 {
		delete(all, namespace)
	}
}

// Unnamed is what the webhook does with a job or pod that names no queue: the
// queue that it puts it into, "" for none, and whether it holds it back.
func (c *Controller) Unnamed(ctx context.Context, namespace string) (queue string, suspend bool) {
	c.core.mu.Lock()
	u := &c.core.unnamed
	set, known := u.namespaces[namespace]
	in, suspend := known && u.in.Matches(set), u.holds(namespace)
	c.core.mu.Unlock()
	if in && u.defaulted && c.HasLocalQueue(ctx, namespace, DefaultQueue) {
		return DefaultQueue, true
	}
	return "", suspend
}

// AsksDevices says whether a pod asks for devices that are made or found for it
// alone, and may cost quota. Claims that it shares with others are governed by
// themselves.
func (c *Controller) AsksDevices(pod *corev1.Pod, namespace string) bool {
	if hami.Asked(&pod.Spec) {
		return true
	}
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	if extended, _ := pricing.ExtendedResources(&pod.Spec, c.core.fit.Classes()); extended != nil {
		return true
	}
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.ResourceClaimTemplateName == nil {
			continue
		}
		// One that is not known is about to be.
		t := c.core.templates[types.NamespacedName{Namespace: namespace, Name: *ref.ResourceClaimTemplateName}]
		if t == nil || c.core.costs(&t.Spec.Spec.Devices) {
			return true
		}
	}
	return false
}

// unqueued looks after a pod without a queue that waits at the gate: it is told
// so, and let go when it need not name one any more.
func (r *podReconciler) unqueued(ctx context.Context, pod *corev1.Pod) error {
	if pod.Annotations[jobs.HeldAnnotation] == "" || !HasGate(pod) || pod.DeletionTimestamp != nil {
		return nil
	}
	r.mu.Lock()
	_, known := r.unnamed.namespaces[pod.Namespace]
	held := r.unnamed.holds(pod.Namespace)
	r.mu.Unlock()
	if held || !known {
		r.event(pod, corev1.EventTypeWarning, "NotGoverned", "Not admitted: %s", errNoQueue)
		return nil
	}
	before := pod.DeepCopy()
	pod = pod.DeepCopy()
	removeGate(pod)
	delete(pod.Annotations, jobs.HeldAnnotation)
	// By now it may be another pod of that name, or name a queue.
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	return client.IgnoreNotFound(r.client.Patch(ctx, pod, patch, client.FieldOwner(FieldOwner)))
}
