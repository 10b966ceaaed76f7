package scenarios

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// tenantOf binds the role edit in the namespace to a user and returns that user's client.
func tenantOf(t *testing.T, ctx context.Context, ns string) *kubernetes.Clientset {
	t.Helper()
	const user = "tenant"
	_, err := bed.Client.RbacV1().RoleBindings(ns).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := bed.Cluster.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	err = testbed.Until(patient(t, ctx), "the tenant's role to hold", func() (bool, string, error) {
		_, err := client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		return err == nil, fmt.Sprint(err), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// A tenant holds all that its budget has, and tries every way to one device more.
func TestATenantGetsNoDeviceBeyondItsBudget(t *testing.T) {
	ctx, ns := scenario(t)
	budget(t, ctx, ns, 1)
	tenant := tenantOf(t, ctx, ns)
	pods, claims := tenant.CoreV1().Pods(ns), tenant.ResourceV1().ResourceClaims(ns)
	templates := tenant.ResourceV1().ResourceClaimTemplates(ns)
	run := func(p *corev1.Pod) {
		t.Helper()
		if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
	}
	// refused wants an error of a policy or of RBAC, not of a mistake in the test.
	refused := func(what string, err error) {
		t.Helper()
		switch {
		case err == nil:
			t.Errorf("%s was let through", what)
		case !strings.Contains(err.Error(), "denied request") && !strings.Contains(err.Error(), "cannot"):
			t.Errorf("%s was not refused, but: %v", what, err)
		default:
			t.Logf("%s: %v", what, err)
		}
	}
	run(queued("holder"))
	if _, err := bed.WaitPhase(patient(t, ctx), ns, "holder", corev1.PodRunning); err != nil {
		t.Fatal(err)
	}
	list, err := claims.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Status.Allocation == nil {
		t.Fatalf("the holder's claim: %v, %+v", err, list.Items)
	}
	held := list.Items[0]

	// Pods that ask past the gate.
	run(testbed.Pod("no-queue", []string{"hold"}, testbed.WithTemplate("slice")))
	run(testbed.Pod("plain-limit", []string{"hold"}, testbed.WithLimit("nvidia.com/gpu", "1")))
	run(testbed.Pod("implicit-class", []string{"hold"}, testbed.WithLimit("deviceclass.resource.kubernetes.io/gpu.sluice.dev", "1")))
	run(testbed.Pod("implicit-monitor", []string{"hold"}, testbed.WithLimit("deviceclass.resource.kubernetes.io/monitor.gpu.sluice.dev", "1")))
	onNode := queued("names-its-node")
	onNode.Spec.NodeName = dynamicNode
	run(onNode)
	own := testbed.Pod("own-scheduler", []string{"hold"}, testbed.WithClaim("mine"))
	own.Spec.SchedulerName = "mine"
	run(own)
	if _, err := claims.Create(ctx, testbed.Claim("mine", testbed.Capacity{Memory: "2Gi"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	monitor := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "monitor"}, Spec: testbed.ClaimSpec(testbed.Capacity{})}
	monitor.Spec.Devices.Requests[0].Exactly.DeviceClassName = "monitor.gpu.sluice.dev"
	monitor.Spec.Devices.Requests[0].Exactly.Capacity = nil
	if _, err := claims.Create(ctx, monitor, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	run(testbed.Pod("monitor", []string{"hold"}, testbed.WithClaim("monitor")))

	// A pod that waits, and its gate.
	run(queued("waits"))
	two := testbed.Template("two", testbed.Capacity{Memory: "1Gi"}, testbed.Capacity{Memory: "1Gi"})
	if _, err := templates.Create(ctx, two, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	run(testbed.Pod("two-requests", []string{"hold"}, testbed.WithTemplate("two"), testbed.WithLabel("kueue.x-k8s.io/queue-name", "queue")))
	patch := func(name string, kind types.PatchType, body string) error {
		_, err := pods.Patch(ctx, name, kind, []byte(body), metav1.PatchOptions{})
		return err
	}
	refused("opening the gate", patch("waits", types.JSONPatchType, `[{"op":"remove","path":"/spec/schedulingGates"}]`))
	refused("posing as an admitted workload's pod", patch("waits", types.MergePatchType, fmt.Sprintf(
		`{"metadata":{"labels":{"quota.sluice.dev/workload":%q}}}`, held.Annotations["quota.sluice.dev/ticket"])))

	// Tickets.
	copied := testbed.Claim("copied", testbed.Capacity{Memory: "2Gi"})
	copied.Annotations = held.Annotations
	_, err = claims.Create(ctx, copied, metav1.CreateOptions{})
	refused("copying a ticket", err)
	_, err = claims.Patch(ctx, "mine", types.MergePatchType, []byte(`{"metadata":{"annotations":{"quota.sluice.dev/ticket":"forged","quota.sluice.dev/ticket-devices":"1"}}}`), metav1.PatchOptions{})
	refused("forging a ticket", err)
	_, err = claims.Patch(ctx, held.Name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"quota.sluice.dev/ticket-devices":"8"}}}`), metav1.PatchOptions{})
	refused("raising a ticket", err)
	templated := testbed.Template("templated", testbed.Capacity{Memory: "2Gi"})
	templated.Spec.Annotations = held.Annotations
	_, err = templates.Create(ctx, templated, metav1.CreateOptions{})
	refused("a ticket in a template", err)

	// Allocations.
	mine, err := claims.Get(ctx, "mine", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mine.Status.Allocation = held.Status.Allocation
	_, err = claims.UpdateStatus(ctx, mine, metav1.UpdateOptions{})
	refused("writing an allocation", err)
	if err := claims.Delete(ctx, held.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = claims.Patch(ctx, held.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	refused("stripping the finalizer of an allocated claim", err)

	// The scheduler has tried, and been told why not.
	told := testbed.Until(patient(t, ctx), "the scheduler to be refused", func() (bool, string, error) {
		pod, err := pods.Get(ctx, "no-queue", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
		return i >= 0 && strings.Contains(pod.Status.Conditions[i].Message, "ticket"), fmt.Sprint(pod.Status.Conditions), nil
	})
	if told != nil {
		t.Error(told)
	}
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(500 * time.Millisecond) {
		all, err := claims.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all.Items {
			if c.Status.Allocation != nil && c.UID != held.UID {
				t.Fatalf("claim %s has a device beyond the budget of one: %+v", c.Name, testbed.SharesOf(&c))
			}
		}
	}
	running, err := pods.List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Running"})
	if err != nil || len(running.Items) != 1 || running.Items[0].Name != "holder" {
		t.Errorf("want the holder alone to run: %v, %d pods run", err, len(running.Items))
	}

	// What was honestly asked for is given once the budget is free.
	if err := pods.Delete(ctx, "holder", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := bed.WaitPhase(patient(t, ctx), ns, "waits", corev1.PodRunning); err != nil {
		t.Error(err)
	}
}
