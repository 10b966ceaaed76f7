package webhook

import (
	"context"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/sluice-gpu/sluice/quota/controller"
)

// oneQueue knows the LocalQueue q, and warns of every claim.
type oneQueue struct{}

func (oneQueue) Check(context.Context, *resourceapi.DeviceClaim, *field.Path) (field.ErrorList, []string) {
	return nil, []string{"be careful"}
}
func (oneQueue) CohortParents(context.Context) map[string]string {
	return map[string]string{"b": "c", "c": "a"}
}
func (oneQueue) Missing(_ context.Context, flavors []string, queue string) []string {
	var all []string
	for _, f := range flavors {
		if f == "absent" {
			all = append(all, "ResourceFlavor absent")
		}
	}
	if queue == "absent" {
		all = append(all, "ClusterQueue absent")
	}
	return all
}
func (oneQueue) Priced() []string {
	return []string{"nvidia.com/gpu", "nvidia.com/gpu-memory", "nvidia.com/gpu-core-percent"}
}
func (oneQueue) QueueLabel() string                                   { return controller.QueueLabel }
func (oneQueue) HasLocalQueue(_ context.Context, _, name string) bool { return name == "q" }

func TestQueueLabelsThatLeadNowhereAreWarnedOf(t *testing.T) {
	for labels, want := range map[string]string{
		`{}`:                                     "",
		`{"kueue.x-k8s.io/queue-name":"q"}`:      "",
		`{"kueue.x-k8s.io/queue-name":""}`:       "is empty",
		`{"kueue.x-k8s.io/queue-name":"absent"}`: `no LocalQueue "absent"`,
	} {
		response := queueing(oneQueue{}, gatePods(someJobs{}))(context.Background(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			Operation: admissionv1.Create, Namespace: "team",
			Object: runtime.RawExtension{Raw: []byte(`{"metadata":{"labels":` + labels + `},"spec":{"containers":[]}}`)},
		}})
		got := strings.Join(response.Warnings, "\n")
		if !response.Allowed || (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: allowed %v, %q, want %q", labels, response.Allowed, got, want)
		}
	}
}

func TestMistakesAreInvalidAndWarningsPass(t *testing.T) {
	ask := func(raw string) admission.Response {
		return validate(oneQueue{})(context.Background(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			Operation: admissionv1.Create, Kind: metav1.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: "ResourceClaim"},
			Object: runtime.RawExtension{Raw: []byte(raw)},
		}})
	}
	if r := ask(`{"metadata":{"name":"c"},"spec":{}}`); !r.Allowed || len(r.Warnings) != 1 {
		t.Errorf("%+v", r)
	}
	r := ask(`{"metadata":{"name":"c"},"spec":{"devices":{"config":[{"opaque":{"driver":"gpu.sluice.dev","parameters":{"kind":"X"}}}]}}}`)
	if r.Allowed || r.Result.Code != 422 || !strings.Contains(r.Result.Message, "spec.devices.config[0].opaque.parameters") {
		t.Errorf("%+v", r.Result)
	}
	if r := ask(`{"spec":{"devices":{"config":[{"opaque":{"driver":"other.example.com","parameters":{"kind":"X"}}}]}}}`); !r.Allowed {
		t.Errorf("parameters for another driver: %+v", r.Result)
	}
}
