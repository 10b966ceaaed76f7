package jobs

import (
	"fmt"
	"testing"
)

func TestAJobNeedsFewerPodsTowardsItsEnd(t *testing.T) {
	for name, tc := range map[string]struct{ kind, rest, want string }{
		"nothing done":             {"batch/v1 Job", `{spec: {parallelism: 4, completions: 10, template: T}}`, "map[main:10]"},
		"near its end":             {"batch/v1 Job", `{spec: {parallelism: 4, completions: 10, template: T}, status: {succeeded: 8}}`, "map[main:2]"},
		"done":                     {"batch/v1 Job", `{spec: {parallelism: 4, completions: 10, template: T}, status: {succeeded: 11}}`, "map[main:0]"},
		"a status that makes more": {"batch/v1 Job", `{spec: {parallelism: 4, completions: 10, template: T}, status: {succeeded: -5}}`, "map[main:10]"},
		"as many as there is work": {"batch/v1 Job", `{spec: {parallelism: 4, template: T}, status: {succeeded: 3}}`, "map[]"},
		"a set of jobs": {"jobset.x-k8s.io/v1alpha2 JobSet", `{
			spec: {replicatedJobs: [{name: a, replicas: 3, template: {spec: {parallelism: 2, completions: 2, template: T}}}, {name: b, replicas: 1, template: {spec: {template: T}}}]},
			status: {replicatedJobsStatus: [{name: a, succeeded: 2}]}}`, "map[a:2 b:1]"},
		"a set of jobs that may begin again": {"jobset.x-k8s.io/v1alpha2 JobSet", `{
			spec: {failurePolicy: {maxRestarts: 3}, replicatedJobs: [{name: a, replicas: 3, template: {spec: {template: T}}}]},
			status: {replicatedJobsStatus: [{name: a, succeeded: 2}]}}`, "map[]"},
		"not known of others": {"kubeflow.org/v1 PyTorchJob", `{spec: {pytorchReplicaSpecs: {Worker: {template: T}}}, status: {succeeded: 3}}`, "map[]"},
	} {
		t.Run(name, func(t *testing.T) {
			k, j := parse(t, tc.kind, tc.rest)
			if got := fmt.Sprint(k.Left(j)); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}
