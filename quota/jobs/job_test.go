package jobs

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

// object decodes as the API machinery does: whole numbers are int64. It asks
// for no kind, so that parts of objects can be given.
type object unstructured.Unstructured

func (o *object) UnmarshalJSON(b []byte) error { return utiljson.Unmarshal(b, &o.Object) }

func job(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	b, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, (*object)(u)); err != nil {
		t.Fatal(err)
	}
	return u
}

const training = `
apiVersion: batch/v1
kind: Job
metadata: {name: train, annotations: {note: mine}}
spec:
  suspend: true
  parallelism: 4
  completions: 2
  template:
    metadata: {labels: {app: train}}
    spec:
      futureField: {kept: true}
      nodeSelector: {zone: a}
      tolerations: [{key: x, operator: Exists}]
      containers: [{name: c, image: i}]
`

var flavor = map[string]Injection{"main": {
	Labels:       map[string]string{"quota.sluice.dev/workload": "job-train-1"},
	NodeSelector: map[string]string{"gpu-type": "a100"},
	Tolerations:  []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}, {Key: "x", Operator: corev1.TolerationOpExists}},
	Gates:        []corev1.PodSchedulingGate{{Name: "quota.sluice.dev/admission"}},
}}

func TestAStartedAndRestoredJobIsWhatItWas(t *testing.T) {
	k := table(t).Find("batch/v1", "Job")
	for name, text := range map[string]string{
		"with selectors of its own": training,
		"bare":                      "apiVersion: batch/v1\nkind: Job\nmetadata: {name: bare}\nspec: {suspend: true, template: {spec: {containers: [{name: c}]}}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			j := job(t, text)
			if err := k.Start(j, flavor); err != nil {
				t.Fatal(err)
			}
			if k.Suspended(j) || !Started(j) {
				t.Error("not started")
			}
			sets, err := k.PodSets(j)
			if err != nil {
				t.Fatal(err)
			}
			if got := sets[0].Template.Spec.NodeSelector["gpu-type"]; got != "" {
				t.Errorf("the user's template shows the flavor's label %q", got)
			}
			if err := k.SetSuspended(j, true); err != nil {
				t.Fatal(err)
			}
			if err := k.Restore(j); err != nil {
				t.Fatal(err)
			}
			want := job(t, text)
			if len(want.GetAnnotations()) == 0 {
				j.SetAnnotations(nil)
				want.SetAnnotations(nil)
			}
			if diff := cmp.Diff(want.Object, j.Object); diff != "" {
				t.Errorf("not as it was (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStartAddsWhatTheFlavorNeedsOnce(t *testing.T) {
	k := table(t).Find("batch/v1", "Job")
	j := job(t, training)
	for range 2 {
		if err := k.Start(j, flavor); err != nil {
			t.Fatal(err)
		}
	}
	template, err := k.template(j, place{in: j.Object, at: k.Sets[0]})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"zone": "a", "gpu-type": "a100"}, template.Spec.NodeSelector); diff != "" {
		t.Error(diff)
	}
	if len(template.Spec.Tolerations) != 2 || len(template.Spec.SchedulingGates) != 1 {
		t.Errorf("tolerations %v, gates %v", template.Spec.Tolerations, template.Spec.SchedulingGates)
	}
	if _, found, _ := unstructured.NestedMap(j.Object, "spec", "template", "spec", "futureField"); !found {
		t.Error("a field that the types do not know was lost")
	}
}

func TestABrokenAnnotationCountsAsNone(t *testing.T) {
	k := table(t).Find("batch/v1", "Job")
	for _, broken := range []string{"", "x", "{}", `[{"name":7}]`} {
		j := job(t, training)
		j.SetAnnotations(map[string]string{OriginalAnnotation: broken})
		sets, err := k.PodSets(j)
		if err != nil || sets[0].Template.Spec.NodeSelector["zone"] != "a" {
			t.Errorf("%q: %v, %v", broken, sets, err)
		}
		if err := k.Restore(j); err != nil || Started(j) {
			t.Errorf("%q: %v, started %v", broken, err, Started(j))
		}
	}
}

func TestTheNumberOfPodsIsTheLeastOfTheCounts(t *testing.T) {
	k := table(t).Find("batch/v1", "Job")
	sets, err := k.PodSets(job(t, training))
	if err != nil || sets[0].Count != 2 {
		t.Errorf("%v %v", sets, err)
	}
}

func TestAJobEndsByItsConditions(t *testing.T) {
	k := table(t).Find("batch/v1", "Job")
	for condition, want := range map[string][2]bool{"Complete": {true, true}, "Failed": {true, false}, "Suspended": {false, false}} {
		j := job(t, "status: {conditions: [{type: "+condition+", status: 'True', message: m}]}")
		done, ok, _ := k.Done(j)
		if done != want[0] || ok != want[1] {
			t.Errorf("%s: done %v, succeeded %v", condition, done, ok)
		}
	}
}
