package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/cmd/kubectl-sluice/view"
	"github.com/sluice-gpu/sluice/quota/controller"
)

func (c *connection) why(ctx context.Context, out io.Writer, what string) error {
	cl, namespace, err := c.open()
	if err != nil {
		return err
	}
	kind, name, qualified := strings.Cut(what, "/")
	if !qualified {
		kind, name = "", what
	}
	ns := namespaced{cl: cl, namespace: namespace}
	subject, err := ns.find(ctx, strings.ToLower(kind), name)
	if err != nil {
		return err
	}
	for _, line := range view.Why(subject) {
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}

// namespaced reads one namespace.
type namespaced struct {
	cl        client.Client
	namespace string
}

// find gathers what there is about a thing of that kind and name; kind may be
// empty, singular, plural or "workload".
func (n namespaced) find(ctx context.Context, kind, name string) (view.Subject, error) {
	s := view.Subject{Name: name}
	if kind == "claim" || kind == "claims" {
		kind = "resourceclaim"
	}
	if kind != "" {
		s.Name = kind + "/" + name
	}
	workloads, pods, claims := &kueue.WorkloadList{}, &corev1.PodList{}, &resourceapi.ResourceClaimList{}
	for _, list := range []client.ObjectList{workloads, pods, claims} {
		if err := n.cl.List(ctx, list, client.InNamespace(n.namespace)); err != nil {
			return s, err
		}
	}
	s.Beside = workloads.Items
	of := func(word string) bool { return kind == "" || strings.TrimSuffix(kind, "s") == word }
	var pod *corev1.Pod
	var claim *resourceapi.ResourceClaim
	if i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Name == name }); i >= 0 && of("pod") {
		pod = &pods.Items[i]
	}
	if i := slices.IndexFunc(claims.Items, func(c resourceapi.ResourceClaim) bool { return c.Name == name }); i >= 0 && of("resourceclaim") {
		claim = &claims.Items[i]
	}
	for i := range workloads.Items {
		w := &workloads.Items[i]
		mine := w.Name == name && of("workload") || ownedBy(w, kind, name)
		if pod != nil && pod.Labels[controller.WorkloadLabel] == w.Name {
			mine = true
		}
		if mine {
			s.Workload = w
			break
		}
	}
	switch {
	case s.Workload != nil:
		s.Queue = string(s.Workload.Spec.QueueName)
	case pod != nil:
		s.Queue = controller.QueueNamed(pod.Labels)
	case claim != nil:
		s.Queue = controller.QueueNamed(claim.Labels)
	default:
		job := &batchv1.Job{}
		err := n.cl.Get(ctx, types.NamespacedName{Namespace: n.namespace, Name: name}, job)
		if err != nil && !apierrors.IsNotFound(err) {
			return s, err
		}
		if p := oneOf(pods.Items, kind, name); p != "" && (err != nil || !of("job")) {
			return s, fmt.Errorf("the pods of %s are workloads of their own: ask for one of them, as in pod/%s", s.Name, p)
		}
		if err != nil || !of("job") {
			return s, fmt.Errorf("namespace %s has no workload, pod, claim or job of the name %s, and no workload of an object of that name", n.namespace, s.Name)
		}
		if s.Queue = controller.QueueNamed(job.Labels); s.Queue == "" {
			s.Queue = controller.QueueNamed(job.Spec.Template.Labels)
		}
	}
	if err := n.queue(ctx, &s); err != nil {
		return s, err
	}
	for _, p := range pods.Items {
		if pod != nil && p.Name == pod.Name || s.Workload != nil && belongs(&p, s.Workload) {
			s.Pods = append(s.Pods, p)
		}
	}
	for _, c := range claims.Items {
		if claim != nil && c.Name == claim.Name || slices.ContainsFunc(s.Pods, func(p corev1.Pod) bool { return uses(&p, c.Name) }) {
			s.Claims = append(s.Claims, c)
		}
	}
	return s, nil
}

// oneOf is a pod of a StatefulSet or ReplicaSet, or of a Deployment, whose
// ReplicaSets have its name and a hash.
func oneOf(pods []corev1.Pod, kind, name string) string {
	is := func(word string) bool { return kind == "" || strings.TrimSuffix(kind, "s") == word }
	for i := range pods {
		for _, o := range pods[i].OwnerReferences {
			set := o.Kind == "ReplicaSet" || o.Kind == "StatefulSet"
			named := o.Name == name && is(strings.ToLower(o.Kind))
			above := o.Kind == "ReplicaSet" && is("deployment") && o.Name == name+"-"+pods[i].Labels["pod-template-hash"]
			if set && (named || above) {
				return pods[i].Name
			}
		}
	}
	return ""
}

// queue reads the queues of the subject, as far as they exist.
func (n namespaced) queue(ctx context.Context, s *view.Subject) error {
	if s.Queue == "" {
		return nil
	}
	local := &kueue.LocalQueue{}
	if err := n.cl.Get(ctx, types.NamespacedName{Namespace: n.namespace, Name: s.Queue}, local); err != nil {
		return client.IgnoreNotFound(err)
	}
	s.Local = local
	cluster := &kueue.ClusterQueue{}
	if err := n.cl.Get(ctx, types.NamespacedName{Name: string(local.Spec.ClusterQueue)}, cluster); err != nil {
		if apierrors.IsForbidden(err) { // a tenant may not; the LocalQueue's conditions tell the same
			cluster.Name = string(local.Spec.ClusterQueue)
			cluster.Status.Conditions = local.Status.Conditions
			s.Cluster = cluster
			return nil
		}
		return client.IgnoreNotFound(err)
	}
	s.Cluster = cluster
	return nil
}

func ownedBy(object metav1.Object, kind, name string) bool {
	return slices.ContainsFunc(object.GetOwnerReferences(), func(o metav1.OwnerReference) bool {
		singular := strings.ToLower(o.Kind)
		return o.Name == name && (kind == "" || kind == singular || kind == singular+"s")
	})
}

// belongs says whether a pod is one of a workload's: by its label, or since the
// workload was made for it, or for the job that owns it.
func belongs(p *corev1.Pod, w *kueue.Workload) bool {
	if p.Labels[controller.WorkloadLabel] == w.Name {
		return true
	}
	return slices.ContainsFunc(w.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.UID == p.UID || slices.ContainsFunc(p.OwnerReferences, func(of metav1.OwnerReference) bool { return of.UID == o.UID })
	})
}

func uses(p *corev1.Pod, claim string) bool {
	if e := p.Status.ExtendedResourceClaimStatus; e != nil && e.ResourceClaimName == claim {
		return true
	}
	return slices.ContainsFunc(p.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool {
		return c.ResourceClaimName != nil && *c.ResourceClaimName == claim
	}) ||
		slices.ContainsFunc(p.Status.ResourceClaimStatuses, func(c corev1.PodResourceClaimStatus) bool {
			return c.ResourceClaimName != nil && *c.ResourceClaimName == claim
		})
}
