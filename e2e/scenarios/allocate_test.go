package scenarios

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// schedulerOf is a tenant whose administrator lets him run a scheduler of his own: he writes
// allocations and reservations. The API server asks for that right for the whole cluster.
func schedulerOf(t *testing.T, ctx context.Context, ns string) *kubernetes.Clientset {
	t.Helper()
	client := tenantOf(t, ctx, ns)
	manifests := fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %[1]s}
rules:
- {apiGroups: [resource.k8s.io], resources: [resourceclaims/status, resourceclaims/binding], verbs: [update, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: tenant}]
`, ns)
	t.Cleanup(func() {
		if _, err := bed.Cluster.Kubectl(context.WithoutCancel(ctx), "delete", "clusterrolebinding,clusterrole", ns); err != nil {
			t.Error(err)
		}
	})
	if err := bed.Cluster.Apply(ctx, []byte(manifests)); err != nil {
		t.Fatal(err)
	}
	return client
}

// ticketed waits until a claim whose name begins so has a ticket, or has none any more.
func ticketed(t *testing.T, ctx context.Context, ns, prefix string, want bool) *resourcev1.ResourceClaim {
	t.Helper()
	var found *resourcev1.ResourceClaim
	err := testbed.Until(patient(t, ctx), fmt.Sprintf("the ticket of claim %s: %v", prefix, want), func() (bool, string, error) {
		list, err := bed.Client.ResourceV1().ResourceClaims(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		for i := range list.Items {
			if c := &list.Items[i]; strings.HasPrefix(c.Name, prefix) {
				found = c
				has := c.Annotations["quota.sluice.dev/ticket"] != ""
				return has == want, fmt.Sprint(c.Annotations), nil
			}
		}
		return false, "there is no such claim", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// refusedBy wants an error that says all of it.
func refusedBy(t *testing.T, what string, err error, says ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s was let through", what)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s: %v, want %q", what, err, s)
		}
	}
}

// A scheduler of the tenant's own writes allocations as it likes. The API server lets exactly those
// through that a ticket pays for.
func TestASchedulerOfTheTenantsOwnAllocatesNoMoreThanTicketsSay(t *testing.T) {
	ctx, ns := scenario(t)
	budget(t, ctx, ns, 3)
	tenant := schedulerOf(t, ctx, ns)
	claims := tenant.ResourceV1().ResourceClaims(ns)
	create(t, ctx, ns, queued("holder"))
	if _, err := bed.WaitPhase(patient(t, ctx), ns, "holder", corev1.PodRunning); err != nil {
		t.Fatal(err)
	}
	held := ticketed(t, ctx, ns, "holder", true)
	if held.Status.Allocation == nil {
		t.Fatal("the holder has no device")
	}
	// Admitted, and nobody but the tenant allocates its device.
	mine := queued("mine")
	mine.Spec.SchedulerName = "mine"
	create(t, ctx, ns, mine)
	target := ticketed(t, ctx, ns, "mine", true)
	// A claim that nothing was granted for.
	create(t, ctx, ns, testbed.Claim("bare", testbed.Capacity{Memory: "2Gi"}))

	write := func(name string, change func(*resourcev1.ResourceClaim, *resourcev1.AllocationResult)) error {
		claim, err := claims.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claim.Status.Allocation = held.Status.Allocation.DeepCopy()
		claim.Status.Allocation.Devices.Results[0].ShareID = new(types.UID("6f1c8b1e-0000-4000-8000-000000000001"))
		change(claim, claim.Status.Allocation)
		_, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
		return err
	}
	asIs := func(*resourcev1.ResourceClaim, *resourcev1.AllocationResult) {}
	const ticket, dearer = "sluice-allocation-needs-ticket", "dearer than its ticket"
	refusedBy(t, "an allocation without a ticket", write("bare", asIs), ticket, "has no ticket")
	refusedBy(t, "an allocation with a ticket of its own making", write("bare", func(c *resourcev1.ResourceClaim, _ *resourcev1.AllocationResult) {
		c.Annotations = held.Annotations
	}), "denied request")
	amount := func(name resourcev1.QualifiedName, q string) func(*resourcev1.ResourceClaim, *resourcev1.AllocationResult) {
		return func(_ *resourcev1.ResourceClaim, a *resourcev1.AllocationResult) {
			a.Devices.Results[0].ConsumedCapacity[name] = resource.MustParse(q)
		}
	}
	refusedBy(t, "more memory", write(target.Name, amount("memory", "3Gi")), ticket, dearer)
	refusedBy(t, "less than no memory", write(target.Name, amount("memory", "-2Gi")), "denied request")
	refusedBy(t, "cores that were not asked for", write(target.Name, amount("cores", "50")), ticket, dearer)
	refusedBy(t, "a card of another flavor", write(target.Name, func(_ *resourcev1.ResourceClaim, a *resourcev1.AllocationResult) {
		a.Devices.Results[0].Pool = fixedNode
	}), ticket, "a pool that its ticket does not name")
	refusedBy(t, "two shares for one", write(target.Name, func(_ *resourcev1.ResourceClaim, a *resourcev1.AllocationResult) {
		second := a.Devices.Results[0].DeepCopy()
		second.ShareID = new(types.UID("6f1c8b1e-0000-4000-8000-000000000002"))
		a.Devices.Results = append(a.Devices.Results, *second)
	}), ticket, dearer)
	refusedBy(t, "a share that says not what it takes", write(target.Name, func(_ *resourcev1.ResourceClaim, a *resourcev1.AllocationResult) {
		delete(a.Devices.Results[0].ConsumedCapacity, "cores")
	}), ticket, "does not say how much")
	refusedBy(t, "a card as a whole", write(target.Name, func(_ *resourcev1.ResourceClaim, a *resourcev1.AllocationResult) {
		a.Devices.Results[0].ShareID, a.Devices.Results[0].ConsumedCapacity = nil, nil
	}), ticket, "takes a device as a whole")
	refusedBy(t, "the device of all cards", write(target.Name, func(_ *resourcev1.ResourceClaim, a *resourcev1.AllocationResult) {
		a.Devices.Results[0].ShareID, a.Devices.Results[0].ConsumedCapacity, a.Devices.Results[0].Device = nil, nil, "monitor"
	}), "denied request")
	refusedBy(t, "access that is called administration", write(target.Name, func(_ *resourcev1.ResourceClaim, a *resourcev1.AllocationResult) {
		a.Devices.Results[0].AdminAccess = new(true)
		a.Devices.Results[0].ConsumedCapacity["memory"] = resource.MustParse("40Gi")
	}), "admin access to devices requires")
	if err := write(target.Name, asIs); err != nil {
		t.Errorf("what the ticket pays for was refused: %v", err)
	}

	// What is allocated stays charged.
	target, err := claims.Get(ctx, target.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	target.Status.Allocation, target.Status.ReservedFor = nil, nil
	_, err = claims.UpdateStatus(ctx, target, metav1.UpdateOptions{})
	refusedBy(t, "clearing an allocation", err, "sluice-allocated-claims-stay")
	waitHolding(t, ctx, ns, 2)

	// A ticket ends with its last user, and what is known of it from before is worth nothing.
	named := testbed.Claim("named", testbed.Capacity{Memory: "2Gi"})
	named.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "queue"}
	user := testbed.Pod("user", []string{"hold"}, testbed.WithClaim("named"), testbed.WithLabel("kueue.x-k8s.io/queue-name", "queue"))
	user.Spec.SchedulerName = "mine"
	create(t, ctx, ns, named, user)
	old := ticketed(t, ctx, ns, "named", true)
	if err := tenant.CoreV1().Pods(ns).Delete(ctx, "user", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	ticketed(t, ctx, ns, "named", false)
	refusedBy(t, "an allocation on a ticket that has ended", write("named", asIs), ticket, "has no ticket")
	refusedBy(t, "the same with the ticket in hand", write("named", func(c *resourcev1.ResourceClaim, _ *resourcev1.AllocationResult) {
		c.Annotations, c.ResourceVersion = old.Annotations, ""
	}), "denied request")
}

// A claim has one charge, whoever joins its users, and keeps it until the last of them is gone.
func TestWhoJoinsAClaimsUsersGetsNoFurtherDevice(t *testing.T) {
	ctx, ns := scenario(t)
	budget(t, ctx, ns, 1)
	shared := testbed.Claim("shared", testbed.Capacity{Memory: "2Gi"})
	shared.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "queue"}
	create(t, ctx, ns, shared, testbed.Pod("first", []string{"hold"}, testbed.WithClaim("shared"), testbed.WithLabel("kueue.x-k8s.io/queue-name", "queue")))
	if _, err := bed.WaitPhase(patient(t, ctx), ns, "first", corev1.PodRunning); err != nil {
		t.Fatal(err)
	}
	create(t, ctx, ns, queued("waits"))
	for _, name := range []string{"second", "third"} {
		create(t, ctx, ns, testbed.Pod(name, []string{"hold"}, testbed.WithClaim("shared")))
		if _, err := bed.WaitPhase(patient(t, ctx), ns, name, corev1.PodRunning); err != nil {
			t.Fatal(err)
		}
	}
	waitHolding(t, ctx, ns, 1)
	// The one that was admitted goes; those who joined have the device, and it is charged.
	for _, name := range []string{"first", "second"} {
		if _, err := bed.Cluster.Kubectl(ctx, "delete", "pod", name, "--namespace", ns, "--timeout="+patience.String()); err != nil {
			t.Fatal(err)
		}
	}
	waitHolding(t, ctx, ns, 1)
	if w, err := bed.Workloads(ctx, ns); err != nil || w["waits"].Admitted {
		t.Errorf("another was admitted while the device is in use: %+v, %v", w["waits"], err)
	}
	if err := bed.Client.CoreV1().Pods(ns).Delete(ctx, "third", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := bed.WaitPhase(patient(t, ctx), ns, "waits", corev1.PodRunning); err != nil {
		t.Error(err)
	}
	waitHolding(t, ctx, ns, 1)
}

// The quota controller is away, and its webhook with it: nothing holds a labelled pod, and it gets
// no device all the same. Pods of others are not affected. When it is back, each is adopted in turn.
func TestWhileTheQuotaControllerIsAwayNobodyGetsADevice(t *testing.T) {
	ctx, ns := scenario(t)
	budget(t, ctx, ns, 1)
	replicas := func(ctx context.Context, n int) {
		t.Helper()
		for _, args := range [][]string{
			{"scale", "deployment/sluice-quota", fmt.Sprintf("--replicas=%d", n)},
			{"wait", "deployment/sluice-quota", fmt.Sprintf("--for=jsonpath={.status.replicas}=%d", n), "--timeout=" + patience.String()},
			{"rollout", "status", "deployment/sluice-quota", "--timeout=" + patience.String()},
		} {
			if n == 0 && args[0] == "wait" {
				args = []string{"wait", "pod", "--selector=app.kubernetes.io/component=quota", "--for=delete", "--timeout=" + patience.String()}
			}
			if _, err := bed.Cluster.Kubectl(ctx, append([]string{"--namespace", testbed.SystemNamespace}, args...)...); err != nil {
				t.Fatal(err)
			}
		}
	}
	back := false
	t.Cleanup(func() {
		if !back {
			replicas(context.WithoutCancel(ctx), 1)
		}
	})
	replicas(ctx, 0)
	tenant := tenantOf(t, ctx, ns)
	for _, name := range []string{"one", "two"} {
		p, err := tenant.CoreV1().Pods(ns).Create(ctx, queued(name), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Spec.SchedulingGates) > 0 {
			t.Fatalf("%s is held by %v: the webhook is not away", name, p.Spec.SchedulingGates)
		}
	}
	// Its program finds no card and ends; a kubelet has started it, which is what counts.
	create(t, ctx, ns, testbed.Pod("other", []string{"hold"}, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }))
	for _, name := range []string{"one", "two"} {
		err := testbed.Until(patient(t, ctx), name+" to be refused a device", func() (bool, string, error) {
			events, err := bed.Events(ctx, ns, name)
			said := strings.Join(events, "\n")
			return strings.Contains(said, "has no ticket"), said, err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if allocated, _ := holding(t, ctx, ns); allocated > 0 {
		t.Errorf("%d shares are allocated", allocated)
	}
	if _, err := bed.WaitPhase(patient(t, ctx), ns, "other", corev1.PodRunning); err != nil {
		t.Error(err)
	}
	replicas(ctx, 1)
	back = true
	waitHolding(t, ctx, ns, 1)
	w, err := bed.Workloads(ctx, ns)
	if err != nil {
		t.Fatal(err)
	}
	first, then := "one", "two"
	if w["two"].Admitted {
		first, then = then, first
	}
	if _, err := bed.WaitPhase(patient(t, ctx), ns, first, corev1.PodRunning); err != nil {
		t.Fatal(err)
	}
	if err := bed.Client.CoreV1().Pods(ns).Delete(ctx, first, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := bed.WaitPhase(patient(t, ctx), ns, then, corev1.PodRunning); err != nil {
		t.Error(err)
	}
	waitHolding(t, ctx, ns, 1)
}
