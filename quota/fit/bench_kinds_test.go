package fit

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// addMIGs adds a node with cards that are whole or cut into seven small parts, four
// of twice the size or two halves, as an A100's are, by counters.
func addMIGs(s *State, name string, cards int) {
	addNode(s, name, nil)
	slice := s.slices[name].DeepCopy()
	counters := slice.DeepCopy()
	counters.Name += "-counters"
	for c := range cards {
		set := fmt.Sprintf("card-%d", c)
		counter := func(slots, gi int) map[string]resourceapi.Counter {
			return map[string]resourceapi.Counter{"memory": {Value: quantity(fmt.Sprintf("%dGi", gi))}, "multiprocessors": {Value: quantity(fmt.Sprint(14 * slots))}}
		}
		counters.Spec.SharedCounters = append(counters.Spec.SharedCounters, resourceapi.CounterSet{Name: set, Counters: counter(7, 80)})
		for _, profile := range []struct {
			name             string
			parts, slots, gi int
		}{{"1g.10gb", 7, 1, 10}, {"2g.20gb", 3, 2, 20}, {"3g.40gb", 2, 3, 40}, {"7g.80gb", 1, 7, 80}} {
			for i := range profile.parts {
				slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
					Name:             fmt.Sprintf("%s-%d-%d", set, profile.gi, i),
					Attributes:       map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"profile": {StringValue: ptr.To(profile.name)}, "nvlinkDomain": {StringValue: ptr.To("a")}},
					Capacity:         map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: quantity(fmt.Sprintf("%dGi", profile.gi))}},
					ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: set, Counters: counter(profile.slots, profile.gi)}},
				})
			}
		}
	}
	slice.Spec.Pool.ResourceSliceCount, counters.Spec.Pool.ResourceSliceCount = 2, 2
	s.SetSlice(slice)
	s.SetSlice(counters)
}

func selecting(c resourceapi.ResourceClaimSpec, expression string) resourceapi.ResourceClaimSpec {
	for i := range c.Devices.Requests {
		c.Devices.Requests[i].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	}
	return c
}

func counted(c resourceapi.ResourceClaimSpec, n int64) resourceapi.ResourceClaimSpec {
	c.Devices.Requests[0].Exactly.Count = n
	return c
}

func constrained(c resourceapi.ResourceClaimSpec) resourceapi.ResourceClaimSpec {
	c.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName("gpu.sluice.dev/nvlinkDomain"))}}
	return c
}

// BenchmarkKinds decides about pods of every kind: those that ask more than a part
// of one card of the nodes of the crowd, and MIG profiles of 100 nodes more.
func BenchmarkKinds(b *testing.B) {
	s := crowd(BinPack)
	for n := range 1000 {
		name := fmt.Sprintf("node-%04d", n)
		links(s, name, "a", "a", "a", "a", "b", "b", "b", "b")
		if n < 100 {
			addMIGs(s, fmt.Sprintf("mig-%03d", n), 8)
			for c := range 8 {
				device := fmt.Sprintf("card-%d-%d-0", c, []int{10, 20, 40}[(n+c)%3])
				s.SetClaim(exclusive(fmt.Sprintf("m%d-%d", n, c), fmt.Sprintf("mig-%03d", n), device), "")
			}
		}
	}
	s.reindex()
	two := spec(2)
	two.Devices.Requests = append(two.Devices.Requests, spec(5).Devices.Requests...)
	two.Devices.Requests[1].Name = "other"
	either := spec(10)
	either.Devices.Requests[0] = resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "large", DeviceClassName: "gpu.sluice.dev", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1, Capacity: spec(60).Devices.Requests[0].Exactly.Capacity},
		{Name: "small", DeviceClassName: "gpu.sluice.dev", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1, Capacity: spec(10).Devices.Requests[0].Exactly.Capacity},
	}}
	mig := func(profile string) resourceapi.ResourceClaimSpec {
		return selecting(spec(0), fmt.Sprintf(`has(device.attributes["gpu.sluice.dev"].profile) && device.attributes["gpu.sluice.dev"].profile == %q`, profile))
	}
	for _, kind := range []struct {
		name   string
		claims []resourceapi.ResourceClaimSpec
	}{
		{"slice", []resourceapi.ResourceClaimSpec{spec(5)}},
		{"two slices of two claims", []resourceapi.ResourceClaimSpec{spec(2), spec(5)}},
		{"two requests", []resourceapi.ResourceClaimSpec{two}},
		{"four slices", []resourceapi.ResourceClaimSpec{counted(spec(2), 4)}},
		{"four linked slices", []resourceapi.ResourceClaimSpec{constrained(counted(spec(2), 4))}},
		{"alternatives", []resourceapi.ResourceClaimSpec{either}},
		{"selected", []resourceapi.ResourceClaimSpec{selecting(spec(5), `device.attributes["gpu.sluice.dev"].nvlinkDomain == "b"`)}},
		{"mig small", []resourceapi.ResourceClaimSpec{mig("1g.10gb")}},
		{"mig half", []resourceapi.ResourceClaimSpec{mig("3g.40gb")}},
		{"mig whole", []resourceapi.ResourceClaimSpec{mig("7g.80gb")}},
	} {
		b.Run(kind.name, func(b *testing.B) {
			took, none := newTimes(b), 0
			for i := range b.N {
				id := engine.WorkloadID(fmt.Sprintf("ns/new-%d", i))
				w, a := ask(s, id, 1, -1, nil)
				s.workloads[id].sets[0].Claims = kind.claims
				none += took.decision(s, w, a)
				s.RemoveWorkload(id)
				s.reindex()
			}
			took.report()
			b.ReportMetric(100*float64(none)/float64(b.N), "refused-percent")
		})
	}
}

// BenchmarkIndexUpdateOfCounters takes in a claim of a part of a card that is cut by
// counters.
func BenchmarkIndexUpdateOfCounters(b *testing.B) {
	s := world(BinPack)
	for n := range 100 {
		addMIGs(s, fmt.Sprintf("mig-%03d", n), 8)
	}
	s.reindex()
	took := newTimes(b)
	for i := range b.N {
		c := exclusive(fmt.Sprintf("c%d", i/2), fmt.Sprintf("mig-%03d", i/2%100), fmt.Sprintf("card-%d-20-0", i/200%8))
		took.time(func() {
			if i%2 == 0 {
				s.SetClaim(c, "ns/w")
			} else {
				s.RemoveClaim(c.UID)
			}
			s.reindex()
		})
	}
	took.report()
}

// BenchmarkOpen opens one more gate to a node to which so many pods are on their
// way already: of one size, or some of eight sizes, whole cards among them.
func BenchmarkOpen(b *testing.B) {
	for _, kinds := range [][]int64{{1}, {1, 2, 3, 4, 5, 6, 7, 0}} {
		for _, flight := range []int{1, 10, 50, 200} {
			b.Run(fmt.Sprintf("%d kinds %d on their way", len(kinds), flight), func(b *testing.B) {
				s := world(BinPack)
				addNode(s, "n1", func(n *corev1.Node) { n.Status.Allocatable["pods"] = quantity("1000") }, 80, 80, 80, 80, 80, 80, 80, 80)
				// What others have there.
				for i := range 40 {
					s.SetClaim(allocated(fmt.Sprint("c", i), "n1", "gpu-0", 1), "")
				}
				for i := range flight {
					gi := kinds[i%len(kinds)]
					if i >= 2*len(kinds) {
						gi = 1
					}
					id := engine.WorkloadID(fmt.Sprintf("ns/w%d", i))
					_, a := ask(s, id, 1, gi, nil)
					if _, no := s.Open(id, &a.PodSets[0], types.UID(id)); no != nil {
						b.Fatalf("%d of %d opened: %v", i, flight, no)
					}
				}
				took := newTimes(b)
				for i := range b.N {
					id := engine.WorkloadID(fmt.Sprintf("ns/more-%d", i))
					_, a := ask(s, id, 1, 2, nil)
					took.time(func() {
						if _, no := s.Open(id, &a.PodSets[0], types.UID(id)); no != nil {
							b.Fatal(no)
						}
					})
					s.Settle(id, types.UID(id))
					s.RemoveWorkload(id)
					s.reindex()
				}
				took.report()
			})
		}
	}
}
