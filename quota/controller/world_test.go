package controller_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gpu/sluice/quota/config"
	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/jobs"
	"github.com/sluice-gpu/sluice/quota/webhook"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(klog.Background())
	if orders := os.Getenv(replicaVariable); orders != "" {
		if err := replicaMain(orders); err != nil {
			fmt.Fprintln(os.Stderr, "replica:", err)
			os.Exit(1)
		}
		return
	}
	// client-go has read it; the caches of the programs that are started here are
	// others' matter.
	os.Unsetenv("KUBE_CACHE_MUTATION_DETECTOR")
	os.Exit(apitest.Main(m))
}

const account = "system:serviceaccount:sluice-system:sluice-quota"

// world is a cluster with the chart's policies and roles, bare nodes, and the
// real scheduler and controller-manager.
type world struct {
	*apitest.Server
	client client.Client
	ns     string
	stop   context.CancelFunc
	done   chan struct{}
	hook   *hook
	// engine draws the queues of the controller that was started last.
	engine func() string
}

var once sync.Once

// newWorld makes a namespace of its own in the shared cluster. Nodes and queues
// carry the namespace's name, so tests do not meet.
func newWorld(t *testing.T) *world {
	t.Helper()
	s := apitest.Shared(t)
	once.Do(func() {
		s.InstallCRDs(t)
		s.Apply(t, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: sluice-system}\n"))
		s.Apply(t, apitest.Render(t, []string{"quota-policies.yaml", "quota-rbac.yaml", "deviceclasses.yaml"}, "quota.enforce=all"))
		if err := s.StartControllers(); err != nil {
			t.Fatal(err)
		}
	})
	return worldOn(t, s)
}

// worldOn makes a namespace of its own in a cluster.
func worldOn(t *testing.T, s *apitest.Server) *world {
	t.Helper()
	c, err := client.New(s.Admin, client.Options{Scheme: controller.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Server: s, client: c}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "team-"}}
	if err := c.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	w.ns = ns.Name
	t.Cleanup(func() { w.clean(t) })
	return w
}

// clean removes what the test made, so that the next finds its nodes empty.
func (w *world) clean(t *testing.T) {
	ctx := context.Background()
	if t.Failed() && w.engine != nil {
		t.Logf("engine:\n%s", w.engine())
	}
	w.halt()
	if t.Failed() {
		t.Logf("controller-manager: %s", w.Log("kube-controller-manager"))
		w.dump(t)
	}
	table, err := jobs.NewTable()
	if err != nil {
		t.Error(err)
	}
	for _, k := range table.All() {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(k.GroupVersionKind())
		if err := w.client.DeleteAllOf(ctx, u, client.InNamespace(w.ns), client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	for _, o := range []client.Object{&corev1.Pod{}, &resourceapi.ResourceClaimTemplate{}, &kueue.Workload{}, &kueue.LocalQueue{}} {
		if err := w.client.DeleteAllOf(ctx, o, client.InNamespace(w.ns), client.GracePeriodSeconds(0), client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			t.Error(err)
		}
	}
	// Nobody is left who would take the finalizers off.
	var wls kueue.WorkloadList
	if err := w.client.List(ctx, &wls, client.InNamespace(w.ns)); err != nil {
		t.Error(err)
	}
	for i := range wls.Items {
		if err := client.IgnoreNotFound(w.client.Patch(ctx, &wls.Items[i], client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))); err != nil {
			t.Error(err)
		}
	}
	w.unlock(t)
	for _, o := range []client.Object{&kueue.ClusterQueue{}, &kueue.Cohort{}, &kueue.ResourceFlavor{}, &kueue.WorkloadPriorityClass{}, &corev1.Node{}, &resourceapi.ResourceSlice{}} {
		if err := w.client.DeleteAllOf(ctx, o, client.MatchingLabels{"team": w.ns}); err != nil {
			t.Error(err)
		}
	}
}

// unlock takes the finalizers off queues and flavors, in place of a controller.
func (w *world) unlock(t *testing.T) {
	ctx := context.Background()
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
	for _, list := range []client.ObjectList{&kueue.ClusterQueueList{}, &kueue.ResourceFlavorList{}, &kueue.LocalQueueList{}} {
		if err := w.client.List(ctx, list); err != nil {
			t.Error(err)
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			item, ok := o.(client.Object)
			if !ok || item.GetLabels()["team"] != w.ns && item.GetNamespace() != w.ns {
				return nil
			}
			return client.IgnoreNotFound(w.client.Patch(ctx, item, patch))
		}); err != nil {
			t.Error(err)
		}
	}
}

func (w *world) dump(t *testing.T) {
	ctx := context.Background()
	var wls kueue.WorkloadList
	_ = w.client.List(ctx, &wls, client.InNamespace(w.ns))
	for i := range wls.Items {
		b, _ := yaml.Marshal(wls.Items[i].Status)
		t.Logf("workload %s:\n%s", wls.Items[i].Name, b)
	}
	var pods corev1.PodList
	_ = w.client.List(ctx, &pods, client.InNamespace(w.ns))
	for i := range pods.Items {
		p := &pods.Items[i]
		t.Logf("pod %s: gates %v node %q nominated %q conditions %v", p.Name, p.Spec.SchedulingGates, p.Spec.NodeName, p.Status.NominatedNodeName, p.Status.Conditions)
	}
	var claims resourceapi.ResourceClaimList
	_ = w.client.List(ctx, &claims, client.InNamespace(w.ns))
	for i := range claims.Items {
		t.Logf("claim %s: %v allocated %v", claims.Items[i].Name, claims.Items[i].Annotations, claims.Items[i].Status.Allocation != nil)
	}
	var events corev1.EventList
	_ = w.client.List(ctx, &events, client.InNamespace(w.ns))
	for i := range events.Items {
		e := &events.Items[i]
		t.Logf("event %s/%s %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
	}
}

// start runs the controller as its service account, with the chart's rights.
func (w *world) start(t *testing.T) *controller.Controller {
	t.Helper()
	return w.startWith(t, "")
}

// startWith runs it with a configuration, and with what changes its connection.
func (w *world) startWith(t *testing.T, configuration string, changes ...func(*rest.Config)) *controller.Controller {
	t.Helper()
	connection := w.As(account, "system:serviceaccounts", "system:serviceaccounts:sluice-system")
	for _, change := range changes {
		change(connection)
	}
	mgr, err := ctrl.NewManager(connection, ctrl.Options{
		Scheme:     controller.Scheme(),
		NewCache:   controller.NewCache,
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: crconfig.Controller{SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Decode([]byte(configuration))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c, err := controller.Setup(ctx, mgr, cfg, prometheus.NewRegistry())
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	w.engine = c.String
	w.stop, w.done = cancel, make(chan struct{})
	go func() {
		defer close(w.done)
		if err := mgr.Start(ctx); err != nil {
			t.Errorf("manager: %v", err)
		}
	}()
	return c
}

// halt stops the controller, and the webhook with it.
func (w *world) halt() {
	if w.stop != nil {
		w.stop()
		<-w.done
		w.stop = nil
	}
	if w.hook != nil {
		w.hook.remove()
		w.hook = nil
	}
}

// hook is the chart's webhook, served on loopback.
type hook struct {
	server *httptest.Server
	remove func()
}

// serveWebhook serves it as the chart has it with these values.
func (w *world) serveWebhook(t *testing.T, c *controller.Controller, set ...string) {
	t.Helper()
	mux := http.NewServeMux()
	for path, h := range webhook.Handlers(c, []string{"system:kube-scheduler"}) {
		mux.Handle(path, h)
	}
	server := httptest.NewTLSServer(mux)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	cfg := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := yaml.Unmarshal(bytes.TrimPrefix(apitest.Render(t, []string{"quota-webhook.yaml"}, set...), []byte("---\n")), cfg); err != nil {
		t.Fatal(err)
	}
	for i := range cfg.Webhooks {
		at := &cfg.Webhooks[i].ClientConfig
		at.URL = ptr.To(server.URL + *at.Service.Path)
		at.Service, at.CABundle = nil, authority
		// A webhook that fails must fail the test.
		cfg.Webhooks[i].FailurePolicy = ptr.To(admissionregistrationv1.Fail)
	}
	if err := w.client.Create(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	w.hook = &hook{server: server, remove: func() {
		_ = w.client.Delete(context.Background(), cfg)
		time.Sleep(500 * time.Millisecond)
		server.Close()
	}}
	apitest.Eventually(t, apitest.Patience, "webhook in force", func(ctx context.Context) error {
		p := pod("probe", "none")
		p.Namespace, p.Labels = w.ns, map[string]string{c.QueueLabel(): "none"}
		if err := w.client.Create(ctx, p, client.DryRunAll); err != nil {
			return err
		}
		if !controller.HasGate(p) {
			return fmt.Errorf("a labelled pod is not gated")
		}
		return nil
	})
}

// node makes a bare node with cards. A slice size makes them fixed.
func (w *world) node(t *testing.T, name string, cards int, memory, slice string, labels map[string]string) string {
	t.Helper()
	name = w.ns + "-" + name
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": w.ns, "kubernetes.io/hostname": name}}}
	for k, v := range labels {
		n.Labels[k] = v
	}
	if err := w.client.Create(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	bare := n.DeepCopy()
	n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("16"), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("110")}
	n.Status.Capacity = n.Status.Allocatable
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := w.client.Status().Patch(t.Context(), n, client.MergeFrom(bare)); err != nil {
		t.Fatal(err)
	}
	// A new node is tainted until somebody reports that it is ready.
	if err := w.client.Patch(t.Context(), n, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"taints":null}}`))); err != nil {
		t.Fatal(err)
	}
	s := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": w.ns}},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: "gpu.sluice.dev", NodeName: &name,
			Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
		},
	}
	for i := range cards {
		s.Spec.Devices = append(s.Spec.Devices, gpuCard(fmt.Sprintf("gpu-%d", i), memory, slice))
	}
	if err := w.client.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return name
}

// gpuCard is a card as the driver publishes it.
func gpuCard(name, memory, slice string) resourceapi.Device {
	total := resource.MustParse(memory)
	policy := &resourceapi.CapacityRequestPolicy{Default: &total, ValidRange: &resourceapi.CapacityRequestPolicyRange{
		Min: ptr.To(resource.MustParse("256Mi")), Step: ptr.To(resource.MustParse("1Mi"))}}
	if slice != "" {
		size := resource.MustParse(slice)
		policy = &resourceapi.CapacityRequestPolicy{Default: &size, ValidValues: []resource.Quantity{size}}
	}
	return resourceapi.Device{
		Name: name, AllowMultipleAllocations: ptr.To(true),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: ptr.To("gpu")}},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: total, RequestPolicy: policy},
			"cores": {Value: resource.MustParse("100"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default:    ptr.To(resource.MustParse("0")),
				ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("0")), Step: ptr.To(resource.MustParse("1"))}}},
		},
	}
}

// flavor makes a flavor over this test's nodes.
func (w *world) flavor(t *testing.T, name string, labels map[string]string, tolerations ...corev1.Toleration) string {
	t.Helper()
	name = w.ns + "-" + name
	f := &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": w.ns}}}
	f.Spec.NodeLabels = map[string]string{"team": w.ns}
	for k, v := range labels {
		f.Spec.NodeLabels[k] = v
	}
	f.Spec.Tolerations = tolerations
	if err := w.client.Create(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	return name
}

// queue makes a ClusterQueue and its LocalQueue "queue-<name>". quotas are
// "resource=amount" of one flavor.
func (w *world) queue(t *testing.T, name, flavor string, quotas ...string) string {
	t.Helper()
	return w.queueOver(t, name, []string{flavor}, quotas...)
}

func (w *world) queueOver(t *testing.T, name string, flavors []string, quotas ...string) string {
	t.Helper()
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: w.ns + "-" + name, Labels: map[string]string{"team": w.ns}}}
	cq.Spec.NamespaceSelector = &metav1.LabelSelector{}
	cq.Spec.QueueingStrategy = kueue.BestEffortFIFO
	g := kueue.ResourceGroup{}
	for i, f := range flavors {
		fq := kueue.FlavorQuotas{Name: kueue.ResourceFlavorReference(f)}
		for _, q := range quotas {
			r, n, _ := strings.Cut(q, "=")
			if i == 0 {
				g.CoveredResources = append(g.CoveredResources, corev1.ResourceName(r))
			}
			fq.Resources = append(fq.Resources, kueue.ResourceQuota{Name: corev1.ResourceName(r), NominalQuota: resource.MustParse(n)})
		}
		g.Flavors = append(g.Flavors, fq)
	}
	cq.Spec.ResourceGroups = []kueue.ResourceGroup{g}
	if err := w.client.Create(t.Context(), cq); err != nil {
		t.Fatal(err)
	}
	lq := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "queue-" + name}}
	lq.Spec.ClusterQueue = kueue.ClusterQueueReference(cq.Name)
	if err := w.client.Create(t.Context(), lq); err != nil {
		t.Fatal(err)
	}
	return cq.Name
}

// template makes a claim template.
func (w *world) template(t *testing.T, name, memory, cores string) {
	t.Helper()
	x := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	x.Spec.Spec = claimSpec(memory, cores)
	if err := w.client.Create(t.Context(), x); err != nil {
		t.Fatal(err)
	}
}

func claimSpec(memory, cores string) resourceapi.ResourceClaimSpec {
	exact := &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.sluice.dev", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	if memory != "" {
		exact.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}}
		if cores != "" {
			exact.Capacity.Requests["cores"] = resource.MustParse(cores)
		}
	}
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: exact}}}}
}

// pod is a labelled pod without devices.
func pod(name, queue string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{controller.QueueLabel: queue}},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
}

func gated(p *corev1.Pod) *corev1.Pod {
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: controller.Gate}}
	return p
}

func withTemplate(p *corev1.Pod, template string) *corev1.Pod {
	p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: &template})
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	return p
}

func withClaim(p *corev1.Pod, claim string) *corev1.Pod {
	p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &claim})
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	return p
}

func withLimit(p *corev1.Pod, gpus string) *corev1.Pod {
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus)}
	return p
}

func (w *world) create(t *testing.T, o client.Object) {
	t.Helper()
	o.SetNamespace(w.ns)
	if err := w.client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// bound waits until a pod is on a node.
func (w *world) bound(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{}
	apitest.Eventually(t, apitest.Patience, "pod "+name+" bound", func(ctx context.Context) error {
		if err := w.client.Get(ctx, client.ObjectKey{Namespace: w.ns, Name: name}, p); err != nil {
			return err
		}
		if p.Spec.NodeName == "" {
			return fmt.Errorf("gates %v, nominated %q, conditions %v", p.Spec.SchedulingGates, p.Status.NominatedNodeName, p.Status.Conditions)
		}
		return nil
	})
	return p
}

// waits asserts that the pod's workload waits with a reason that says something.
func (w *world) waits(t *testing.T, owner client.Object, says string) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, owner.GetName()+" waits because "+says, func(ctx context.Context) error {
		wl, err := w.workloadOf(ctx, owner)
		if err != nil {
			return err
		}
		for _, c := range wl.Status.Conditions {
			if c.Type != kueue.WorkloadQuotaReserved || c.Status != metav1.ConditionFalse {
				continue
			}
			if strings.Contains(c.Message, "(position") {
				t.Errorf("a place in the queue is kept, which changes: %s", c.Message)
			}
			if strings.Contains(c.Message, says) {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", wl.Status.Conditions)
	})
}

func (w *world) workloadOf(ctx context.Context, owner client.Object) (*kueue.Workload, error) {
	var all kueue.WorkloadList
	if err := w.client.List(ctx, &all, client.InNamespace(w.ns)); err != nil {
		return nil, err
	}
	for i := range all.Items {
		for _, o := range all.Items[i].OwnerReferences {
			if o.UID == owner.GetUID() {
				return &all.Items[i], nil
			}
		}
	}
	return nil, fmt.Errorf("no Workload of %s", owner.GetName())
}

// usage waits until a ClusterQueue's status says that it uses what is wanted,
// as "resource=amount".
func (w *world) usage(t *testing.T, queue string, want ...string) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, "usage of "+queue, func(ctx context.Context) error {
		cq := &kueue.ClusterQueue{}
		if err := w.client.Get(ctx, client.ObjectKey{Name: queue}, cq); err != nil {
			return err
		}
		for _, q := range want {
			r, n, _ := strings.Cut(q, "=")
			sum := resource.Quantity{}
			for _, f := range cq.Status.FlavorsReservation {
				for _, u := range f.Resources {
					if string(u.Name) == r {
						sum.Add(u.Total)
					}
				}
			}
			if sum.Cmp(resource.MustParse(n)) != 0 {
				return fmt.Errorf("%s is %s, want %s", r, sum.String(), n)
			}
		}
		return nil
	})
}

// end lets a pod succeed, as a kubelet would report.
func (w *world) end(t *testing.T, p *corev1.Pod) {
	t.Helper()
	p = p.DeepCopy()
	p.Status.Phase = corev1.PodSucceeded
	if err := w.client.Status().Patch(t.Context(), p, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"phase":"Succeeded"}}`))); err != nil {
		t.Fatal(err)
	}
}
