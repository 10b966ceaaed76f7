package fit

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/quota/engine"
)

const otherDriver = "net.example.com"

// numa is an attribute that devices of all drivers have.
const numa = "resource.kubernetes.io/numaNode"

// policy draws how a capacity of a device is rounded, and what a request takes that
// does not name it.
func (r draws) policy(all resource.Quantity) *resourceapi.CapacityRequestPolicy {
	switch r.pick("policy", 5) {
	case 0:
		return &resourceapi.CapacityRequestPolicy{Default: ptr.To(quantity("10Gi")),
			ValidValues: []resource.Quantity{quantity("5Gi"), quantity("10Gi"), quantity("20Gi"), quantity("30Gi")}}
	case 1:
		return &resourceapi.CapacityRequestPolicy{Default: ptr.To(quantity("4Gi")),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(quantity("4Gi")), Max: ptr.To(quantity("25Gi")), Step: ptr.To(quantity("3Gi"))}}
	case 2:
		return &resourceapi.CapacityRequestPolicy{Default: ptr.To(quantity("0")), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(quantity("0"))}}
	case 3:
		return &resourceapi.CapacityRequestPolicy{Default: &all, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(quantity("256Mi")), Step: ptr.To(quantity("1Mi"))}}
	}
	return nil
}

// device draws a device of some driver.
func (r draws) device(name string, index int) resourceapi.Device {
	d := resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"index": {IntValue: ptr.To(int64(index))}, "nvlinkDomain": {StringValue: ptr.To(fmt.Sprint(index / 2))},
		numa: {IntValue: ptr.To(int64(index % 2))},
	}}
	if r.sometimes("without capacity", 5) {
		return d
	}
	memory := *resource.NewQuantity([]int64{10, 20, 40}[r.pick("gi", 3)]<<30, resource.BinarySI)
	d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: memory}}
	if r.pick("shared", 4) == 0 {
		return d
	}
	d.AllowMultipleAllocations = ptr.To(true)
	d.Capacity["memory"] = resourceapi.DeviceCapacity{Value: memory, RequestPolicy: r.policy(memory)}
	if r.pick("cores", 3) > 0 {
		d.Capacity["cores"] = resourceapi.DeviceCapacity{Value: quantity("100"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default:    ptr.To(quantity([]string{"0", "100", "30"}[r.pick("usual cores", 3)])),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(quantity("0")), Step: ptr.To(quantity([]string{"1", "500m", "10"}[r.pick("step", 3)]))}}}
	}
	if r.sometimes("sick", 6) {
		d.Taints = []resourceapi.DeviceTaint{{Key: "sick", Effect: []resourceapi.DeviceTaintEffect{
			resourceapi.DeviceTaintEffectNone, resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute}[r.pick("effect", 3)]}}
	}
	return d
}

// slice draws a pool of one slice of a driver.
func (r draws) slice(driver, name string, devices int) *resourceapi.ResourceSlice {
	o := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1}}}
	for i := range devices {
		o.Spec.Devices = append(o.Spec.Devices, r.device(fmt.Sprintf("d-%d", i), i))
	}
	return o
}

func inZone(zone string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}}}}}
}

// wideWorld draws nodes with devices of two drivers, of which some belong to no single
// node.
func (r draws) wideWorld() (*State, []string) {
	s := world(Policies[r.pick("placed by", len(Policies))])
	s.SetClass(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: otherDriver}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", otherDriver)}}}}})
	var nodes []string
	for n := range 3 {
		name := fmt.Sprintf("n%d", n)
		nodes = append(nodes, name)
		addNode(s, name, func(o *corev1.Node) { o.Labels["zone"] = []string{"a", "b"}[n%2] })
		own := r.slice("gpu.sluice.dev", name, 1+r.pick("cards", 3))
		own.Spec.NodeName = ptr.To(name)
		s.SetSlice(own)
		if r.pick("other driver", 2) == 0 {
			more := r.slice(otherDriver, name+"-net", 1+r.pick("others", 2))
			more.Spec.NodeName = ptr.To(name)
			s.SetSlice(more)
		}
	}
	if r.pick("cut", 3) == 0 {
		addMIG(s, "mig")
		r.adorn(s, "mig")
		nodes = append(nodes, "mig")
	}
	if r.pick("everybody's", 3) == 0 {
		o := r.slice([]string{"gpu.sluice.dev", otherDriver}[r.pick("whose", 2)], "fabric", 1+r.pick("fabric", 2))
		switch r.pick("where", 3) {
		case 0:
			o.Spec.AllNodes = ptr.To(true)
		case 1:
			o.Spec.NodeSelector = inZone("a")
		case 2:
			o.Spec.PerDeviceNodeSelection = ptr.To(true)
			for i := range o.Spec.Devices {
				switch r.pick("device where", 3) {
				case 0:
					o.Spec.Devices[i].AllNodes = ptr.To(true)
				case 1:
					o.Spec.Devices[i].NodeName = ptr.To("n1")
				case 2:
					o.Spec.Devices[i].NodeSelector = inZone("b")
				}
			}
		}
		s.SetSlice(o)
	}
	return s, nodes
}

// wideClaim draws what a user may ask of devices of two drivers.
func (r draws) wideClaim(name string) *resourceapi.ResourceClaim {
	c := r.claim(name)
	each := func(class *string, selectors []resourceapi.DeviceSelector, capacity *resourceapi.CapacityRequirements) []resourceapi.DeviceSelector {
		if r.pick("of the other driver", 3) == 0 {
			*class = otherDriver
			if len(selectors) > 0 {
				selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.attributes["net.example.com"].index == 0`}}}
			}
		}
		if capacity != nil && r.sometimes("named oddly", 6) {
			capacity.Requests[[]resourceapi.QualifiedName{"cores", "bandwidth", "memory"}[r.pick("name", 3)]] = quantity([]string{"0", "10", "-5"}[r.pick("much", 3)])
		}
		return selectors
	}
	for i := range c.Spec.Devices.Requests {
		q := &c.Spec.Devices.Requests[i]
		if e := q.Exactly; e != nil {
			if e.Capacity == nil && r.sometimes("cores alone", 3) {
				e.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"cores": quantity([]string{"0", "20"}[r.pick("percent", 2)])}}
			}
			e.Selectors = each(&e.DeviceClassName, e.Selectors, e.Capacity)
		}
		for j := range q.FirstAvailable {
			f := &q.FirstAvailable[j]
			f.Selectors = each(&f.DeviceClassName, f.Selectors, f.Capacity)
		}
	}
	if r.sometimes("numa", 3) {
		c.Spec.Devices.Constraints = append(c.Spec.Devices.Constraints, resourceapi.DeviceConstraint{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(numa))})
	}
	if r.sometimes("apart", 4) {
		c.Spec.Devices.Constraints = append(c.Spec.Devices.Constraints, resourceapi.DeviceConstraint{DistinctAttribute: ptr.To(resourceapi.FullyQualifiedName("gpu.sluice.dev/index"))})
	}
	return c
}

// Of two alternatives one names a size, the other all of a card. A card of which others
// have a part serves the first.
func TestAnAlternativeWithASizeIsPlacedOnACardThatIsInUse(t *testing.T) {
	for name, order := range map[string][]int64{"the whole card first": {0, 20}, "the part first": {20, 0}} {
		s := world(BinPack)
		addNode(s, "n1", nil, 80)
		s.SetClaim(allocated("c", "n1", "gpu-0", 10), "ns/a")
		claim := spec(0)
		request := &claim.Devices.Requests[0]
		request.Exactly = nil
		for i, gi := range order {
			e := spec(gi).Devices.Requests[0].Exactly
			request.FirstAvailable = append(request.FirstAvailable, resourceapi.DeviceSubRequest{
				Name: fmt.Sprint("s", i), DeviceClassName: e.DeviceClassName, AllocationMode: e.AllocationMode, Count: e.Count, Capacity: e.Capacity})
		}
		w, a := wanting(s, "ns/w", 1, claim)
		if _, no := s.Place(w, a, nil); no != nil {
			t.Errorf("%s: %v", name, no)
		}
	}
}

// A driver may take all cores for granted. Who asks for none gets a card whose cores
// others have.
func TestACardWithoutCoresLeftServesWhoAsksForNone(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 80)
	slice := s.slices["n1"].DeepCopy()
	cores, memory := slice.Spec.Devices[0].Capacity["cores"], slice.Spec.Devices[0].Capacity["memory"]
	cores.RequestPolicy.Default, memory.RequestPolicy.Default = ptr.To(quantity("100")), ptr.To(quantity("10Gi"))
	slice.Spec.Devices[0].Capacity["cores"], slice.Spec.Devices[0].Capacity["memory"] = cores, memory
	s.SetSlice(slice)
	c := allocated("c", "n1", "gpu-0", 10)
	c.Status.Allocation.Devices.Results[0].ConsumedCapacity["cores"] = quantity("100")
	s.SetClaim(c, "ns/a")
	claim := spec(0)
	claim.Devices.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"cores": quantity("0")}}
	w, a := wanting(s, "ns/w", 1, claim)
	if _, no := s.Place(w, a, nil); no != nil {
		t.Error(no)
	}
}

// Whatever drivers publish, for one node or for several, however they round and what
// they take for granted, a workload is placed if the scheduler finds a node for it, and
// is given there what the scheduler would give.
func TestAWorkloadIsPlacedWhereTheSchedulerFindsDevicesForIt(t *testing.T) {
	placed, waits := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		r := draws{rt}
		s, nodes := r.wideWorld()
		all := &stock{s: s, claims: map[types.UID]*resourceapi.ResourceClaim{}}
		for i := range 6 {
			asked := []*resourceapi.ResourceClaim{r.wideClaim(fmt.Sprintf("c%d", i))}
			if r.sometimes("more", 4) {
				asked = append(asked, r.wideClaim(fmt.Sprintf("c%d-more", i)))
			}
			var specs []resourceapi.ResourceClaimSpec
			for _, c := range asked {
				specs = append(specs, c.Spec)
			}
			id := engine.WorkloadID(fmt.Sprintf("ns/w%d", i))
			w, a := ask(s, id, 1, -1, nil)
			s.workloads[id].sets[0].Claims = specs
			p, no := s.Place(w, a, nil)
			gives := map[string][]resourceapi.AllocationResult{}
			for _, name := range nodes {
				got, err := all.allocate(name, asked)
				if err != nil {
					// It says so to the user, and the pod is scheduled nowhere.
					return
				}
				if got != nil {
					gives[name] = got
				}
			}
			if no != nil {
				if waits++; len(gives) > 0 {
					rt.Fatalf("%s has no room: %v; the scheduler finds %v", id, no, gives)
				}
				continue
			}
			placed++
			want := gives[p.Pods[0].Node]
			if want == nil {
				rt.Fatalf("%s is placed on %s, where the scheduler finds nothing", id, p.Pods[0].Node)
			}
			var devices []device
			for j := range want {
				devices = append(devices, devicesOf(want[j].Devices.Results)...)
			}
			if got := p.Detail.([]*slot)[0]; !got.takes(&slot{node: got.node, requests: got.requests, devices: devices}) {
				rt.Fatalf("%s is promised %v on %s, the scheduler gives %v", id, got.devices, got.node, devices)
			}
			for j := range asked {
				asked[j].Status.Allocation = &want[j]
				all.claims[asked[j].UID] = asked[j]
				s.SetClaim(asked[j], id)
			}
		}
	})
	if placed == 0 || waits == 0 {
		t.Errorf("%d were placed, %d waited", placed, waits)
	}
}
