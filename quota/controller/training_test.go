package controller_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// All kinds of the training operator go the same way, with its real controller.
func TestTrainingJobsOfEveryKindAreAdmittedEvictedRestoredAndReleased(t *testing.T) {
	kinds := []struct {
		kind, replicas, container string
		// first is the set with one pod, if the kind has one; there are two workers.
		first string
	}{
		{kind: "TFJob", replicas: "tfReplicaSpecs", container: "tensorflow", first: "Chief"},
		{kind: "XGBoostJob", replicas: "xgbReplicaSpecs", container: "xgboost", first: "Master"},
		{kind: "PaddleJob", replicas: "paddleReplicaSpecs", container: "paddle", first: "Master"},
		{kind: "JAXJob", replicas: "jaxReplicaSpecs", container: "jax"},
	}
	w, queue := gpuWorldOf(t, "nvidia.com/gpu=11", apitest.TrainingOperator)
	var jobs []*unstructured.Unstructured
	var want []string
	pods := map[string]int{}
	for _, k := range kinds {
		name := strings.ToLower(k.kind)
		template := gpuTemplate(k.container, name, 1)
		sets, line := "Worker: {replicas: 2, template: "+template+"}", k.kind+" "+name
		pods[name] = 2
		if k.first != "" {
			sets = k.first + ": {replicas: 1, template: " + template + "}, " + sets
			line += " " + strings.ToLower(k.first) + "=1"
			pods[name] = 3
		}
		want = append(want, line+" worker=2")
		jobs = append(jobs, w.object(t, `
apiVersion: kubeflow.org/v1
kind: `+k.kind+`
metadata: {name: `+name+`, `+queueLabels+`}
spec: {`+k.replicas+`: {`+sets+`}}
`))
	}
	for _, j := range jobs {
		if suspended, _, _ := unstructured.NestedBool(j.Object, "spec", "runPolicy", "suspend"); !suspended {
			t.Errorf("%s is not suspended when it is made", j.GetKind())
		}
		running := w.allBound(t, j.GetName(), pods[j.GetName()])
		for _, p := range running {
			if p.Spec.NodeSelector["gpu-type"] != "a100" {
				t.Errorf("pod %s has selector %v", p.Name, p.Spec.NodeSelector)
			}
		}
		w.run(t, running)
	}
	w.usage(t, queue, "nvidia.com/gpu=11")
	got := w.workloadsOf(t)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("workloads %v, want %v", got, want)
	}

	w.stopQueue(t, queue, kueue.HoldAndDrain)
	for _, j := range jobs {
		w.vanish(t, j.GetName())
	}
	w.usage(t, queue, "nvidia.com/gpu=0")
	for _, j := range jobs {
		w.restored(t, j, "spec", "runPolicy", "suspend")
	}

	w.stopQueue(t, queue, kueue.None)
	left := 11
	for _, j := range jobs {
		for _, p := range w.allBound(t, j.GetName(), pods[j.GetName()]) {
			w.end(t, &p)
		}
		w.finished(t, j)
		left -= pods[j.GetName()]
		w.usage(t, queue, fmt.Sprintf("nvidia.com/gpu=%d", left))
	}
}
