package webhook

import (
	"context"
	"net/http"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/jobs"
)

// Where a manager of Kueue admits, its webhooks see the same objects. In a namespace
// that has a LocalQueue named default they put Kueue's label on every job and pod
// without one, and on pods a gate and a finalizer: its integrations would then make
// a Workload of their own for what already has one here, and each would stop what
// the other starts. So what names a queue of ours, and pods that were born behind
// our gate, are rid of Kueue's marks as they are made. The API server asks once more
// when another webhook has changed something after this one
// (reinvocationPolicy), so the order of the two does not matter.

// What Kueue's webhooks mark objects with, by its public API and its constants.
const (
	kueueManaged = "kueue.x-k8s.io/managed" // a label and a finalizer of pods
	kueueRole    = "kueue.x-k8s.io/role-hash"
	multiKueue   = "kueue.x-k8s.io/multikueue" // in spec.managedBy of jobs
)

// kueueGates are those that Kueue's webhook closes on pods.
var kueueGates = []string{"kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"}

// apart keeps what is governed here and what Kueue's integrations govern apart.
func apart(known Jobs, next admission.HandlerFunc) admission.HandlerFunc {
	return func(ctx context.Context, req admission.Request) admission.Response {
		if known.QueueLabel() == controller.QueueLabel || req.Operation != admissionv1.Create {
			return next(ctx, req)
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(req.Object.Raw); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		if !isOurs(known, u) {
			if u.GetLabels()[controller.QueueLabel] != "" {
				// Kueue's, and Kueue's alone.
				return admission.Allowed("")
			}
			return next(ctx, req)
		}
		patch := rid(u)
		if len(patch) == 0 {
			return next(ctx, req)
		}
		raw, err := u.MarshalJSON()
		if err != nil {
			return admission.Errored(http.StatusInternalServerError, err)
		}
		req.Object.Raw = raw
		response := next(ctx, req)
		if response.Allowed {
			response.Patches = append(patch, response.Patches...)
		}
		return response
	}
}

// isOurs says whether an object names a queue by our label, or is made by a job
// that was admitted here: then its pods are behind our gate, which nobody opens for
// those that only look like it.
func isOurs(known Jobs, u *unstructured.Unstructured) bool {
	if u.GetKind() == "Pod" {
		gates, _, _ := unstructured.NestedSlice(u.Object, "spec", "schedulingGates")
		return u.GetLabels()[known.QueueLabel()] != "" || u.GetLabels()[controller.WorkloadLabel] != "" && slices.ContainsFunc(gates, isGate(controller.Gate))
	}
	kind := known.Kinds().Find(u.GetAPIVersion(), u.GetKind())
	if kind == nil {
		return false
	}
	if known.QueueOf(kind, u) != "" {
		return true
	}
	sets, err := kind.PodSets(u)
	return err == nil && len(sets) > 0 && !slices.ContainsFunc(sets, func(s jobs.PodSet) bool {
		return s.Template.Labels[controller.WorkloadLabel] == "" || !slices.ContainsFunc(s.Template.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == controller.Gate })
	})
}

// isGate tells gates of some names.
func isGate(names ...string) func(any) bool {
	return func(gate any) bool {
		g, _ := gate.(map[string]any)
		name, _ := g["name"].(string)
		return slices.Contains(names, name)
	}
}

// rid takes Kueue's marks off an object, and says how.
func rid(u *unstructured.Unstructured) (patch []jsonpatch.JsonPatchOperation) {
	drop := func(path ...string) {
		if _, there, err := unstructured.NestedFieldNoCopy(u.Object, path...); !there || err != nil {
			return
		}
		unstructured.RemoveNestedField(u.Object, path...)
		patch = append(patch, jsonpatch.NewOperation("remove", pointer(path...), nil))
	}
	drop("metadata", "labels", controller.QueueLabel)
	if by, _, _ := unstructured.NestedString(u.Object, "spec", "managedBy"); by == multiKueue {
		drop("spec", "managedBy")
	}
	if u.GetKind() != "Pod" {
		return patch
	}
	drop("metadata", "labels", kueueManaged)
	drop("metadata", "annotations", kueueRole)
	keep := func(is func(any) bool, path ...string) {
		list, _, err := unstructured.NestedSlice(u.Object, path...)
		if err != nil || !slices.ContainsFunc(list, is) {
			return
		}
		list = slices.DeleteFunc(list, is)
		if len(list) == 0 {
			drop(path...)
			return
		}
		if unstructured.SetNestedSlice(u.Object, list, path...) == nil {
			patch = append(patch, add(list, path...))
		}
	}
	keep(isGate(kueueGates...), "spec", "schedulingGates")
	keep(func(f any) bool { return f == kueueManaged }, "metadata", "finalizers")
	return patch
}
