// Package webhook closes the gate: it changes objects as they are made, so that
// nothing governed by the budget runs before it is admitted.
//
// It is a convenience, not a guarantee. Its failure policy is Ignore, because
// pods of a whole cluster must not depend on it; what comes in while it is down
// is adopted by the controller, and gets no device before it has a ticket, which
// the policies inside the API server see to.
//
// Besides, it refuses claims with mistakes that nobody else would name: see
// validate.
//
// Few objects are changed here, chosen by match conditions: pods and jobs with a
// queue label; Deployments and StatefulSets with one, which their pods get; and
// ResourceClaims made by the scheduler for extended resources, which are born with
// their ticket because the scheduler allocates them at once.
package webhook

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/jobs"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

// Paths under which the handlers are served.
const (
	PodPath   = "/mutate-pod"
	JobPath   = "/mutate-job"
	ClaimPath = "/mutate-claim"
	// ScalePath is for what only makes pods, as many as it is told.
	ScalePath = "/mutate-scale"
	CheckPath = "/validate"
)

// Tickets gives the scheduler's own claims their ticket.
type Tickets interface {
	BornWith(claim *resourceapi.ResourceClaim) (*ticket.Ticket, error)
}

// Jobs know which kinds of jobs are governed, and which jobs.
type Jobs interface {
	Kinds() *jobs.Table
	// QueueLabel is the label that names a queue, QueueOf the queue that a job names
	// by it, "" for none.
	QueueLabel() string
	QueueOf(kind *jobs.Kind, job *unstructured.Unstructured) string
	// Governed says whether what a job is made of belongs to it or a job above it.
	Governed(owner *metav1.OwnerReference) bool
	// Unnamed says what becomes of a job that names no queue: the one that it is
	// put into, "" for none, and whether it is suspended.
	Unnamed(ctx context.Context, namespace string) (queue string, suspend bool)
	// AsksDevices says whether a pod asks for devices that are made or found for it
	// alone, and may cost quota.
	AsksDevices(pod *corev1.Pod, namespace string) bool
	// SharedQueue is the queue that a claim by name which a pod uses has on it, ""
	// for none.
	SharedQueue(ctx context.Context, pod *corev1.Pod, namespace string) string
}

// Backend is what the handlers ask of the controller.
type Backend interface {
	Tickets
	Templates
	Checker
	Jobs
}

// Handlers are the webhook's handlers by path.
func Handlers(backend Backend, schedulerUsers []string) map[string]http.Handler {
	all := map[string]admission.HandlerFunc{
		PodPath:   queueing(backend, apart(backend, translating(backend, gatePods(backend)))),
		JobPath:   queueing(backend, apart(backend, suspendJobs(backend))),
		ClaimPath: claims(backend, schedulerUsers),
		ScalePath: labelPods(backend),
		CheckPath: queueing(backend, validate(backend)),
	}
	served := map[string]http.Handler{}
	for path, f := range all {
		served[path] = &admission.Webhook{Handler: f}
	}
	return served
}

// gatePods gates pods that name a queue, and those of a governed job that cannot
// be suspended. One that names its node already cannot be gated: it will be
// adopted.
func gatePods(known Jobs) admission.HandlerFunc {
	return func(ctx context.Context, req admission.Request) admission.Response {
		if req.Operation != admissionv1.Create {
			return admission.Allowed("")
		}
		p := &corev1.Pod{}
		if err := json.Unmarshal(req.Object.Raw, p); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		if p.Spec.NodeName != "" || controller.HasGate(p) {
			return admission.Allowed("")
		}
		var patch []jsonpatch.JsonPatchOperation
		if !governed(p, known) {
			queue, hold := unnamedPod(ctx, p, req.Namespace, known)
			switch {
			case !hold:
				return admission.Allowed("")
			case queue != "":
				patch = put(p.Labels, queue, "metadata", "labels", known.QueueLabel())
			default:
				patch = put(p.Annotations, "true", "metadata", "annotations", jobs.HeldAnnotation)
			}
		}
		gate := map[string]any{"name": controller.Gate}
		if len(p.Spec.SchedulingGates) > 0 {
			return admission.Patched("", append(patch, add(gate, "spec", "schedulingGates", "-"))...)
		}
		return admission.Patched("", append(patch, add([]any{gate}, "spec", "schedulingGates"))...)
	}
}

// unnamedPod is what becomes of a pod that names no queue. One that uses a claim
// which has a queue is put into that: the claim's devices are on nodes of its
// flavor alone, and only what has a workload is sent there. Others that ask for
// devices wait for a queue as jobs do. Pods of jobs follow their job.
func unnamedPod(ctx context.Context, p *corev1.Pod, namespace string, known Jobs) (queue string, hold bool) {
	if owner := metav1.GetControllerOf(p); owner != nil && known.Kinds().Find(owner.APIVersion, owner.Kind) != nil {
		return "", false
	}
	if queue := known.SharedQueue(ctx, p, namespace); queue != "" {
		return queue, true
	}
	if queue, hold = known.Unnamed(ctx, namespace); !hold || !known.AsksDevices(p, namespace) {
		return "", false
	}
	return queue, true
}

// put adds a key to a map that may not be there.
func put(to map[string]string, value string, path ...string) []jsonpatch.JsonPatchOperation {
	if to == nil {
		last := len(path) - 1
		return []jsonpatch.JsonPatchOperation{add(map[string]any{path[last]: value}, path[:last]...)}
	}
	return []jsonpatch.JsonPatchOperation{add(value, path...)}
}

func governed(p *corev1.Pod, known Jobs) bool {
	if p.Labels[known.QueueLabel()] != "" {
		return true
	}
	owner := metav1.GetControllerOf(p)
	if owner == nil {
		return false
	}
	kind := known.Kinds().Find(owner.APIVersion, owner.Kind)
	return kind != nil && !kind.CanSuspend() && known.Governed(owner)
}

// suspendJobs suspends jobs that name a queue. What a governed job is made of is
// left to its controller.
func suspendJobs(known Jobs) admission.HandlerFunc {
	return func(ctx context.Context, req admission.Request) admission.Response {
		if req.Operation != admissionv1.Create {
			return admission.Allowed("")
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(req.Object.Raw); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		kind := known.Kinds().Find(u.GetAPIVersion(), u.GetKind())
		if kind == nil {
			return admission.Allowed("")
		}
		owner := metav1.GetControllerOf(u)
		if owner != nil && known.Governed(owner) {
			return admission.Allowed("")
		}
		var patch []jsonpatch.JsonPatchOperation
		if known.QueueOf(kind, u) == "" {
			queue, suspend := known.Unnamed(ctx, req.Namespace)
			if !suspend || owner != nil && known.Kinds().Find(owner.APIVersion, owner.Kind) != nil {
				return admission.Allowed("")
			}
			if queue != "" {
				patch = addDeep(u, queue, []string{"metadata", "labels", known.QueueLabel()})
			} else if !kind.CanSuspend() || kind.Suspended(u) {
				return admission.Allowed("")
			} else {
				return admission.Patched("", holdBack(kind, u)...)
			}
		}
		if err := kind.Check(u); err != nil {
			return admission.Denied("it names a queue, but cannot be governed: " + err.Error())
		}
		if kind.CanSuspend() && !kind.Suspended(u) {
			patch = append(patch, holdBack(kind, u)...)
		}
		return admission.Patched("", patch...)
	}
}

// labelPods puts the label that names a queue of a Deployment or StatefulSet onto
// its pods, each of which is queued by itself. The label of the object wins over
// another one on its template.
func labelPods(known Jobs) admission.HandlerFunc {
	return func(_ context.Context, req admission.Request) admission.Response {
		if req.Operation != admissionv1.Create && req.Operation != admissionv1.Update {
			return admission.Allowed("")
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(req.Object.Raw); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		label := known.QueueLabel()
		path := []string{"spec", "template", "metadata", "labels", label}
		queue := u.GetLabels()[label]
		if now, _, _ := unstructured.NestedString(u.Object, path...); queue == "" || now == queue || u.GetDeletionTimestamp() != nil {
			return admission.Allowed("")
		}
		return admission.Patched("", addDeep(u, queue, path)...)
	}
}

// holdBack suspends a job, and notes that it was not its user who did.
func holdBack(kind *jobs.Kind, u *unstructured.Unstructured) []jsonpatch.JsonPatchOperation {
	return append(addDeep(u, true, kind.SuspendPath()), addDeep(u, "true", []string{"metadata", "annotations", jobs.HeldAnnotation})...)
}

// claims puts tickets on claims that the scheduler makes for extended resources,
// and takes them off claims that come from a template.
func claims(tickets Tickets, schedulerUsers []string) admission.HandlerFunc {
	return func(ctx context.Context, req admission.Request) admission.Response {
		if req.Operation != admissionv1.Create {
			return admission.Allowed("")
		}
		c := &resourceapi.ResourceClaim{}
		if err := json.Unmarshal(req.Object.Raw, c); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		var patch []jsonpatch.JsonPatchOperation
		for _, key := range slices.Sorted(maps.Keys(c.Annotations)) {
			if strings.HasPrefix(key, ticket.Prefix) {
				patch = append(patch, jsonpatch.NewOperation("remove", pointer("metadata", "annotations", key), nil))
			}
		}
		c.Annotations, _ = ticket.Strip(c.Annotations)
		if slices.Contains(schedulerUsers, req.UserInfo.Username) && c.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true" {
			t, err := tickets.BornWith(c)
			if err != nil {
				log.FromContext(ctx).Error(err, "no ticket for a claim of the scheduler", "namespace", req.Namespace, "claim", c.GenerateName)
			}
			if t != nil {
				annotations := t.Annotations()
				for _, key := range slices.Sorted(maps.Keys(annotations)) {
					patch = append(patch, add(annotations[key], "metadata", "annotations", key))
				}
			}
		}
		return admission.Patched("", patch...)
	}
}

// Patches are written by hand, not found by comparing: an object that goes
// through the types of this program loses the fields that a newer API server
// knows.

// addDeep adds a field of an object together with the parents that it lacks.
func addDeep(u *unstructured.Unstructured, value any, path []string) []jsonpatch.JsonPatchOperation {
	for i := 1; i < len(path); i++ {
		if _, there, err := unstructured.NestedMap(u.Object, path[:i]...); err == nil && there {
			continue
		}
		for j := len(path) - 1; j >= i; j-- {
			value = map[string]any{path[j]: value}
		}
		return []jsonpatch.JsonPatchOperation{add(value, path[:i]...)}
	}
	return []jsonpatch.JsonPatchOperation{add(value, path...)}
}

func add(value any, path ...string) jsonpatch.JsonPatchOperation {
	return jsonpatch.NewOperation("add", pointer(path...), value)
}

// pointer is a path as RFC 6901 writes it.
func pointer(path ...string) string {
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	text := ""
	for _, p := range path {
		text += "/" + escape.Replace(p)
	}
	return text
}
