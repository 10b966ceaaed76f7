package ticket

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

func TestMain(m *testing.M) { os.Exit(apitest.Main(m)) }

const controller = "system:serviceaccount:sluice-system:sluice-quota"

// world is a namespace on a server that has the chart's policies in force.
type world struct {
	*apitest.Server
	ns string
	// scheduler writes allocations, tenant has the role edit in the namespace,
	// quota is the quota controller.
	scheduler, tenant, quota *kubernetes.Clientset
}

func enforced(t *testing.T) *world {
	t.Helper()
	s := apitest.Shared(t)
	s.Apply(t, apitest.Render(t, []string{"quota-policies.yaml"}, "quota.enforce=all"))
	w := &world{Server: s, ns: namespace(t, s, nil)}
	grant(t, s, w.ns)
	w.scheduler = s.ClientsAs(t, "system:kube-scheduler")
	w.tenant = s.ClientsAs(t, "tenant")
	w.quota = s.ClientsAs(t, controller, "system:masters")
	// A policy takes a moment to be in force everywhere.
	apitest.Eventually(t, apitest.Patience, "policies in force", func(ctx context.Context) error {
		probe := w.claim(t, nil)
		if err := w.allocate(probe, share("node-1", "gpu-0", "1Gi", "0")); err == nil {
			return fmt.Errorf("an allocation without a ticket still passes")
		}
		_, err := w.tenant.ResourceV1().ResourceClaims(w.ns).Create(ctx, claimObject("forged-probe-", Ticket{}.Annotations()), metav1.CreateOptions{DryRun: []string{"All"}})
		if err == nil {
			return fmt.Errorf("a forged ticket still passes")
		}
		return nil
	})
	return w
}

func namespace(t *testing.T, s *apitest.Server, labels map[string]string) string {
	t.Helper()
	ns, err := s.Clients.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "team-", Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// grant gives the user tenant what the role edit gives. (The role itself is
// put together from these two by a controller that does not run here.)
func grant(t *testing.T, s *apitest.Server, ns string) {
	t.Helper()
	for _, part := range []string{"system:aggregate-to-edit", "system:aggregate-to-view"} {
		s.Apply(t, fmt.Appendf(nil, `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %q, namespace: %s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %q}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: tenant}]
`, part, ns, part))
	}
}

func claimObject(generate string, annotations map[string]string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{GenerateName: generate, Annotations: annotations},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.sluice.dev"}},
		}}},
	}
}

// claim makes a claim; with a ticket, as the quota controller writes it.
func (w *world) claim(t *testing.T, tick *Ticket) *resourceapi.ResourceClaim {
	t.Helper()
	c, err := w.tenant.ResourceV1().ResourceClaims(w.ns).Create(t.Context(), claimObject("claim-", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if tick != nil {
		c.Annotations = tick.Annotations()
		if c, err = w.quota.ResourceV1().ResourceClaims(w.ns).Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// allocate writes an allocation to the claim's status as the scheduler does.
func (w *world) allocate(c *resourceapi.ResourceClaim, results ...resourceapi.DeviceRequestAllocationResult) error {
	ctx := context.Background()
	if len(c.Finalizers) == 0 {
		c = c.DeepCopy()
		c.Finalizers = []string{resourceapi.Finalizer}
		updated, err := w.scheduler.ResourceV1().ResourceClaims(c.Namespace).Update(ctx, c, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("the finalizer: %w", err)
		}
		c = updated
	}
	c = c.DeepCopy()
	for i := range results {
		results[i].Request = "gpu"
		if results[i].ShareID != nil {
			results[i].ShareID = ptr.To(types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i+1)))
		}
	}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
	_, err := w.scheduler.ResourceV1().ResourceClaims(c.Namespace).UpdateStatus(ctx, c, metav1.UpdateOptions{})
	return err
}

func refused(t *testing.T, err error, says string) {
	t.Helper()
	if err == nil {
		t.Fatalf("allowed, want it refused with %q", says)
	}
	if !strings.Contains(err.Error(), says) {
		t.Fatalf("refused with %q, want it to say %q", err, says)
	}
}

func twentyGi() *Ticket {
	return &Ticket{Workload: "job-a", Price: pricing.Price{Devices: 1, Memory: 20 << 30, Cores: 50}, Pools: []string{"node-1", "node-2"}}
}

func TestAnAllocationWithoutATicketIsRefused(t *testing.T) {
	w := enforced(t)
	refused(t, w.allocate(w.claim(t, nil), share("node-1", "gpu-0", "1Gi", "0")), "has no ticket")
}

func TestATicketLetsExactlyItsAllocationThrough(t *testing.T) {
	w := enforced(t)
	if err := w.allocate(w.claim(t, twentyGi()), share("node-2", "gpu-0", "20Gi", "50")); err != nil {
		t.Fatal(err)
	}
}

func TestSumsPoolsAndMissingFieldsAreChecked(t *testing.T) {
	w := enforced(t)
	two := twentyGi()
	two.Price.Devices = 2
	exclusiveTicket := twentyGi()
	exclusiveTicket.Exclusive = []string{"node-1/mig-0"}
	silent := share("node-1", "gpu-0", "20Gi", "0")
	silent.ConsumedCapacity = nil
	asWhole := silent
	asWhole.ShareID = nil
	admin := exclusive("node-1", "mig-3")
	admin.AdminAccess = ptr.To(true)

	for _, tc := range []struct {
		name    string
		ticket  *Ticket
		results []resourceapi.DeviceRequestAllocationResult
		says    string
	}{
		{"one request above the ticket", twentyGi(), []resourceapi.DeviceRequestAllocationResult{share("node-1", "gpu-0", "21Gi", "0")}, "dearer than its ticket"},
		{"two requests that each fit", two, []resourceapi.DeviceRequestAllocationResult{share("node-1", "gpu-0", "20Gi", "0"), share("node-1", "gpu-1", "20Gi", "0")}, "dearer than its ticket"},
		{"two requests and an exclusive device", twentyGi(), []resourceapi.DeviceRequestAllocationResult{share("node-1", "gpu-0", "20Gi", "0"), share("node-1", "gpu-1", "20Gi", "0"), exclusive("node-1", "mig-0")}, "as a whole that its ticket does not name"},
		{"more shares than paid for", twentyGi(), []resourceapi.DeviceRequestAllocationResult{share("node-1", "gpu-0", "1Gi", "0"), share("node-1", "gpu-1", "1Gi", "0")}, "devices 2 of 1"},
		{"more cores", twentyGi(), []resourceapi.DeviceRequestAllocationResult{share("node-1", "gpu-0", "1Gi", "60")}, "cores 60 of 50"},
		{"a dearer pool", twentyGi(), []resourceapi.DeviceRequestAllocationResult{share("node-h100", "gpu-0", "20Gi", "0")}, "a pool that its ticket does not name"},
		{"a share that does not say what it consumes", twentyGi(), []resourceapi.DeviceRequestAllocationResult{silent}, "does not say how much"},
		{"a share passed off as a whole device", twentyGi(), []resourceapi.DeviceRequestAllocationResult{asWhole}, "as a whole that its ticket does not name"},
		{"memory not said", twentyGi(), []resourceapi.DeviceRequestAllocationResult{share("node-1", "gpu-0", "", "0")}, "does not say how much"},
		{"cores not said", twentyGi(), []resourceapi.DeviceRequestAllocationResult{share("node-1", "gpu-0", "1Gi", "")}, "does not say how much"},
		{"negative memory hides the rest", two, []resourceapi.DeviceRequestAllocationResult{share("node-1", "gpu-0", "40Gi", "0"), share("node-1", "gpu-1", "-20Gi", "0")}, "does not say how much"},
		{"admin access in a namespace that may not", twentyGi(), []resourceapi.DeviceRequestAllocationResult{admin}, "admin"},
		{"an exclusive device that is named", exclusiveTicket, []resourceapi.DeviceRequestAllocationResult{exclusive("node-1", "mig-0")}, ""},
		{"another exclusive device", exclusiveTicket, []resourceapi.DeviceRequestAllocationResult{exclusive("node-1", "mig-1")}, "as a whole that its ticket does not name"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := w.allocate(w.claim(t, tc.ticket), tc.results...)
			if tc.says == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			refused(t, err, tc.says)
		})
	}
}

func TestATicketInPartAdmitsNothingAtTheAPI(t *testing.T) {
	w := enforced(t)
	for _, key := range []string{ByWorkload, Devices, Memory, Cores, Pools, Exclusive} {
		c := w.claim(t, twentyGi())
		c.Annotations = maps.Clone(c.Annotations)
		delete(c.Annotations, key)
		c, err := w.quota.ResourceV1().ResourceClaims(w.ns).Update(t.Context(), c, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		refused(t, w.allocate(c, share("node-1", "gpu-0", "1Gi", "0")), "has no ticket")
	}
}

func TestOtherDriversClaimsAreLeftAlone(t *testing.T) {
	w := enforced(t)
	nic := resourceapi.DeviceRequestAllocationResult{Driver: "nic.example.com", Pool: "node-1", Device: "nic-0"}
	if err := w.allocate(w.claim(t, nil), nic); err != nil {
		t.Fatal(err)
	}
}

func TestTenantsCannotForgeCopyChangeOrRemoveATicket(t *testing.T) {
	w := enforced(t)
	ctx := t.Context()
	claims := w.tenant.ResourceV1().ResourceClaims(w.ns)
	real := w.claim(t, twentyGi())

	_, err := claims.Create(ctx, claimObject("forged-", twentyGi().Annotations()), metav1.CreateOptions{})
	refused(t, err, "only the quota controller")

	plain := w.claim(t, nil)
	plain.Annotations = real.Annotations
	_, err = claims.Update(ctx, plain, metav1.UpdateOptions{})
	refused(t, err, "only the quota controller")

	for name, patch := range map[string]string{
		"raise":  `{"metadata":{"annotations":{"` + Memory + `":"999999999999"}}}`,
		"widen":  `{"metadata":{"annotations":{"` + Pools + `":"node-h100"}}}`,
		"remove": `{"metadata":{"annotations":{"` + Prefix + `":null}}}`,
		"add":    `{"metadata":{"annotations":{"` + Prefix + `-more":"1"}}}`,
	} {
		_, err = claims.Patch(ctx, real.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if err == nil {
			t.Errorf("%s: allowed", name)
			continue
		}
		refused(t, err, "only the quota controller")
	}

	if _, err = claims.Patch(ctx, real.Name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"note":"mine"}}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("an annotation of the user's own: %v", err)
	}
}

func TestATicketInATemplateIsRefused(t *testing.T) {
	w := enforced(t)
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"}}
	template.Spec.Spec = claimObject("", nil).Spec
	template.Spec.Annotations = twentyGi().Annotations()
	_, err := w.tenant.ResourceV1().ResourceClaimTemplates(w.ns).Create(t.Context(), template, metav1.CreateOptions{})
	refused(t, err, "ResourceClaimTemplate must not carry")

	template.Spec.Annotations = nil
	if _, err := w.tenant.ResourceV1().ResourceClaimTemplates(w.ns).Create(t.Context(), template, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyTheSchedulersOwnClaimsAreBornWithATicket(t *testing.T) {
	w := enforced(t)
	born := claimObject("pod-extended-resources-", twentyGi().Annotations())
	_, err := w.scheduler.ResourceV1().ResourceClaims(w.ns).Create(t.Context(), born.DeepCopy(), metav1.CreateOptions{})
	refused(t, err, "only the quota controller")

	born.Annotations[resourceapi.ExtendedResourceClaimAnnotation] = "true"
	if _, err := w.scheduler.ResourceV1().ResourceClaims(w.ns).Create(t.Context(), born.DeepCopy(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = w.tenant.ResourceV1().ResourceClaims(w.ns).Create(t.Context(), born.DeepCopy(), metav1.CreateOptions{})
	refused(t, err, "only the quota controller")
}

func TestAnAllocatedClaimCannotBeStrippedOfItsFinalizer(t *testing.T) {
	w := enforced(t)
	ctx := t.Context()
	c := w.claim(t, twentyGi())
	if err := w.allocate(c, share("node-1", "gpu-0", "20Gi", "0")); err != nil {
		t.Fatal(err)
	}
	claims := w.tenant.ResourceV1().ResourceClaims(w.ns)
	if err := claims.Delete(ctx, c.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := claims.Patch(ctx, c.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	refused(t, err, "its finalizer")

	got, err := w.Clients.ResourceV1().ResourceClaims(w.ns).Get(ctx, c.Name, metav1.GetOptions{})
	if err != nil || got.Status.Allocation == nil {
		t.Fatalf("the claim is gone or not allocated any more: %v", err)
	}
	got.Status.Allocation = nil
	_, err = w.Clients.ResourceV1().ResourceClaims(w.ns).UpdateStatus(ctx, got, metav1.UpdateOptions{})
	refused(t, err, "its allocation is cleared by")

	// The claim controller frees the devices, then lets the claim go.
	releaser := w.ClientsAs(t, "system:serviceaccount:kube-system:resource-claim-controller", "system:masters")
	freed, err := releaser.ResourceV1().ResourceClaims(w.ns).UpdateStatus(ctx, got, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	freed.Finalizers = nil
	if _, err := releaser.ResourceV1().ResourceClaims(w.ns).Update(ctx, freed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestTheGateIsOpenedByTheControllerAlone(t *testing.T) {
	w := enforced(t)
	ctx := t.Context()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/other"}, {Name: "quota.sluice.dev/admission"}},
			Containers:      []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
	p, err := w.tenant.CoreV1().Pods(w.ns).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	open := `{"spec":{"schedulingGates":null}}`
	_, err = w.tenant.CoreV1().Pods(w.ns).Patch(ctx, p.Name, types.MergePatchType, []byte(open), metav1.PatchOptions{})
	refused(t, err, "waits for quota")

	other := `{"spec":{"schedulingGates":[{"name":"quota.sluice.dev/admission"}]}}`
	if _, err := w.tenant.CoreV1().Pods(w.ns).Patch(ctx, p.Name, types.MergePatchType, []byte(other), metav1.PatchOptions{}); err != nil {
		t.Fatalf("a gate of somebody else: %v", err)
	}
	if _, err := w.quota.CoreV1().Pods(w.ns).Patch(ctx, p.Name, types.MergePatchType, []byte(open), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestTheMonitorIsForAdminAccessAlone(t *testing.T) {
	w := enforced(t)
	monitorTicket := twentyGi()
	monitorTicket.Exclusive = []string{"node-1/monitor"}
	refused(t, w.allocate(w.claim(t, monitorTicket), exclusive("node-1", "monitor")), "only for requests with adminAccess")

	admins := *w
	admins.ns = namespace(t, w.Server, map[string]string{"resource.kubernetes.io/admin-access": "true"})
	grant(t, w.Server, admins.ns)
	refused(t, admins.allocate(admins.claim(t, monitorTicket), exclusive("node-1", "monitor")), "only for requests with adminAccess")

	c := claimObject("monitor-", nil)
	c.Spec.Devices.Requests[0].Exactly.AdminAccess = ptr.To(true)
	c, err := admins.tenant.ResourceV1().ResourceClaims(admins.ns).Create(t.Context(), c, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	given := exclusive("node-1", "monitor")
	given.AdminAccess = ptr.To(true)
	if err := admins.allocate(c, given); err != nil {
		t.Fatal(err)
	}
}

func TestTheControllersMarksAreItsAlone(t *testing.T) {
	w := enforced(t)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Labels: map[string]string{"quota.sluice.dev/podset": "main"}}}
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	p, err := w.tenant.CoreV1().Pods(w.ns).Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{GenerateName: "j-"}}
	j.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: p.Spec.Containers}
	if j, err = w.tenant.BatchV1().Jobs(w.ns).Create(t.Context(), j, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	job := func(c *kubernetes.Clientset, patch string) error {
		_, err := c.BatchV1().Jobs(w.ns).Patch(t.Context(), j.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	pod := func(c *kubernetes.Clientset, patch string) error {
		_, err := c.CoreV1().Pods(w.ns).Patch(t.Context(), p.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	const mine = "written by the quota controller"
	for _, patch := range []string{
		`{"metadata":{"labels":{"quota.sluice.dev/podset":"x"}}}`,
		`{"metadata":{"labels":{"quota.sluice.dev/podset":null}}}`,
		`{"metadata":{"labels":{"quota.sluice.dev/workload":"x"}}}`,
	} {
		refused(t, pod(w.tenant, patch), mine)
		if err := pod(w.quota, patch); err != nil {
			t.Error(err)
		}
		if err := pod(w.quota, `{"metadata":{"labels":{"quota.sluice.dev/podset":"main","quota.sluice.dev/workload":null}}}`); err != nil {
			t.Error(err)
		}
	}
	const broken = `{"metadata":{"annotations":{"quota.sluice.dev/original-templates":"x"}}}`
	refused(t, job(w.tenant, broken), mine)
	if err := job(w.quota, broken); err != nil {
		t.Error(err)
	}
	refused(t, job(w.tenant, `{"metadata":{"annotations":{"quota.sluice.dev/original-templates":null}}}`), mine)
	for _, err := range []error{pod(w.tenant, `{"metadata":{"labels":{"app":"y"}}}`), job(w.tenant, `{"metadata":{"annotations":{"note":"y"}}}`)} {
		if err != nil {
			t.Errorf("what is the tenant's own is refused: %v", err)
		}
	}
}

// The policy and Covers are one rule said twice; they must agree on anything.
func TestThePolicyAndCoversAgree(t *testing.T) {
	w := enforced(t)
	rapid.Check(t, func(r *rapid.T) {
		tick := &Ticket{
			Workload:  "w",
			Price:     pricing.Price{Devices: rapid.Int64Range(0, 3).Draw(r, "devices"), Memory: rapid.Int64Range(0, 40).Draw(r, "memory") << 30, Cores: rapid.Int64Range(0, 100).Draw(r, "cores")},
			Pools:     rapid.SampledFrom([][]string{{"node-1"}, {"node-1", "node-2"}}).Draw(r, "pools"),
			Exclusive: rapid.SampledFrom([][]string{nil, {"node-1/mig-0"}}).Draw(r, "exclusive"),
		}
		var results []resourceapi.DeviceRequestAllocationResult
		for i := range rapid.IntRange(1, 3).Draw(r, "results") {
			pool := rapid.SampledFrom([]string{"node-1", "node-1", "node-2"}).Draw(r, "pool")
			switch rapid.IntRange(0, 5).Draw(r, "kind") {
			case 0:
				results = append(results, exclusive(pool, fmt.Sprintf("mig-%d", i)))
			case 1:
				results = append(results, resourceapi.DeviceRequestAllocationResult{Driver: "nic.example.com", Pool: pool, Device: fmt.Sprintf("nic-%d", i)})
			default:
				s := share(pool, "gpu-0", "1Gi", "0")
				s.ConsumedCapacity["memory"] = *resource.NewQuantity(rapid.Int64Range(0, 25).Draw(r, "m")<<30, resource.BinarySI)
				s.ConsumedCapacity["cores"] = *resource.NewQuantity(rapid.Int64Range(0, 60).Draw(r, "c"), resource.DecimalSI)
				if rapid.IntRange(0, 9).Draw(r, "incomplete") == 0 {
					delete(s.ConsumedCapacity, "cores")
				}
				results = append(results, s)
			}
		}
		want := tick.Covers(results, false)
		got := w.allocate(w.claim(t, tick), results...)
		if (want == nil) != (got == nil) {
			r.Fatalf("the policy says %v, Covers says %v\nticket %+v\nresults %+v", got, want, tick, results)
		}
	})
}
