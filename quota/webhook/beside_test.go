package webhook

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/jobs"
)

// besideJobs are governed by the label that is used beside Kueue.
type besideJobs struct{ someJobs }

func (besideJobs) QueueLabel() string { return controller.BesideQueueLabel }
func (besideJobs) QueueOf(k *jobs.Kind, job *unstructured.Unstructured) string {
	if q := job.GetLabels()[controller.BesideQueueLabel]; q != "" {
		return q
	}
	return k.TemplateLabel(job, controller.BesideQueueLabel)
}

func TestKueuesMarksAreTakenOffWhatIsGovernedHereAlone(t *testing.T) {
	const (
		marks  = `"kueue.x-k8s.io/queue-name":"default","kueue.x-k8s.io/managed":"true"`
		gate   = `{"name":"quota.sluice.dev/admission"}`
		kueues = `{"name":"kueue.x-k8s.io/admission"},{"name":"kueue.x-k8s.io/topology"}`
		off    = `{"op":"remove","path":"/metadata/labels/kueue.x-k8s.io~1queue-name"}`
	)
	for name, c := range map[string]struct{ object, changes string }{
		"a pod that names a queue": {
			`{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"quota.sluice.dev/queue-name":"q",` + marks + `},"annotations":{"kueue.x-k8s.io/role-hash":"x"},"finalizers":["kueue.x-k8s.io/managed"]},"spec":{"schedulingGates":[` + kueues + `],"containers":[]}}`,
			`[` + off + `,{"op":"remove","path":"/metadata/labels/kueue.x-k8s.io~1managed"},{"op":"remove","path":"/metadata/annotations/kueue.x-k8s.io~1role-hash"},{"op":"remove","path":"/spec/schedulingGates"},{"op":"remove","path":"/metadata/finalizers"},{"op":"add","path":"/spec/schedulingGates","value":[` + gate + `]}]`,
		},
		"others' gates and finalizers stay": {
			`{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"quota.sluice.dev/queue-name":"q"},"finalizers":["a","kueue.x-k8s.io/managed"]},"spec":{"schedulingGates":[{"name":"b"},` + gate + `,` + kueues + `],"containers":[]}}`,
			`[{"op":"add","path":"/spec/schedulingGates","value":[{"name":"b"},` + gate + `]},{"op":"add","path":"/metadata/finalizers","value":["a"]}]`,
		},
		"a pod that a job of ours makes": {
			`{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"quota.sluice.dev/workload":"w","kueue.x-k8s.io/queue-name":"default"}},"spec":{"schedulingGates":[` + gate + `],"containers":[]}}`,
			`[` + off + `]`,
		},
		"one that only says so, and is behind no gate of ours": {
			`{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"quota.sluice.dev/workload":"w",` + marks + `}},"spec":{"schedulingGates":[` + kueues + `],"containers":[]}}`, ``,
		},
		"Kueue's own pod": {`{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{` + marks + `}},"spec":{"containers":[]}}`, ``},
		"a job that Kueue would send away": {
			`{"apiVersion":"batch/v1","kind":"Job","metadata":{"labels":{"quota.sluice.dev/queue-name":"q","kueue.x-k8s.io/queue-name":"default"}},"spec":{"suspend":true,"managedBy":"kueue.x-k8s.io/multikueue","template":{"spec":{}}}}`,
			`[` + off + `,{"op":"remove","path":"/spec/managedBy"}]`,
		},
		"a job of another controller's": {
			`{"apiVersion":"batch/v1","kind":"Job","metadata":{"labels":{"quota.sluice.dev/queue-name":"q"}},"spec":{"suspend":true,"managedBy":"example.com/x","template":{"spec":{}}}}`, ``,
		},
		"a job below one of ours": {
			`{"apiVersion":"batch/v1","kind":"Job","metadata":{"labels":{"kueue.x-k8s.io/queue-name":"default"}},"spec":{"template":{"metadata":{"labels":{"quota.sluice.dev/workload":"w"}},"spec":{"schedulingGates":[` + gate + `]}}}}`,
			`[` + off + `]`,
		},
		"a job whose pods only say so": {
			`{"apiVersion":"batch/v1","kind":"Job","metadata":{"labels":{"kueue.x-k8s.io/queue-name":"default"}},"spec":{"template":{"metadata":{"labels":{"quota.sluice.dev/workload":"w"}},"spec":{}}}}`, ``,
		},
		"Kueue's own job, where jobs without a queue are held": {
			`{"apiVersion":"batch/v1","kind":"Job","metadata":{"labels":{"kueue.x-k8s.io/queue-name":"default"}},"spec":{"template":{"spec":{}}}}`, ``,
		},
	} {
		known := besideJobs{}
		handler := apart(known, gatePods(known))
		if u := (&unstructured.Unstructured{}); u.UnmarshalJSON([]byte(c.object)) == nil && u.GetKind() != "Pod" {
			handler = apart(known, suspendJobs(known))
		}
		if got := patches(t, handler, "u", c.object); got != c.changes {
			t.Errorf("%s: changes\n%s, want\n%s", name, got, c.changes)
		}
	}
	// Where the embedded engine admits, Kueue's label is ours.
	known := someJobs{}
	if got := patches(t, apart(known, gatePods(known)), "u", `{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{`+marks+`}},"spec":{"containers":[]}}`); got != `[{"op":"add","path":"/spec/schedulingGates","value":[`+gate+`]}]` {
		t.Errorf("with the embedded engine: %s", got)
	}
}
