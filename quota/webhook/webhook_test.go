package webhook

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/sluice-gpu/sluice/quota/hami"
	"github.com/sluice-gpu/sluice/quota/jobs"
	"github.com/sluice-gpu/sluice/quota/pricing"
	"github.com/sluice-gpu/sluice/quota/ticket"

	"github.com/sluice-gpu/sluice/quota/controller"
)

// oneTicket gives every claim the same ticket.
type oneTicket struct{}

func (oneTicket) BornWith(*resourceapi.ResourceClaim) (*ticket.Ticket, error) {
	return &ticket.Ticket{Workload: "w", Price: pricing.Price{Devices: 1}, Pools: []string{"n1"}}, nil
}

// someJobs governs jobs below those named so.
type someJobs map[string]bool

func (someJobs) Kinds() *jobs.Table {
	t, _ := jobs.NewTable()
	return t
}

func (someJobs) QueueLabel() string { return controller.QueueLabel }
func (someJobs) QueueOf(k *jobs.Kind, job *unstructured.Unstructured) string {
	if q := job.GetLabels()[controller.QueueLabel]; q != "" {
		return q
	}
	return k.TemplateLabel(job, controller.QueueLabel)
}
func (s someJobs) Unnamed(_ context.Context, namespace string) (string, bool) {
	return map[string]string{"defaults": "default"}[namespace], namespace == "defaults" || namespace == "managed"
}

// AsksDevices is asked of pods whose containers name something.
func (someJobs) AsksDevices(pod *corev1.Pod, _ string) bool {
	return len(pod.Spec.Containers) > 0 && pod.Spec.Containers[0].Name == "gpu"
}

// SharedQueue has one claim with a queue.
func (someJobs) SharedQueue(_ context.Context, pod *corev1.Pod, _ string) string {
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.ResourceClaimName != nil && *ref.ResourceClaimName == "governed" {
			return "claims"
		}
	}
	return ""
}

func (s someJobs) Governed(owner *metav1.OwnerReference) bool { return s[owner.Name] }

// patches are what a handler changes of an object, as JSON; "" for nothing.
func patches(t *testing.T, h admission.HandlerFunc, user, object string) string {
	t.Helper()
	response := h(context.Background(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Create,
		UserInfo:  authenticationv1.UserInfo{Username: user},
		Object:    runtime.RawExtension{Raw: []byte(object)},
	}})
	if !response.Allowed {
		t.Fatalf("refused: %v", response.Result)
	}
	if len(response.Patches) == 0 {
		return ""
	}
	b, err := json.Marshal(response.Patches)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestGatesAreClosedAtCreation(t *testing.T) {
	const scheduler, keeper = "system:kube-scheduler", "system:serviceaccount:kube-system:resource-claim-controller"
	claim := claims(oneTicket{}, []string{scheduler})
	known := someJobs{"governed": true}
	pod, job, scale := gatePods(known), suspendJobs(known), labelPods(known)
	for _, tc := range []struct {
		name    string
		handler admission.HandlerFunc
		user    string
		object  string
		changes string
	}{
		{"a labelled pod is gated", pod, "u", `{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"q"}},"spec":{"containers":[]}}`, "quota.sluice.dev/admission"},
		{"a pod on a node of its own choice cannot be", pod, "u", `{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"q"}},"spec":{"nodeName":"n","containers":[]}}`, ""},
		{"an unlabelled pod is left alone", pod, "u", `{"metadata":{},"spec":{"containers":[]}}`, ""},
		{"a pod of a governed job without suspension is gated", pod, "u", `{"metadata":{"ownerReferences":[{"apiVersion":"batch.volcano.sh/v1alpha1","kind":"Job","name":"governed","controller":true}]},"spec":{"containers":[]}}`, "quota.sluice.dev/admission"},
		{"one of another such job is not", pod, "u", `{"metadata":{"ownerReferences":[{"apiVersion":"batch.volcano.sh/v1alpha1","kind":"Job","name":"other","controller":true}]},"spec":{"containers":[]}}`, ""},
		{"a job is suspended", job, "u", `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"j","labels":{"kueue.x-k8s.io/queue-name":"q"}},"spec":{"template":{"spec":{}}}}`, `/spec/suspend`},
		{"a job with the label on its template too", job, "u", `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"j"},"spec":{"template":{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"q"}},"spec":{}}}}`, `/spec/suspend`},
		{"a job of another kind is suspended where that kind wants it", job, "u", `{"apiVersion":"kubeflow.org/v1","kind":"PyTorchJob","metadata":{"name":"j","labels":{"kueue.x-k8s.io/queue-name":"q"}},"spec":{"pytorchReplicaSpecs":{"Master":{"template":{"spec":{}}}}}}`, `{"op":"add","path":"/spec/runPolicy","value":{"suspend":true}}`},
		{"a job without a queue is left alone", job, "u", `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"j"},"spec":{"template":{"spec":{}}}}`, ""},
		{"a job of a governed one is left alone", job, "u", `{"apiVersion":"ray.io/v1","kind":"RayCluster","metadata":{"name":"j","labels":{"kueue.x-k8s.io/queue-name":"q"},"ownerReferences":[{"apiVersion":"ray.io/v1","kind":"RayJob","name":"governed","controller":true}]},"spec":{}}`, ""},
		{"a kind that cannot be suspended is left alone", job, "u", `{"apiVersion":"batch.volcano.sh/v1alpha1","kind":"Job","metadata":{"name":"j","labels":{"kueue.x-k8s.io/queue-name":"q"}},"spec":{"tasks":[{"name":"t","template":{"spec":{}}}]}}`, ""},
		{"a suspended job is left alone", job, "u", `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"j","labels":{"kueue.x-k8s.io/queue-name":"q"}},"spec":{"suspend":true,"template":{"spec":{}}}}`, ""},
		{"a Deployment's label is put on its pods", scale, "u", `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","labels":{"kueue.x-k8s.io/queue-name":"q"}},"spec":{"template":{"metadata":{"labels":{"app":"d"}}}}}`, `[{"op":"add","path":"/spec/template/metadata/labels/kueue.x-k8s.io~1queue-name","value":"q"}]`},
		{"it wins over another on its template", scale, "u", `{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"s","labels":{"kueue.x-k8s.io/queue-name":"q"}},"spec":{"template":{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"other"}}}}}`, `"value":"q"`},
		{"nothing is to be done where it is there", scale, "u", `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","labels":{"kueue.x-k8s.io/queue-name":"q"}},"spec":{"template":{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"q"}}}}}`, ""},
		{"a Deployment without the label is left alone", scale, "u", `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"template":{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"q"}}}}}`, ""},
		{"the scheduler's claim gets its ticket", claim, scheduler, `{"metadata":{"annotations":{"resource.kubernetes.io/extended-resource-claim":"true"}},"spec":{}}`, "ticket-pools"},
		{"nobody else's does", claim, "u", `{"metadata":{"annotations":{"resource.kubernetes.io/extended-resource-claim":"true"}},"spec":{}}`, ""},
		{"a ticket from a template is taken off", claim, keeper, `{"metadata":{"annotations":{"note":"x","quota.sluice.dev/ticket":"forged"}},"spec":{}}`, "remove"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := patches(t, tc.handler, tc.user, tc.object)
			if (got == "") != (tc.changes == "") || !strings.Contains(got, tc.changes) {
				t.Errorf("changes %q, want %q", got, tc.changes)
			}
		})
	}
}

func TestAJobThatNamesAQueueAndCannotBeGovernedIsRefused(t *testing.T) {
	for name, object := range map[string]string{
		"spec.shutdownAfterJobFinishes: true": `{"apiVersion":"ray.io/v1","kind":"RayJob","metadata":{"name":"j","labels":{"kueue.x-k8s.io/queue-name":"q"}},"spec":{"rayClusterSpec":{"headGroupSpec":{"template":{}}}}}`,
		"has 0 sets of pods":                  `{"apiVersion":"kubeflow.org/v1","kind":"PyTorchJob","metadata":{"name":"j","labels":{"kueue.x-k8s.io/queue-name":"q"}},"spec":{}}`,
	} {
		response := suspendJobs(someJobs{})(context.Background(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: []byte(object)},
		}})
		if response.Allowed || !strings.Contains(response.Result.Message, name) {
			t.Errorf("%s: allowed %v, %v", name, response.Allowed, response.Result)
		}
	}
}

func TestJobsWithoutAQueueAreDefaultedOrHeld(t *testing.T) {
	const bare, owned = `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"j"},"spec":{"template":{"spec":{}}}}`,
		`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"j","ownerReferences":[{"apiVersion":"jobset.x-k8s.io/v1alpha2","kind":"JobSet","name":"s","controller":true}]},"spec":{"template":{"spec":{}}}}`
	for _, tc := range []struct{ namespace, object, want string }{
		{"defaults", bare, `[{"op":"add","path":"/metadata/labels","value":{"kueue.x-k8s.io/queue-name":"default"}},{"op":"add","path":"/spec/suspend","value":true},{"op":"add","path":"/metadata/annotations","value":{"quota.sluice.dev/held":"true"}}]`},
		{"managed", bare, `[{"op":"add","path":"/spec/suspend","value":true},{"op":"add","path":"/metadata/annotations","value":{"quota.sluice.dev/held":"true"}}]`},
		{"managed", owned, `null`},
		{"other", bare, `null`},
	} {
		response := suspendJobs(someJobs{})(context.Background(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			Operation: admissionv1.Create, Namespace: tc.namespace, Object: runtime.RawExtension{Raw: []byte(tc.object)},
		}})
		got, err := json.Marshal(response.Patches)
		if err != nil || string(got) != tc.want {
			t.Errorf("%s: %s, %v, want %s", tc.namespace, got, err, tc.want)
		}
	}
}

func TestPodsThatAskForDevicesWithoutAQueueAreDefaultedOrHeld(t *testing.T) {
	const gate = `{"op":"add","path":"/spec/schedulingGates","value":[{"name":"quota.sluice.dev/admission"}]}`
	const asks, plain = `{"metadata":{"labels":{"app":"a"}},"spec":{"containers":[{"name":"gpu"}]}}`, `{"metadata":{},"spec":{"containers":[{"name":"c"}]}}`
	const owned = `{"metadata":{"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"j","controller":true}]},"spec":{"containers":[{"name":"gpu"}]}}`
	const deployed = `{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","controller":true}]},"spec":{"containers":[{"name":"gpu"}]}}`
	shares := func(metadata, claim string) string {
		return `{"metadata":{` + metadata + `},"spec":{"containers":[{"name":"c"}],"resourceClaims":[{"name":"gpu","resourceClaimName":"` + claim + `"}]}}`
	}
	for _, tc := range []struct{ namespace, object, want string }{
		{"defaults", asks, `[{"op":"add","path":"/metadata/labels/kueue.x-k8s.io~1queue-name","value":"default"},` + gate + `]`},
		{"defaults", deployed, `[{"op":"add","path":"/metadata/labels","value":{"kueue.x-k8s.io/queue-name":"default"}},` + gate + `]`},
		{"managed", asks, `[{"op":"add","path":"/metadata/annotations","value":{"quota.sluice.dev/held":"true"}},` + gate + `]`},
		{"managed", plain, `null`},
		{"managed", owned, `null`},
		{"other", asks, `null`},
		{"other", shares("", "governed"), `[{"op":"add","path":"/metadata/labels","value":{"kueue.x-k8s.io/queue-name":"claims"}},` + gate + `]`},
		{"other", shares("", "free"), `null`},
		{"other", shares(`"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"j","controller":true}]`, "governed"), `null`},
	} {
		response := gatePods(someJobs{})(context.Background(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			Operation: admissionv1.Create, Namespace: tc.namespace, Object: runtime.RawExtension{Raw: []byte(tc.object)},
		}})
		got, err := json.Marshal(response.Patches)
		if err != nil || string(got) != tc.want {
			t.Errorf("%s: %s, %v, want %s", tc.namespace, got, err, tc.want)
		}
	}
}

func TestFieldsOfANewerAPIServerAreLeftAlone(t *testing.T) {
	claim := claims(oneTicket{}, []string{"scheduler"})
	pod, job := gatePods(someJobs{}), suspendJobs(someJobs{})
	for name, tc := range map[string]struct {
		handler  admission.HandlerFunc
		object   string
		contains string
	}{
		"pod":                {pod, `{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"q"},"newer":{"a":1}},"spec":{"containers":[{"newer":true}],"newer":[1]}}`, `[{"op":"add","path":"/spec/schedulingGates","value":[{"name":"quota.sluice.dev/admission"}]}]`},
		"pod with a gate":    {pod, `{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"q"}},"spec":{"schedulingGates":[{"name":"x","newer":1}]}}`, `[{"op":"add","path":"/spec/schedulingGates/-","value":{"name":"quota.sluice.dev/admission"}}]`},
		"job":                {job, `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"j","labels":{"kueue.x-k8s.io/queue-name":"q"}},"spec":{"newer":1,"template":{"spec":{}}}}`, `[{"op":"add","path":"/spec/suspend","value":true},{"op":"add","path":"/metadata/annotations","value":{"quota.sluice.dev/held":"true"}}]`},
		"claim":              {claim, `{"metadata":{"annotations":{"resource.kubernetes.io/extended-resource-claim":"true"},"newer":1},"spec":{"newer":1}}`, `{"op":"add","path":"/metadata/annotations/quota.sluice.dev~1ticket","value":"w"}`},
		"claim with forgery": {claim, `{"metadata":{"annotations":{"quota.sluice.dev/ticket":"x"}},"spec":{"newer":1}}`, `[{"op":"remove","path":"/metadata/annotations/quota.sluice.dev~1ticket"}]`},
	} {
		t.Run(name, func(t *testing.T) {
			got := patches(t, tc.handler, "scheduler", tc.object)
			if !strings.Contains(got, tc.contains) || strings.Contains(got, "newer") {
				t.Errorf("%s, want %s", got, tc.contains)
			}
		})
	}
}

// templatesByContent names templates without making any.
type templatesByContent struct{}

func (templatesByContent) Cards() []int64 { return []int64{80 << 30} }
func (templatesByContent) Template(_ context.Context, _ string, spec *resourceapi.ResourceClaimSpec, _ bool) (string, error) {
	return hami.TemplateName(spec), nil
}

func TestHAMiLimitsAreReplacedByClaimsInPlace(t *testing.T) {
	got := patches(t, translating(templatesByContent{}, gatePods(someJobs{})), "u", `{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"q"}},"spec":{"newer":1,"resourceClaims":[{"name":"nic","newer":1}],
		"initContainers":[{"name":"i","resources":{"limits":{"nvidia.com/gpumem":"1000"},"requests":{"nvidia.com/gpumem":"1000"}}}],
		"containers":[{"name":"c","newer":1,"resources":{"claims":[{"name":"nic"}],"limits":{"cpu":"1","nvidia.com/gpu":"1","nvidia.com/gpumem":"3000"}}}]}}`)
	for _, want := range []string{
		`"/spec/schedulingGates"`,
		`{"op":"remove","path":"/spec/containers/0/resources/limits/nvidia.com~1gpu"}`,
		`{"op":"remove","path":"/spec/containers/0/resources/limits/nvidia.com~1gpumem"}`,
		`{"op":"remove","path":"/spec/initContainers/0/resources/requests/nvidia.com~1gpumem"}`,
		`{"op":"add","path":"/spec/resourceClaims/-","value":{"name":"gpu-0","resourceClaimTemplateName":"gpu-`,
		`{"op":"add","path":"/spec/containers/0/resources/claims/-","value":{"name":"gpu-0"}}`,
		`{"op":"add","path":"/spec/initContainers/0/resources/claims","value":[{"name":"gpu-0"}]}`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not among %s", want, got)
		}
	}
	if strings.Contains(got, "newer") {
		t.Errorf("fields that are not known here are written: %s", got)
	}
}
