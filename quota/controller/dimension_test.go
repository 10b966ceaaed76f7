package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/config"
	"github.com/sluice-gpu/sluice/quota/engine"
)

// garage is a core by a configuration, with two flavors: "old" has two cards of
// 40Gi, "new" has two of 80Gi.
func garage(t *testing.T, configuration string) *core {
	t.Helper()
	cfg, err := config.Decode([]byte(configuration))
	if err != nil {
		t.Fatal(err)
	}
	c := newCore(cfg)
	c.caughtUp, c.synced = true, true
	class := class("gpu.sluice.dev", "1")
	class.Spec.ExtendedResourceName = ptr.To("nvidia.com/gpu")
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.sluice.dev"`}}}
	c.saw(class)
	c.saw(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}})
	for name, memory := range map[string]string{"old": "40Gi", "new": "80Gi"} {
		labels := map[string]string{"cards": name}
		f := &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: name}}
		f.Spec.NodeLabels = labels
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		node.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("16"), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("110")}
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
		slice.Spec = resourceapi.ResourceSliceSpec{Driver: "gpu.sluice.dev", NodeName: ptr.To(name), Pool: resourceapi.ResourcePool{Name: name, ResourceSliceCount: 1}}
		for _, card := range []string{"gpu-0", "gpu-1"} {
			total := resource.MustParse(memory)
			slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
				Name: card, AllowMultipleAllocations: ptr.To(true),
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"fp16TFLOPS": {IntValue: ptr.To(total.Value() >> 30)}},
				Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
					"memory": {Value: total, RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &total, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("256Mi"))}}},
					"cores": {Value: resource.MustParse("100"), RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: ptr.To(resource.MustParse("0")),
						ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("0"))}}},
				},
			})
		}
		for _, o := range []any{f, node, slice} {
			c.saw(o)
		}
	}
	return c
}

// budget gives team a queue over flavors, of one resource.
func (c *core) budget(r, nominal string, flavors ...string) {
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "q"}}
	cq.Spec.NamespaceSelector = &metav1.LabelSelector{}
	cq.Spec.QueueingStrategy = kueue.BestEffortFIFO
	g := kueue.ResourceGroup{CoveredResources: []corev1.ResourceName{corev1.ResourceName(r)}}
	for _, f := range flavors {
		g.Flavors = append(g.Flavors, kueue.FlavorQuotas{Name: kueue.ResourceFlavorReference(f), Resources: []kueue.ResourceQuota{{Name: corev1.ResourceName(r), NominalQuota: resource.MustParse(nominal)}}})
	}
	cq.Spec.ResourceGroups = []kueue.ResourceGroup{g}
	lq := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "q"}}
	lq.Spec.ClusterQueue = "q"
	c.saw(cq)
	c.saw(lq)
}

// wants is a Workload of one pod with a claim.
func (c *core) wants(name, memory, cores string) engine.WorkloadID {
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("t" + name)}}
	exact := &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.sluice.dev", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	for key, q := range map[resourceapi.QualifiedName]string{"memory": memory, "cores": cores} {
		if q != "" {
			if exact.Capacity == nil {
				exact.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
			}
			exact.Capacity.Requests[key] = resource.MustParse(q)
		}
	}
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: exact}}
	c.saw(template)
	wl := (&api{uid: types.UID(name)}).next(nil)
	wl.Name = name
	wl.Spec.QueueName = "q"
	wl.Spec.PodSets[0].Template.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &name}}
	c.saw(wl)
	return workloadID("team", name)
}

// given is what was decided for a workload of one pod, nil if it waits.
func (c *core) given(id engine.WorkloadID) *engine.PodSetAssignment {
	c.decide()
	if w := c.works[id]; w != nil && w.admit != nil {
		return &w.admit.Assignment.PodSets[0]
	}
	return nil
}

func TestAQueueCountsCardsInThousandths(t *testing.T) {
	c := garage(t, "")
	c.budget("quota.sluice.dev/cards", "1250m", "new")
	if a := c.given(c.wants("quarter", "20Gi", "10")); a == nil || a.Usage["quota.sluice.dev/cards"] != 250 {
		t.Fatalf("a quarter of a card: %+v", a)
	}
	if a := c.given(c.wants("whole", "", "")); a == nil || a.Usage["quota.sluice.dev/cards"] != 1000 {
		t.Fatalf("a whole card: %+v", a)
	}
	id := c.wants("more", "1Gi", "")
	if a := c.given(id); a != nil {
		t.Errorf("admitted beyond the budget: %+v", a)
	}
	if why := c.engine.Why(id).String(); why == "" {
		t.Error("it waits without a reason")
	}
}

// TestAQueueThatCountsOnlyWhatCostsNothingStillGivesTheDevice: no guaranteed
// time costs nothing in this budget, and devices are those of its flavor.
func TestAQueueThatCountsOnlyWhatCostsNothingStillGivesTheDevice(t *testing.T) {
	const configuration = "dimensions: [{name: example.com/tflops, expression: 'device.attributes[\"gpu.sluice.dev\"].fp16TFLOPS * request.coresShare'}]"
	for _, strategy := range []string{"", "\nquotaCheckStrategy: BlockUndeclared"} {
		c := garage(t, configuration+strategy)
		c.budget("example.com/tflops", "100", "new")
		a := c.given(c.wants("idle", "20Gi", "0"))
		if a == nil || a.Flavors["example.com/tflops"] != "new" || a.Usage["example.com/tflops"] != 0 {
			t.Fatalf("%q: %+v: %s", strategy, a, c.engine.Why("team/idle"))
		}
		if a := c.given(c.wants("busy", "20Gi", "50")); a == nil || a.Usage["example.com/tflops"] != 40 {
			t.Errorf("%q: %+v", strategy, a)
		}
	}
}

func TestTheHAMiPresetCountsMiB(t *testing.T) {
	c := garage(t, "presets: [hami]")
	c.budget("nvidia.com/total-gpumem", "30000", "new")
	if a := c.given(c.wants("one", "20000Mi", "")); a == nil || a.Usage["nvidia.com/total-gpumem"] != 20000 {
		t.Errorf("%+v", a)
	}
	if a := c.given(c.wants("two", "20000Mi", "")); a != nil {
		t.Errorf("admitted beyond the budget: %+v", a)
	}
}

// TestARequestWithoutASizeIsPricedByItsFlavor: not by the largest card of the
// cluster.
func TestARequestWithoutASizeIsPricedByItsFlavor(t *testing.T) {
	for flavor, want := range map[string]engine.Amount{"old": 40 << 30, "new": 80 << 30} {
		c := garage(t, "")
		c.budget("nvidia.com/gpu-memory", "100Gi", flavor)
		if a := c.given(c.wants("w", "", "")); a == nil || a.Usage["nvidia.com/gpu-memory"] != want {
			t.Errorf("on %s: %+v", flavor, a)
		}
	}
}

func TestFlavorsAreTriedInTheOrderOfTheirCost(t *testing.T) {
	const cost = "dimensions: [{name: example.com/cost, expression: 'request.memory / 1073741824.0'}]\nflavorOrder: example.com/cost"
	for configuration, want := range map[string]engine.FlavorName{"": "new", cost: "old"} {
		c := garage(t, configuration)
		c.budget("nvidia.com/gpu-memory", "100Gi", "new", "old")
		a := c.given(c.wants("w", "10Gi", ""))
		if a == nil || a.Flavors["nvidia.com/gpu-memory"] != want {
			t.Errorf("%q: %+v, want %s", configuration, a, want)
		}
	}
	// The old cards go away; what comes later takes the new ones.
	c := garage(t, cost)
	c.budget("nvidia.com/gpu-memory", "100Gi", "new", "old")
	c.decide()
	c.lost(c.slices["old"])
	if a := c.given(c.wants("w", "10Gi", "")); a == nil || a.Flavors["nvidia.com/gpu-memory"] != "new" {
		t.Errorf("%+v", a)
	}
}

// TestWhatWasWrongIsTriedAgainOnItsOwn: a template with an impossible request is
// replaced, a class that was missing is made.
func TestWhatWasWrongIsTriedAgainOnItsOwn(t *testing.T) {
	c := garage(t, "")
	c.budget("nvidia.com/gpu-memory", "100Gi", "new")
	id := c.wants("w", "900Gi", "")
	if a := c.given(id); a != nil {
		t.Fatalf("admitted: %+v", a)
	}
	template := c.templates[types.NamespacedName{Namespace: "team", Name: "w"}].DeepCopy()
	c.lost(template)
	if a := c.given(id); a != nil {
		t.Fatalf("admitted without its template: %+v", a)
	}
	template.UID = "new"
	template.Spec.Spec.Devices.Requests[0].Exactly.Capacity.Requests["memory"] = resource.MustParse("20Gi")
	c.saw(template)
	if a := c.given(id); a == nil || a.Usage["nvidia.com/gpu-memory"] != 20<<30 {
		t.Errorf("%+v: %s", a, c.engine.Why(id))
	}

	id = c.wants("v", "20Gi", "")
	template = c.templates[types.NamespacedName{Namespace: "team", Name: "v"}]
	template.Spec.Spec.Devices.Requests[0].Exactly.DeviceClassName = "later.example.com"
	if a := c.given(id); a != nil {
		t.Fatalf("admitted by a class that does not exist: %+v", a)
	}
	later := class("later.example.com", "9")
	later.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.sluice.dev"`}}}
	c.saw(later)
	if a := c.given(id); a == nil || a.Usage["nvidia.com/gpu-memory"] != 20<<30 {
		t.Errorf("%+v: %s", a, c.engine.Why(id))
	}
}

// TestWhoIsAdmittedAgainIsChargedAgain: an eviction, for whatever reason, and the
// return to the queue do not lose the price of the claims.
func TestWhoIsAdmittedAgainIsChargedAgain(t *testing.T) {
	c := garage(t, "")
	c.budget("nvidia.com/gpu-memory", "100Gi", "new")
	id := c.wants("w", "20Gi", "")
	first := c.given(id)
	if first == nil {
		t.Fatal("not admitted")
	}
	c.mu.Lock()
	c.released(id)
	c.mu.Unlock()
	if again := c.given(id); again == nil || again.Usage["nvidia.com/gpu-memory"] != 20<<30 {
		t.Errorf("first %+v, then %+v", first, again)
	}
}
