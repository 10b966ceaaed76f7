package fit

import (
	"errors"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

// draws draws what users may ask for and drivers publish.
type draws struct{ *rapid.T }

func (r draws) pick(label string, n int) int { return rapid.IntRange(0, n-1).Draw(r.T, label) }

// sometimes is true once in n times.
func (r draws) sometimes(label string, n int) bool { return r.pick(label, n) == n-1 }

func (r draws) exactly() *resourceapi.ExactDeviceRequest {
	e := spec(int64([]int{0, 5, 20, 40}[r.pick("gi", 4)])).Devices.Requests[0].Exactly
	if e.Capacity != nil && r.sometimes("cores", 3) {
		e.Capacity.Requests["cores"] = quantity([]string{"30", "60", "10500m"}[r.pick("percent", 3)])
	}
	if r.sometimes("odd", 4) && e.Capacity != nil {
		e.Capacity.Requests["memory"] = quantity("1234567890")
	}
	if r.sometimes("selective", 4) {
		e.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: []string{
			`device.attributes["gpu.sluice.dev"].index == 1`, `device.allowMultipleAllocations == true`,
			`device.capacity["gpu.sluice.dev"].memory.compareTo(quantity("30Gi")) > 0`}[r.pick("selector", 3)]}}}
	}
	if r.sometimes("tolerant", 4) {
		e.Tolerations = []resourceapi.DeviceToleration{{Key: "sick", Operator: resourceapi.DeviceTolerationOpExists}}
	}
	switch r.pick("mode", 8) {
	case 5:
		e.Count = 2
	case 6:
		e.AllocationMode, e.Count = resourceapi.DeviceAllocationModeAll, 0
	case 7:
		e.AdminAccess = ptr.To(true)
	}
	return e
}

func (r draws) claim(name string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{}
	c.Name, c.UID = name, types.UID(name)
	n := 1 + r.pick("requests", 3)
	for i := range n {
		request := resourceapi.DeviceRequest{Name: fmt.Sprintf("r%d", i)}
		if r.sometimes("alternatives", 4) {
			for j := range 2 {
				e := r.exactly()
				request.FirstAvailable = append(request.FirstAvailable, resourceapi.DeviceSubRequest{
					Name: fmt.Sprintf("s%d", j), DeviceClassName: e.DeviceClassName, Selectors: e.Selectors, AllocationMode: e.AllocationMode,
					Count: e.Count, Tolerations: e.Tolerations, Capacity: e.Capacity})
			}
		} else {
			request.Exactly = r.exactly()
		}
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, request)
	}
	attribute := ptr.To(resourceapi.FullyQualifiedName([]string{"gpu.sluice.dev/nvlinkDomain", "gpu.sluice.dev/index"}[r.pick("attribute", 2)]))
	switch r.pick("constraint", 4) {
	case 2:
		c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: attribute}}
	case 3:
		c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{DistinctAttribute: attribute}}
	}
	return c
}

// adorn makes the devices of a node unlike each other.
func (r draws) adorn(s *State, name string) {
	slice := s.slices[name].DeepCopy()
	conditions := r.sometimes("conditions", 3)
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		d.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"index": {IntValue: ptr.To(int64(i))}, "nvlinkDomain": {StringValue: ptr.To(fmt.Sprint(i / 2))}}
		if r.sometimes("sick", 5) {
			d.Taints = []resourceapi.DeviceTaint{{Key: "sick", Effect: []resourceapi.DeviceTaintEffect{
				resourceapi.DeviceTaintEffectNone, resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute}[r.pick("effect", 3)]}}
		}
		if len(d.ConsumesCounters) > 0 && r.sometimes("a part that is shared", 2) {
			memory := d.Capacity["memory"]
			memory.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: ptr.To(quantity("5Gi")), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(quantity("1Gi"))}}
			d.AllowMultipleAllocations, d.Capacity["memory"] = ptr.To(true), memory
		} else if r.sometimes("exclusive", 6) {
			d.AllowMultipleAllocations = nil
			for key, c := range d.Capacity {
				c.RequestPolicy = nil
				d.Capacity[key] = c
			}
		}
		if conditions {
			d.BindingConditions, d.BindingFailureConditions = []string{"example.com/ready"}, []string{"example.com/failed"}
		}
	}
	switch r.pick("published", 12) {
	case 10:
		slice.Spec.Devices = append(slice.Spec.Devices, *slice.Spec.Devices[0].DeepCopy())
	case 11:
		slice.Spec.Pool.ResourceSliceCount++
	}
	s.SetSlice(slice)
}

// The answer of one node's own state, from which most of the cluster is left out,
// is the allocator's answer with all slices and shares of the cluster: the same
// devices, the same amounts, the same refusals, whatever a claim asks for.
func TestANodesOwnStateGivesTheClustersAnswer(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := draws{rt}
		s := world(BinPack)
		for n := range 2 {
			addNode(s, fmt.Sprintf("n%d", n), nil, 40, 80, 40)
			r.adorn(s, fmt.Sprintf("n%d", n))
		}
		addMIG(s, "mig")
		r.adorn(s, "mig")
		everything := &stock{s: s, claims: map[types.UID]*resourceapi.ResourceClaim{}}
		nodes := []string{"n0", "n1", "mig"}
		for i := range 8 {
			claim := r.claim(fmt.Sprintf("c%d", i))
			node := nodes[r.pick("node", len(nodes))]
			asked := []*resourceapi.ResourceClaim{claim}
			for range r.pick("more", 2) {
				asked = append(asked, r.claim(fmt.Sprintf("c%d-more", i)))
			}
			want, wantErr := everything.allocate(node, asked)
			if errors.Is(wantErr, structured.ErrFailedAllocationOnNode) {
				wantErr = nil
			}
			got, err := s.allocate("ns/w", s.nodes[node], s.view(s.nodes[node], s.look("")).state, asked)
			if (err == nil) != (wantErr == nil) {
				rt.Fatalf("the node alone says %v, the cluster %v", err, wantErr)
			}
			if !apiequality.Semantic.DeepEqual(withoutIDs(got), withoutIDs(want)) {
				rt.Fatalf("%s: the node alone gives\n%+v, the cluster\n%+v", node, got, want)
			}
			if err == nil && want != nil {
				if r.sometimes("only asked", 3) {
					continue
				}
				for j := range asked {
					asked[j].Status.Allocation = &want[j]
					everything.claims[asked[j].UID] = asked[j]
					s.SetClaim(asked[j], "")
				}
			}
		}
	})
}

// withoutIDs leaves out the names of shares, which are made up.
func withoutIDs(all []resourceapi.AllocationResult) []resourceapi.AllocationResult {
	var plain []resourceapi.AllocationResult
	for i := range all {
		a := *all[i].DeepCopy()
		for j := range a.Devices.Results {
			if r := &a.Devices.Results[j]; r.ShareID != nil {
				r.ShareID = ptr.To(types.UID("share"))
			}
		}
		plain = append(plain, a)
	}
	return plain
}
