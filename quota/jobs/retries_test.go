package jobs

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/utils/ptr"
)

func TestOfWhichSetsNoPodIsReplaced(t *testing.T) {
	const jobSet, pyTorch, mpi = "jobset.x-k8s.io/v1alpha2 JobSet", "kubeflow.org/v1 PyTorchJob", "kubeflow.org/v2beta1 MPIJob"
	const both = `replicatedJobs: [{name: a, template: {spec: {backoffLimit: 0, template: T}}}, {name: b, template: {spec: {template: T}}}]`
	for name, tc := range map[string]struct{ kind, rest, want string }{
		"a Job without retries":           {"batch/v1 Job", `{spec: {backoffLimit: 0, template: T}}`, "main"},
		"retries are left":                {"batch/v1 Job", `{spec: {backoffLimit: 6, template: T}, status: {failed: 5}}`, ""},
		"all retries are used":            {"batch/v1 Job", `{spec: {backoffLimit: 6, template: T}, status: {failed: 6}}`, "main"},
		"no limit":                        {"batch/v1 Job", `{spec: {template: T}}`, ""},
		"some failures do not count":      {"batch/v1 Job", `{spec: {backoffLimit: 0, podFailurePolicy: {rules: []}, template: T}}`, ""},
		"each index has its own":          {"batch/v1 Job", `{spec: {backoffLimit: 0, backoffLimitPerIndex: 2, template: T}}`, ""},
		"another controller's":            {"batch/v1 Job", `{spec: {backoffLimit: 0, managedBy: example.com/x, template: T}}`, ""},
		"a limit that is no number":       {"batch/v1 Job", `{spec: {backoffLimit: none, template: T}}`, ""},
		"a JobSet's Jobs have limits":     {jobSet, `{spec: {` + both + `}}`, "a"},
		"a JobSet that may begin again":   {jobSet, `{spec: {failurePolicy: {maxRestarts: 2}, ` + both + `}, status: {restartsCountTowardsMax: 1}}`, ""},
		"a JobSet that has begun again":   {jobSet, `{spec: {failurePolicy: {maxRestarts: 2}, ` + both + `}, status: {restartsCountTowardsMax: 2}}`, "a"},
		"a JobSet with a policy for some": {jobSet, `{spec: {failurePolicy: {rules: [{action: RestartJobSetAndIgnoreMaxRestarts}]}, ` + both + `}}`, ""},
		"replicas that are never restarted": {pyTorch, `{spec: {pytorchReplicaSpecs: {
			Master: {restartPolicy: Never, template: T}, Worker: {restartPolicy: OnFailure, template: T}}}}`, "master"},
		"replicas of which nothing is said": {pyTorch, `{spec: {pytorchReplicaSpecs: {Worker: {template: T}}}}`, ""},
		"replicas that come and go": {pyTorch, `{spec: {elasticPolicy: {minReplicas: 1}, pytorchReplicaSpecs: {
			Worker: {restartPolicy: Never, template: T}}}}`, ""},
		"a TFJob of which nothing is said": {"kubeflow.org/v1 TFJob", `{spec: {tfReplicaSpecs: {Worker: {template: T}}}}`, "worker"},
		"a TFJob that says it is not so":   {"kubeflow.org/v1 TFJob", `{spec: {enableDynamicWorker: false, tfReplicaSpecs: {Worker: {template: T}}}}`, "worker"},
		"a TFJob with dynamic workers":     {"kubeflow.org/v1 TFJob", `{spec: {enableDynamicWorker: true, tfReplicaSpecs: {Worker: {template: T}}}}`, ""},
		"a launcher that is tried again":   {mpi, `{spec: {mpiReplicaSpecs: {Launcher: {template: T}, Worker: {template: T}}}}`, "worker"},
		"a launcher that is not":           {mpi, `{spec: {runPolicy: {backoffLimit: 0}, mpiReplicaSpecs: {Launcher: {template: T}, Worker: {template: T}}}}`, "launcher worker"},
		"the older MPIJob":                 {"kubeflow.org/v1 MPIJob", `{spec: {mpiReplicaSpecs: {Worker: {restartPolicy: Never, template: T}}}}`, ""},
		"a Ray cluster":                    {"ray.io/v1 RayCluster", `{spec: {headGroupSpec: {template: T}, workerGroupSpecs: [{groupName: w, template: T}]}}`, ""},
		"a Volcano Job":                    {"batch.volcano.sh/v1alpha1 Job", `{spec: {maxRetry: 0, tasks: [{name: t, template: T}]}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			k, j := parse(t, tc.kind, tc.rest)
			var got []string
			last := k.Last(j)
			sets, err := k.PodSets(j)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range sets {
				if last[s.Name] {
					got = append(got, s.Name)
				}
			}
			if text := strings.Join(got, " "); text != tc.want {
				t.Errorf("%q, want %q", text, tc.want)
			}
		})
	}
}

func TestAnOperatorSaysWhenPodsOfAKindAreNotReplaced(t *testing.T) {
	own := func() Kind {
		return Kind{
			Group: "example.com", Version: "v1", Kind: "Render", Resource: "renders",
			Sets:    []Template{{Name: "main", Path: "spec.template", Retries: &Retries{Policy: "spec.onFailure", Never: []string{"Stop"}}}},
			Retries: &Retries{Limit: "spec.retries", Failed: "status.retried", Missing: ptr.To[int64](0)},
		}
	}
	k := table(t, own()).Find("example.com/v1", "Render")
	for rest, want := range map[string]string{
		"{onFailure: Stop, template: T}":             "map[main:true]",
		"{onFailure: Stop, retries: 1, template: T}": "map[]",
		"{onFailure: Retry, template: T}":            "map[]",
		"{template: T}":                              "map[]",
	} {
		j := job(t, "kind: Render\nmetadata: {name: j}\nspec: "+strings.ReplaceAll(rest, "T}", template+"}")+"\n")
		if got := fmt.Sprint(k.Last(j)); got != want {
			t.Errorf("%s: %s, want %s", rest, got, want)
		}
	}
	for want, breaks := range map[string]func(*Kind){
		"neither a limit nor a policy": func(k *Kind) { k.Retries = &Retries{Unless: []string{"spec.x"}} },
		"name both or none":            func(k *Kind) { k.Sets[0].Retries.Never = nil },
		"need retries.limit":           func(k *Kind) { k.Retries = &Retries{Policy: "spec.x", Never: []string{"y"}, Failed: "status.z"} },
		"those of a set are about it":  func(k *Kind) { k.Sets[0].Retries.Sets = []string{"main"} },
		`path "spec..x"`:               func(k *Kind) { k.Retries.Unless = []string{"spec..x"} },
	} {
		broken := own()
		breaks(&broken)
		if _, err := NewTable(broken); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
