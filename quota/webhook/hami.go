package webhook

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/sluice-gpu/sluice/quota/hami"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

// Templates makes the claim templates that limits of pods become.
type Templates interface {
	// Cards are the memory sizes of the cards that there are, in bytes.
	Cards() []int64
	// Template returns the name of a ResourceClaimTemplate of exactly this
	// content; one is made if need be, unless it is a dry run.
	Template(ctx context.Context, namespace string, spec *resourceapi.ResourceClaimSpec, dry bool) (string, error)
}

// translating turns HAMi-style limits of a pod into claims, beside what the next
// handler does. A pod whose limits make no sense is refused: no node could ever
// serve them as they are.
func translating(templates Templates, next admission.HandlerFunc) admission.HandlerFunc {
	return func(ctx context.Context, req admission.Request) admission.Response {
		response := next(ctx, req)
		if !response.Allowed || req.Operation != admissionv1.Create {
			return response
		}
		pod := &corev1.Pod{}
		if err := json.Unmarshal(req.Object.Raw, pod); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		if !hami.Asked(&pod.Spec) {
			return response
		}
		t, err := hami.Translate(&pod.Spec, pod.Annotations, pricing.DriverName, templates.Cards())
		if err != nil {
			return admission.Denied(err.Error())
		}
		patch, err := translation(ctx, templates, req, pod, t)
		if err != nil {
			return admission.Errored(http.StatusInternalServerError, err)
		}
		response.Patches = append(response.Patches, patch...)
		return response.WithWarnings(t.Warnings...)
	}
}

func translation(ctx context.Context, templates Templates, req admission.Request, pod *corev1.Pod, t *hami.Translation) ([]jsonpatch.JsonPatchOperation, error) {
	var patch []jsonpatch.JsonPatchOperation
	for _, at := range t.Containers {
		c := at.In(&pod.Spec)
		for _, list := range []struct {
			field string
			of    corev1.ResourceList
		}{{"limits", c.Resources.Limits}, {"requests", c.Resources.Requests}} {
			for _, name := range hami.Limits(list.of) {
				patch = append(patch, jsonpatch.NewOperation("remove", pointer(path(at, "resources", list.field, string(name))...), nil))
			}
		}
	}
	claims := len(pod.Spec.ResourceClaims)
	for i := range t.Claims {
		claim := &t.Claims[i]
		name, err := templates.Template(ctx, req.Namespace, &claim.Spec, ptr.Deref(req.DryRun, false))
		if err != nil {
			return nil, err
		}
		patch = append(patch, appendTo(&claims, map[string]any{"name": claim.Name, "resourceClaimTemplateName": name}, "spec", "resourceClaims"))
		for _, at := range claim.Containers {
			n := len(at.In(&pod.Spec).Resources.Claims)
			patch = append(patch, appendTo(&n, map[string]any{"name": claim.Name}, path(at, "resources", "claims")...))
		}
	}
	return patch, nil
}

// appendTo adds to a list of n items, which is made if it is empty as yet.
func appendTo(n *int, value any, path ...string) jsonpatch.JsonPatchOperation {
	*n++
	if *n == 1 {
		return add([]any{value}, path...)
	}
	return add(value, append(path, "-")...)
}

// path is the path of a container's field.
func path(at hami.Container, field ...string) []string {
	list := "containers"
	if at.Init {
		list = "initContainers"
	}
	return append([]string{"spec", list, strconv.Itoa(at.Index)}, field...)
}
