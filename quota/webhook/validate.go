package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	driverconfig "github.com/sluice-gpu/sluice/driver/config"
)

// Checker knows the devices and the queues that there are.
type Checker interface {
	// Check says what is wrong with a claim, and what may be meant otherwise.
	Check(ctx context.Context, claim *resourceapi.DeviceClaim, at *field.Path) (field.ErrorList, []string)
	// QueueLabel is the label that names a queue.
	QueueLabel() string
	// HasLocalQueue says whether a namespace has a LocalQueue of a name. It may
	// say so where it cannot be known.
	HasLocalQueue(ctx context.Context, namespace, name string) bool
	Budget
}

// validate refuses claims, claim templates, device classes and objects of the
// budget with mistakes that the API server lets pass and that would show only when
// nothing can be allocated or admitted, or a container does not start.
func validate(checker Checker) admission.HandlerFunc {
	return func(ctx context.Context, req admission.Request) admission.Response {
		if req.Kind.Group == kueue.SchemeGroupVersion.Group {
			return validateBudget(ctx, checker, req)
		}
		var mistakes field.ErrorList
		var warnings []string
		kind := schema.GroupKind{Group: req.Kind.Group, Kind: req.Kind.Kind}
		name := req.Name
		switch req.Kind.Kind {
		case "ResourceClaim":
			o := &resourceapi.ResourceClaim{}
			if err := json.Unmarshal(req.Object.Raw, o); err != nil {
				return admission.Errored(http.StatusBadRequest, err)
			}
			mistakes, warnings = checkClaim(ctx, checker, &o.Spec.Devices, field.NewPath("spec", "devices"))
			name = nameOf(&o.ObjectMeta)
		case "ResourceClaimTemplate":
			o := &resourceapi.ResourceClaimTemplate{}
			if err := json.Unmarshal(req.Object.Raw, o); err != nil {
				return admission.Errored(http.StatusBadRequest, err)
			}
			mistakes, warnings = checkClaim(ctx, checker, &o.Spec.Spec.Devices, field.NewPath("spec", "spec", "devices"))
			name = nameOf(&o.ObjectMeta)
		case "DeviceClass":
			o := &resourceapi.DeviceClass{}
			if err := json.Unmarshal(req.Object.Raw, o); err != nil {
				return admission.Errored(http.StatusBadRequest, err)
			}
			mistakes = driverconfig.ValidateClassConfig(o.Spec.Config, field.NewPath("spec", "config"))
			name = nameOf(&o.ObjectMeta)
		}
		if len(mistakes) == 0 {
			return admission.Allowed("").WithWarnings(warnings...)
		}
		status := apierrors.NewInvalid(kind, name, mistakes).Status()
		return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: false, Result: &status}}
	}
}

func checkClaim(ctx context.Context, checker Checker, claim *resourceapi.DeviceClaim, at *field.Path) (field.ErrorList, []string) {
	mistakes, warnings := checker.Check(ctx, claim, at)
	return append(mistakes, driverconfig.ValidateClaimConfig(claim.Config, at.Child("config"))...), warnings
}

func nameOf(m *metav1.ObjectMeta) string {
	if m.Name == "" {
		return m.GenerateName
	}
	return m.Name
}

// queueing warns of a queue label that names no LocalQueue of the namespace.
// It is no mistake: the queue may be made later, and is waited for.
func queueing(checker Checker, next admission.HandlerFunc) admission.HandlerFunc {
	return func(ctx context.Context, req admission.Request) admission.Response {
		response := next(ctx, req)
		if !response.Allowed || req.Operation != admissionv1.Create {
			return response
		}
		o := &metav1.PartialObjectMetadata{}
		if err := json.Unmarshal(req.Object.Raw, o); err != nil {
			return response
		}
		queue, labelled := o.Labels[checker.QueueLabel()]
		switch {
		case labelled && queue == "":
			return response.WithWarnings(fmt.Sprintf("label %s is empty: no budget governs this", checker.QueueLabel()))
		case labelled && !checker.HasLocalQueue(ctx, req.Namespace, queue):
			return response.WithWarnings(fmt.Sprintf("namespace %s has no LocalQueue %q: it waits until there is one", req.Namespace, queue))
		}
		return response
	}
}
