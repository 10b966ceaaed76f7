package fit

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// world is a state with the stock class and a flavor over all nodes.
func world(policy Policy) *State {
	s := New(policy)
	s.SetClass(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.sluice.dev"}, Spec: resourceapi.DeviceClassSpec{
		ExtendedResourceName: ptr.To("nvidia.com/gpu"),
		Selectors:            []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.sluice.dev"`}}},
	}})
	s.SetFlavor("gpu", Flavor{})
	return s
}

// node adds a node with cards of so many Gi.
func addNode(s *State, name string, change func(*corev1.Node), cards ...int64) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("16"), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("110")}
	if change != nil {
		change(n)
	}
	s.SetNode(n)
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.sluice.dev", NodeName: &name, Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
	}}
	for i, gi := range cards {
		total := *resource.NewQuantity(gi<<30, resource.BinarySI)
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
			Name: fmt.Sprintf("gpu-%d", i), AllowMultipleAllocations: ptr.To(true),
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				"memory": {Value: total, RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &total, ValidRange: &resourceapi.CapacityRequestPolicyRange{
					Min: ptr.To(resource.MustParse("256Mi")), Step: ptr.To(resource.MustParse("1Mi"))}}},
				"cores": {Value: resource.MustParse("100"), RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: ptr.To(resource.MustParse("0")),
					ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("0")), Step: ptr.To(resource.MustParse("1"))}}},
			},
		})
	}
	s.SetSlice(slice)
}

func spec(gi int64) resourceapi.ResourceClaimSpec {
	r := &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.sluice.dev", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	if gi > 0 {
		r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": *resource.NewQuantity(gi<<30, resource.BinarySI)}}
	}
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: r}}}}
}

// ask tells of a workload of n pods that each ask for so many Gi of one card.
func ask(s *State, id engine.WorkloadID, n int32, gi int64, change func(*corev1.PodSpec)) (*engine.Workload, engine.Assignment) {
	set := PodSet{Name: "main", Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	if gi >= 0 {
		set.Claims = []resourceapi.ResourceClaimSpec{spec(gi)}
	}
	if change != nil {
		change(&set.Spec)
	}
	s.SetWorkload(id, []PodSet{set}, "")
	return &engine.Workload{ID: id}, engine.Assignment{PodSets: []engine.PodSetAssignment{{
		Name: "main", Count: n, Flavors: map[engine.Resource]engine.FlavorName{"nvidia.com/gpu": "gpu"},
	}}}
}

func place(t *testing.T, s *State, id engine.WorkloadID, n int32, gi int64) string {
	t.Helper()
	w, a := ask(s, id, n, gi, nil)
	p, no := s.Place(w, a, nil)
	if no != nil {
		return no.String()
	}
	s.Take(id, p)
	var nodes []string
	for _, pod := range p.Pods {
		nodes = append(nodes, pod.Node)
	}
	return strings.Join(nodes, ",")
}

// allocated is a claim that holds so many Gi of a card.
func allocated(uid, node, device string, gi int64) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)}, Status: resourceapi.ResourceClaimStatus{
		Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "gpu", Driver: "gpu.sluice.dev", Pool: node, Device: device, ShareID: ptr.To(types.UID(uid)),
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": *resource.NewQuantity(gi<<30, resource.BinarySI), "cores": resource.MustParse("0")},
		}}}},
	}}
}

func TestBinPackFillsTheFullerNodeAndSpreadTheEmptier(t *testing.T) {
	for policy, want := range map[Policy]string{BinPack: "busy", Spread: "idle"} {
		s := world(policy)
		addNode(s, "idle", nil, 80)
		addNode(s, "busy", nil, 80)
		s.SetClaim(allocated("a", "busy", "gpu-0", 30), "")
		if got := place(t, s, "w", 1, 20); got != want {
			t.Errorf("%s places on %q, want %q", policy, got, want)
		}
	}
}

func TestHolesThatAreTooSmallAreNamedLargestFirst(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 24, 24, 24)
	for i, used := range []int64{12, 13, 14} {
		s.SetClaim(allocated(fmt.Sprint(i), "n1", fmt.Sprintf("gpu-%d", i), used), "")
	}
	got := place(t, s, "w", 1, 20)
	if want := "no card has 20Gi free; largest holes 12Gi on n1/gpu-0, 11Gi on n1/gpu-1, 10Gi on n1/gpu-2"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestAGangIsPlacedAsAWholeOrNotAtAll(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 24, 24, 24)
	if got := place(t, s, "four", 4, 20); !strings.HasPrefix(got, "3 of 4 pods have room; for one more no card") {
		t.Errorf("four: %q", got)
	}
	if got := place(t, s, "three", 3, 20); got != "n1,n1,n1" {
		t.Errorf("three: %q", got)
	}
}

func TestWhatIsPromisedCountsAsTakenUntilItIsGivenUp(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80)
	if got := place(t, s, "first", 1, 50); got != "n1" {
		t.Fatal(got)
	}
	if got := place(t, s, "second", 1, 50); !strings.Contains(got, "no card has 50Gi free") {
		t.Errorf("second: %q", got)
	}
	// Its own promise does not stand in a workload's way.
	if got := place(t, s, "first", 1, 60); got != "n1" {
		t.Errorf("first again: %q", got)
	}
	s.Drop("first")
	if got := place(t, s, "second", 1, 50); got != "n1" {
		t.Errorf("second after the drop: %q", got)
	}
}

func TestVictimsAreLeftOutOfAccount(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80)
	s.SetClaim(allocated("a", "n1", "gpu-0", 70), "ns/victim")
	w, a := ask(s, "w", 1, 50, nil)
	if _, no := s.Place(w, a, nil); no == nil {
		t.Error("placed beside the victim")
	}
	if _, no := s.Place(w, a, []engine.WorkloadID{"ns/victim"}); no != nil {
		t.Errorf("without the victim: %v", no)
	}
}

func TestNodesAreJudgedAsTheSchedulerDoes(t *testing.T) {
	tainted := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Value: "true", Effect: corev1.TaintEffectNoSchedule}}
	}
	for _, tc := range []struct {
		name   string
		node   func(*corev1.Node)
		flavor Flavor
		pod    func(*corev1.PodSpec)
		lacks  string
	}{
		{"a free node", nil, Flavor{}, nil, ""},
		{"cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }, Flavor{}, nil, "cordoned"},
		{"tainted", tainted, Flavor{}, nil, "taint nvidia.com/gpu=true:NoSchedule is not tolerated"},
		{"tolerated by the flavor", tainted, Flavor{Tolerations: []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}}}, nil, ""},
		{"another flavor's node", nil, Flavor{NodeLabels: map[string]string{"gpu-type": "a100"}}, nil, "not selected"},
		{"the flavor's node", func(n *corev1.Node) { n.Labels["gpu-type"] = "a100" }, Flavor{NodeLabels: map[string]string{"gpu-type": "a100"}}, nil, ""},
		{"not the pod's choice", nil, Flavor{}, func(p *corev1.PodSpec) { p.NodeSelector = map[string]string{"zone": "b"} }, "not selected"},
		{"a free card but no free cpu", nil, Flavor{}, func(p *corev1.PodSpec) {
			p.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("17")}
		}, "17 cpu asked, 16 free"},
		{"limits stand for requests", nil, Flavor{}, func(p *corev1.PodSpec) {
			p.Containers[0].Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("65Gi")}
		}, "65Gi memory asked, 64Gi free"},
		{"no room for another pod", func(n *corev1.Node) { n.Status.Allocatable["pods"] = resource.MustParse("0") }, Flavor{}, nil, "too many pods"},
		{"a device plugin serves the same resource", func(n *corev1.Node) { n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("4") }, Flavor{}, func(p *corev1.PodSpec) {
			p.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
		}, "a device plugin serves nvidia.com/gpu there"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := world(BinPack)
			addNode(s, "n1", tc.node, 80)
			s.SetFlavor("gpu", tc.flavor)
			gi := int64(10)
			if strings.Contains(tc.name, "plugin") {
				gi = -1
			}
			w, a := ask(s, "w", 1, gi, tc.pod)
			_, no := s.Place(w, a, nil)
			if (no == nil) != (tc.lacks == "") || (no != nil && !strings.Contains(no.String(), tc.lacks)) {
				t.Errorf("got %v, want %q", no, tc.lacks)
			}
		})
	}
}

func TestPodsOnANodeLeaveLessForTheNext(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p"}, Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("10")}}}}}}
	s.SetPod(p, "")
	w, a := ask(s, "w", 1, 10, func(spec *corev1.PodSpec) {
		spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("8")}
	})
	if _, no := s.Place(w, a, nil); no == nil {
		t.Error("placed beside a pod that leaves too little")
	}
	p.Status.Phase = corev1.PodSucceeded
	s.SetPod(p, "")
	if _, no := s.Place(w, a, nil); no != nil {
		t.Errorf("after it ended: %v", no)
	}
}

func TestASecondGateWaitsWhereOrderDecides(t *testing.T) {
	s := world(BinPack)
	// 40Gi and 20Gi fit holes of 40Gi and 20Gi in one order only: 20Gi first
	// takes the 40Gi hole.
	addNode(s, "n1", nil, 40, 20)
	forty, a40 := ask(s, "forty", 1, 40, nil)
	twenty, a20 := ask(s, "twenty", 1, 20, nil)
	for _, x := range []struct {
		w *engine.Workload
		a engine.Assignment
	}{{forty, a40}, {twenty, a20}} {
		p, no := s.Place(x.w, x.a, nil)
		if no != nil {
			t.Fatal(no)
		}
		s.Take(x.w.ID, p)
	}
	if node, no := s.Open("forty", &a40.PodSets[0], "p40"); node != "n1" {
		t.Fatal(no)
	}
	if _, no := s.Open("twenty", &a20.PodSets[0], "p20"); no == nil || !strings.Contains(no.Reason, "another order") {
		t.Errorf("the second gate: %v", no)
	}
	s.SetClaim(allocated("c40", "n1", "gpu-0", 40), "forty")
	s.Settle("forty", "p40")
	if node, no := s.Open("twenty", &a20.PodSets[0], "p20"); node != "n1" {
		t.Errorf("after the first is allocated: %v", no)
	}
}

func TestAPromisedNodeThatIsFullIsExchanged(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 30)
	addNode(s, "n2", nil, 80)
	w, a := ask(s, "w", 1, 30, nil)
	p, no := s.Place(w, a, nil)
	if no != nil || p.Pods[0].Node != "n1" {
		t.Fatal(p, no)
	}
	s.Take("w", p)
	s.SetClaim(allocated("foreign", "n1", "gpu-0", 30), "")
	if node, no := s.Open("w", &a.PodSets[0], "pod"); node != "n2" {
		t.Errorf("opened on %q, %v", node, no)
	}
}

func TestAClaimThatPodsShareIsPlacedOnceAndBindsThem(t *testing.T) {
	s := world(Spread)
	addNode(s, "n1", nil, 40)
	addNode(s, "n2", nil, 40)
	shared := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "shared", UID: "shared"}, Spec: spec(30)}
	s.SetWorkload("w", []PodSet{{Name: "main", Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}, Shared: []*resourceapi.ResourceClaim{shared}}}, "")
	_, a := &engine.Workload{ID: "w"}, engine.Assignment{PodSets: []engine.PodSetAssignment{{Name: "main", Count: 3}}}
	p, no := s.Place(&engine.Workload{ID: "w"}, a, nil)
	if no != nil {
		t.Fatal(no)
	}
	for _, pod := range p.Pods {
		if pod.Node != p.Pods[0].Node {
			t.Errorf("pods on %v", p.Pods)
		}
	}
}

func TestTopUpKeepsPlacesForPodsThatHaveNone(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 40, 40, 40)
	_, a := ask(s, "w", 3, 30, nil)
	if node, no := s.Open("w", &a.PodSets[0], "first"); node != "n1" {
		t.Fatal(no)
	}
	s.TopUp("w", a)
	if got := place(t, s, "other", 1, 30); !strings.Contains(got, "no card has 30Gi free") {
		t.Errorf("another workload: %q", got)
	}
	for _, pod := range []types.UID{"second", "third"} {
		if node, no := s.Open("w", &a.PodSets[0], pod); node != "n1" {
			t.Errorf("%s: %v", pod, no)
		}
	}
}

func quantity(s string) resource.Quantity { return resource.MustParse(s) }
