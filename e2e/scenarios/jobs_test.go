package scenarios

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// pytorchSpec reads the spec of a PyTorchJob.
func pytorchSpec(t *testing.T, ctx context.Context, ns, name string) (spec map[string]any, annotations map[string]string) {
	t.Helper()
	out, err := bed.Cluster.Kubectl(ctx, "get", "pytorchjob", name, "--namespace", ns, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var job struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     map[string]any    `json:"spec"`
	}
	if err := json.Unmarshal(out, &job); err != nil {
		t.Fatal(err)
	}
	return job.Spec, job.Metadata.Annotations
}

// podsRun waits until exactly so many pods of the namespace run.
func podsRun(t *testing.T, ctx context.Context, ns string, want int) {
	t.Helper()
	err := testbed.Until(patient(t, ctx), fmt.Sprintf("%d pods of %s to run", want, ns), func() (bool, string, error) {
		pods, err := bed.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		n := 0
		for i := range pods.Items {
			if pods.Items[i].Status.Phase == corev1.PodRunning && pods.Items[i].DeletionTimestamp == nil {
				n++
			}
		}
		return n == want && len(pods.Items) == want, fmt.Sprintf("%d of %d run", n, len(pods.Items)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The example of the documentation with the training operator: both pods or none, and after an
// eviction the same job again.
func TestAPyTorchJobIsAdmittedAsAGangEvictedAndResumed(t *testing.T) {
	ctx, ns := scenario(t)
	if err := bed.StartTrainingOperator(patient(t, ctx)); err != nil {
		t.Fatal(err)
	}
	budget(t, ctx, ns, 1)
	manifest, err := testbed.Examples("42")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("namespace: ml-team", "namespace: "+ns, "team-training-queue", "queue").Replace(string(manifest))
	if err := bed.Cluster.Apply(ctx, []byte(text)); err != nil {
		t.Fatal(err)
	}
	before, _ := pytorchSpec(t, ctx, ns, "torch-finetune")
	if _, err := bed.WaitWorkload(patient(t, ctx), ns, "torch-finetune", "told why it waits", func(w testbed.Workload) bool { return !w.Admitted && w.Why != "" }); err != nil {
		t.Fatal(err)
	}
	podsRun(t, ctx, ns, 0)

	quota := func(n int) {
		patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota","value":"%d"}]`, n)
		if _, err := bed.Cluster.Kubectl(ctx, "patch", "clusterqueue", ns, "--type=json", "-p", patch); err != nil {
			t.Fatal(err)
		}
	}
	drain := func(policy string) {
		if _, err := bed.Cluster.Kubectl(ctx, "patch", "clusterqueue", ns, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"stopPolicy":%q}}`, policy)); err != nil {
			t.Fatal(err)
		}
	}
	quota(2)
	podsRun(t, ctx, ns, 2)
	drain("HoldAndDrain")
	podsRun(t, ctx, ns, 0)
	err = testbed.Until(patient(t, ctx), "the job to be as its user wrote it", func() (bool, string, error) {
		now, annotations := pytorchSpec(t, ctx, ns, "torch-finetune")
		diff := cmp.Diff(before, now)
		return diff == "" && annotations["quota.sluice.dev/original-templates"] == "", diff, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	drain("None")
	podsRun(t, ctx, ns, 2)
	if _, err := bed.Cluster.Kubectl(ctx, "delete", "pytorchjob", "torch-finetune", "--namespace", ns, "--cascade=foreground", "--timeout="+patience.String()); err != nil {
		t.Fatal(err)
	}
	waitHolding(t, ctx, ns, 0)
}
