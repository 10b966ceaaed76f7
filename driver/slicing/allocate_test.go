package slicing

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/dynamic-resource-allocation/structured/schedulerapi"
	"k8s.io/utils/ptr"

	"github.com/sluice-gpu/sluice/driver"
	"github.com/sluice-gpu/sluice/driver/gpu"
)

// allocations is the scheduler's view of one node: what it offers and what is
// taken. The allocator is the scheduler's own.
type allocations struct {
	slices []*resourceapi.ResourceSlice
	state  structured.AllocatedState
	n      int
}

func newAllocations(t *testing.T, p *Plan) *allocations {
	t.Helper()
	a := &allocations{state: structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       schedulerapi.NewConsumedCapacityCollection(),
	}}
	a.publish(p)
	return a
}

// publish replaces what the node offers. What is taken stays.
func (a *allocations) publish(p *Plan) {
	pool := p.Slices()
	a.slices = nil
	for i, s := range pool {
		a.slices = append(a.slices, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05d", i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver.Name, NodeName: ptr.To("n1"), Devices: s.Devices, SharedCounters: s.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: "n1", Generation: 1, ResourceSliceCount: int64(len(pool))},
			},
		})
	}
}

// held is what the claims hold, as if all of them were prepared.
func (a *allocations) held() map[string]Holding {
	out := map[string]Holding{}
	for id, consumed := range a.state.AggregatedCapacity {
		h := out[id.Device.String()]
		h.MemoryMi = consumed["memory"].Value() / gpu.Mi
		out[id.Device.String()] = h
	}
	for id := range a.state.AllocatedSharedDeviceIDs {
		h := out[id.Device.String()]
		h.Shares++
		out[id.Device.String()] = h
	}
	return out
}

// classes are the chart's.
type classes struct{}

func (classes) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }
func (classes) Get(name string) (*resourceapi.DeviceClass, error) {
	kind := map[string]string{"gpu.sluice.dev": "gpu", "mig.gpu.sluice.dev": "mig", "monitor.gpu.sluice.dev": "monitor"}[name]
	if kind == "" {
		return nil, fmt.Errorf("no class %s", name)
	}
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.sluice.dev" && device.attributes["gpu.sluice.dev"].type == "` + kind + `"`,
		}}}},
	}, nil
}

func (a *allocations) claim(t *testing.T, args []datadriven.CmdArg) string {
	t.Helper()
	req := resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu.sluice.dev", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
	}
	capacity := map[resourceapi.QualifiedName]resource.Quantity{}
	for _, arg := range args {
		switch arg.Key {
		case "memory", "cores":
			capacity[resourceapi.QualifiedName(arg.Key)] = resource.MustParse(arg.Vals[0])
		case "count":
			_, err := fmt.Sscan(arg.Vals[0], &req.Count)
			if err != nil {
				t.Fatal(err)
			}
		case "admin":
			req.AdminAccess = ptr.To(true)
		case "class":
			req.DeviceClassName = arg.Vals[0]
		case "where":
			req.Selectors = append(req.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: strings.Join(arg.Vals, ",")}})
		default:
			t.Fatalf("unknown argument %s", arg.Key)
		}
	}
	if len(capacity) > 0 {
		req.Capacity = &resourceapi.CapacityRequirements{Requests: capacity}
	}
	a.n++
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("c", a.n), UID: types.UID(fmt.Sprint("uid", a.n))},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r", Exactly: &req}}}},
	}
	features := structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true, DeviceBindingAndStatus: true, FractionalCapacityRange: true}
	alloc, err := structured.NewAllocator(t.Context(), features, a.state, classes{}, a.slices, cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	results, err := alloc.Allocate(t.Context(), node, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	if len(results) == 0 {
		return "does not fit\n"
	}
	var out []string
	for _, r := range results[0].Devices.Results {
		out = append(out, a.take(r))
	}
	slices.Sort(out)
	return strings.Join(out, "\n") + "\n"
}

func (a *allocations) take(r resourceapi.DeviceRequestAllocationResult) string {
	id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
	text := r.Device
	switch {
	case ptr.Deref(r.AdminAccess, false):
		return text + " (admin access)"
	case r.ShareID == nil:
		a.state.AllocatedDevices.Insert(id)
		return text + " exclusively"
	}
	consumed := schedulerapi.ConsumedCapacity{}
	for k, v := range r.ConsumedCapacity {
		consumed[k] = &v
	}
	a.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
	a.state.AggregatedCapacity.Insert(schedulerapi.DeviceConsumedCapacity{DeviceID: id, ConsumedCapacity: consumed})
	return fmt.Sprintf("%s memory=%s cores=%s", text, consumed["memory"], consumed["cores"])
}

// instance asks for a MIG device of a profile; empty if there is none.
func (a *allocations) instance(t *testing.T, profile string) string {
	t.Helper()
	text := a.claim(t, []datadriven.CmdArg{
		{Key: "class", Vals: []string{"mig.gpu.sluice.dev"}},
		{Key: "where", Vals: []string{`device.attributes["gpu.sluice.dev"].profile == "` + profile + `"`}},
	})
	if text == "does not fit\n" {
		return ""
	}
	return strings.TrimSuffix(text, " exclusively\n")
}

// give takes an exclusive device back.
func (a *allocations) give(device string) {
	a.state.AllocatedDevices.Delete(structured.MakeDeviceID(driver.Name, "n1", device))
}
