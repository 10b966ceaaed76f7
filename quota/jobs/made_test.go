package jobs

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	trainJobKind = "trainer.kubeflow.org/v1alpha1 TrainJob"
	jobSetKind   = "jobset.x-k8s.io/v1alpha2 JobSet"
	// users is what the runtime and the user's own patches make of a JobSet.
	users = `{spec: {suspend: true, replicatedJobs: [{name: node, replicas: 1, template: {spec: {parallelism: 2, completions: 2, template: {
		metadata: {labels: {app: tune}},
		spec: {nodeSelector: {zone: a}, tolerations: [{key: mine, operator: Exists}], containers: [{name: node}]}}}}}]}}`
)

var nodeFlavor = map[string]Injection{"node": {
	Labels:       map[string]string{"set": "node"},
	NodeSelector: map[string]string{"gpu-type": "a100"},
	Tolerations:  []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}},
	Gates:        []corev1.PodSchedulingGate{{Name: "gate"}},
}}

func TestATrainJobIsAdmittedThroughAPatchOfItsJobSet(t *testing.T) {
	k, j := parse(t, trainJobKind, `{spec: {suspend: true, runtimeRef: {name: torch}, runtimePatches: [{manager: me.example.com/x, trainingRuntimeSpec: {template: {}}}]}}`)
	of, made := parse(t, jobSetKind, users)
	if !k.Makes(of) || of.Makes(k) {
		t.Fatal("a TrainJob makes a JobSet, and not the other way round")
	}
	before := j.DeepCopy()
	sets, err := k.MadeSets(j, made, of)
	if err != nil || len(sets) != 1 || sets[0].Name != "node" || sets[0].Count != 2 {
		t.Fatalf("%v, %v", sets, err)
	}
	if err := k.StartMade(j, sets, nodeFlavor, time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	if k.Suspended(j) || !Started(j) {
		t.Error("not started")
	}
	patches, _, _ := unstructured.NestedSlice(j.Object, "spec", "runtimePatches")
	text, err := json.Marshal(patches)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"manager":"me.example.com/x","trainingRuntimeSpec":{"template":{}}},` +
		`{"manager":"quota.sluice.dev/admission","time":"1970-01-01T00:00:00Z","trainingRuntimeSpec":{"template":{"metadata":{"annotations":{"quota.sluice.dev/patched":"true"}},` +
		`"spec":{"replicatedJobs":[{"name":"node","template":{"spec":{"template":{"metadata":{"labels":{"set":"node"}},` +
		`"spec":{"nodeSelector":{"gpu-type":"a100"},"schedulingGates":[{"name":"gate"}],"tolerations":[{"key":"mine","operator":"Exists"},{"key":"nvidia.com/gpu","operator":"Exists"}]}}}}}]}}}}]`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
	added, err := k.Added(j)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Injection{NodeSelector: map[string]string{"gpu-type": "a100"}, Tolerations: nodeFlavor["node"].Tolerations, Gates: nodeFlavor["node"].Gates}, added["node"]); diff != "" {
		t.Errorf("added (-want +got):\n%s", diff)
	}
	if err := k.SetSuspended(j, true); err != nil {
		t.Fatal(err)
	}
	if err := k.Restore(j); err != nil {
		t.Fatal(err)
	}
	j.SetAnnotations(nil)
	if diff := cmp.Diff(before.Object, j.Object); diff != "" {
		t.Errorf("not as it was (-want +got):\n%s", diff)
	}
}

func TestAJobSetThatLagsBehindItsTrainJobIsNotRead(t *testing.T) {
	k, j := parse(t, trainJobKind, `{spec: {suspend: true}}`)
	of, made := parse(t, jobSetKind, users)
	sets, err := k.MadeSets(j, made, of)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.StartMade(j, sets, nodeFlavor, time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	// The trainer has followed: what was added is not shown as the user's.
	patched := made.DeepCopy()
	patched.SetAnnotations(map[string]string{PatchedAnnotation: "true"})
	if err := of.Start(patched, nodeFlavor); err != nil {
		t.Fatal(err)
	}
	patched.SetAnnotations(map[string]string{PatchedAnnotation: "true"})
	now, err := k.MadeSets(j, patched, of)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sets, now); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// It was evicted, and its JobSet still has what was added.
	if err := k.Restore(j); err != nil {
		t.Fatal(err)
	}
	if _, err := k.MadeSets(j, patched, of); !errors.Is(err, ErrNotMade) {
		t.Errorf("%v", err)
	}
	if _, found, _ := unstructured.NestedFieldNoCopy(j.Object, "spec", "runtimePatches"); found {
		t.Error("an empty list of patches is left")
	}
}

func TestAJobIsLetGoAsItWas(t *testing.T) {
	k := table(t).Find("batch/v1", "Job")
	for name, suspended := range map[string]bool{"suspended by its user": true, "meant to run": false} {
		t.Run(name, func(t *testing.T) {
			j := job(t, training)
			if err := k.SetSuspended(j, suspended); err != nil {
				t.Fatal(err)
			}
			before := j.DeepCopy()
			if err := k.Hold(j); err != nil || !k.Suspended(j) || Held(j) == suspended {
				t.Fatalf("%v, suspended %v, marked %v", err, k.Suspended(j), Held(j))
			}
			// Admitted and evicted, it is suspended again, which is no wish of its user.
			if err := k.Start(j, flavor); err != nil {
				t.Fatal(err)
			}
			if err := k.Hold(j); err != nil {
				t.Fatal(err)
			}
			if err := k.Restore(j); err != nil {
				t.Fatal(err)
			}
			if err := k.LetGo(j); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before.Object, j.Object); diff != "" {
				t.Errorf("not as it was (-want +got):\n%s", diff)
			}
		})
	}
}
