package fit

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
)

// A card that all nodes can use is others' still, and kept for somebody. Whoever was
// promised room does not see less of it on his node for that.
func TestAKeptCardOfAllNodesTakesNothingOfWhatIsFreeNow(t *testing.T) {
	s := world(BinPack)
	addNode(s, "n1", nil, 40)
	addNode(s, "n2", nil, 30)
	everybodys := s.slices["n2"].DeepCopy()
	everybodys.Name, everybodys.Spec.Pool.Name, everybodys.Spec.NodeName, everybodys.Spec.AllNodes = "all", "all", nil, ptr.To(true)
	everybodys.Spec.Devices[0].Capacity["memory"] = resourceapi.DeviceCapacity{Value: quantity("20Gi")}
	s.SetSlice(everybodys)
	promise(t, s, "ns/promised", 35)
	w, _ := wanting(s, "ns/waits", 1, spec(20))
	s.addSlot(s.workloads[w.ID], &slot{
		workload: w.ID, set: "main", node: "n2", awaited: true, kept: 1,
		devices: devicesOf(allocated("x", "all", "gpu-0", 20).Status.Allocation.Devices.Results),
	})
	s.reindex()
	n, trial := s.nodes["n1"], s.lookFor(s.workloads["ns/promised"].slots[0])
	if seen, bare := s.view(n, trial), s.bare(n, nil); !sameView(seen, bare) {
		t.Errorf("it sees\n%+v, left by those who have devices is\n%+v", seen.state, bare.state)
	}
}
