package scenarios

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// budget makes a queue in the namespace that may use so many shares of the dynamic node.
func budget(t *testing.T, ctx context.Context, ns string, devices int) {
	t.Helper()
	budgetOn(t, ctx, ns, devices, "{slicing: dynamic}")
	create(t, ctx, ns, testbed.Template("slice", testbed.Capacity{Memory: "2Gi"}))
}

// budgetOn makes such a queue for the nodes with the labels.
func budgetOn(t *testing.T, ctx context.Context, ns string, devices int, labels string) {
	t.Helper()
	if labels == "" {
		labels = "{}"
	}
	budgetOf(t, ctx, ns, "nvidia.com/gpu", fmt.Sprint(devices), labels)
}

// budgetOf makes a queue in the namespace that may use so much of one resource of the nodes with
// the labels, and has the namespace enforced.
func budgetOf(t *testing.T, ctx context.Context, ns, resource, quantity, labels string) {
	t.Helper()
	manifests := fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s, labels: {quota.sluice.dev/enforce: "true"}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: %[1]s}
spec:
  nodeLabels: %[4]s
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: %[1]s}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [%[2]s]
    flavors: [{name: %[1]s, resources: [{name: %[2]s, nominalQuota: %[3]s}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: queue, namespace: %[1]s}
spec: {clusterQueue: %[1]s}
`, ns, resource, quantity, labels)
	if err := bed.Cluster.Apply(ctx, []byte(manifests)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := bed.Cluster.Kubectl(context.WithoutCancel(ctx), "delete", "clusterqueue,resourceflavor", ns, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
}

// queued is a pod with a small slice that waits for the budget.
func queued(name string) *corev1.Pod {
	return testbed.Pod(name, []string{"hold"}, testbed.WithTemplate("slice"), testbed.WithLabel("kueue.x-k8s.io/queue-name", "queue"))
}

// holding counts the pods whose claims have a device, and those that the queue's status charges.
func holding(t *testing.T, ctx context.Context, ns string) (allocated int, charged string) {
	t.Helper()
	claims, err := bed.Client.ResourceV1().ResourceClaims(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range claims.Items {
		allocated += len(testbed.SharesOf(&claims.Items[i]))
	}
	usage, err := bed.QueueUsage(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range usage {
		if u.Queue == ns {
			charged = u.Total
		}
	}
	return allocated, charged
}

// waitHolding waits until exactly so many shares are allocated and charged.
func waitHolding(t *testing.T, ctx context.Context, ns string, want int) {
	t.Helper()
	err := testbed.Until(patient(t, ctx), fmt.Sprintf("%d shares to be held", want), func() (bool, string, error) {
		allocated, charged := holding(t, ctx, ns)
		if allocated > want {
			return false, "", fmt.Errorf("%d shares are allocated", allocated)
		}
		return allocated == want && charged == fmt.Sprint(want), fmt.Sprintf("%d allocated, %s charged", allocated, charged), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPodsThatChurnNeverHoldMoreThanTheBudget(t *testing.T) {
	ctx, ns := scenario(t)
	const room = 3
	budget(t, ctx, ns, room)
	for i := range 10 {
		create(t, ctx, ns, queued(fmt.Sprintf("p%d", i)))
	}
	waitHolding(t, ctx, ns, room)
	// Pods leave one after another, whatever state they are in; others take their place.
	for i := range 10 {
		name := fmt.Sprintf("p%d", i)
		if err := bed.Client.CoreV1().Pods(ns).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if allocated, _ := holding(t, ctx, ns); allocated > room {
				t.Fatalf("%d shares are allocated with a budget of %d", allocated, room)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	waitHolding(t, ctx, ns, 0)
}

func TestUsageIsTheSameAfterTheQuotaControllerRestarts(t *testing.T) {
	ctx, ns := scenario(t)
	budget(t, ctx, ns, 2)
	for _, name := range []string{"a", "b", "c"} {
		create(t, ctx, ns, queued(name))
	}
	waitHolding(t, ctx, ns, 2)
	before, err := bed.Workloads(ctx, ns)
	if err != nil {
		t.Fatal(err)
	}
	if err := bed.RestartQuota(ctx); err != nil {
		t.Fatal(err)
	}
	waitHolding(t, ctx, ns, 2)
	after, err := bed.Workloads(ctx, ns)
	if err != nil {
		t.Fatal(err)
	}
	freed := ""
	for owner, w := range before {
		if after[owner].Admitted != w.Admitted {
			t.Errorf("%s was admitted: %v, after the restart: %v", owner, w.Admitted, after[owner].Admitted)
		}
		if w.Admitted {
			freed = owner
		}
	}
	if err := bed.Client.CoreV1().Pods(ns).Delete(ctx, freed, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err = testbed.Until(patient(t, ctx), "the waiting pod to take the place of "+freed, func() (bool, string, error) {
		all, err := bed.Workloads(ctx, ns)
		admitted := 0
		for owner, w := range all {
			if w.Admitted && owner != freed {
				admitted++
			}
		}
		return admitted == 2, fmt.Sprintf("%+v", all), err
	})
	if err != nil {
		t.Error(err)
	}
}
