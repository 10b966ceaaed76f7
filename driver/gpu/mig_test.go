package gpu_test

import (
	"errors"
	"testing"
	"testing/fstest"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/gpu/gputest"
)

func profile(t *testing.T, p *gpu.Partition, name string) gpu.MIGProfile {
	t.Helper()
	for _, p := range p.Profiles {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no profile %s in %+v", name, p.Profiles)
	return gpu.MIGProfile{}
}

func TestACardInMIGModeIsReadAsItIsCut(t *testing.T) {
	lib := gputest.New(gpus.A100_SXM4_80GB, gpus.A100_SXM4_80GB)
	lib.Partition(1, true)
	three := lib.Make(1, nvml.GPU_INSTANCE_PROFILE_3_SLICE, 0)
	one := lib.Make(1, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 6)
	cards := scan(t, lib, fstest.MapFS{}).GPUs
	if cards[0].MIG || cards[0].Partition != nil || !cards[1].MIG {
		t.Fatalf("MIG mode %v, %v", cards[0].MIG, cards[1].MIG)
	}
	p := cards[1].Partition
	got := profile(t, p, "3g.40gb")
	want := gpu.MIGProfile{
		Name: "3g.40gb", ID: nvml.GPU_INSTANCE_PROFILE_3_SLICE, Slices: 3, Count: 2, MemoryMi: 40192,
		Engines: gpu.Engines{SMs: 42, Copy: 3, Decoders: 2}, Places: []gpu.Place{{Start: 0, Size: 4}, {Start: 4, Size: 4}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, name := range []string{"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "4g.40gb", "7g.80gb"} {
		profile(t, p, name)
	}
	instances := []gpu.Instance{
		{ID: 0, ProfileID: 2, Place: gpu.Place{Start: 0, Size: 4}, Devices: []gpu.MIGDevice{
			{UUID: three, Profile: "3g.40gb", MemoryMi: 40192, Engines: gpu.Engines{SMs: 42, Copy: 3, Decoders: 2}},
		}},
		{ID: 1, ProfileID: 0, Place: gpu.Place{Start: 6, Size: 1}, Devices: []gpu.MIGDevice{
			{UUID: one, Profile: "1g.10gb", MemoryMi: 9856, Engines: gpu.Engines{SMs: 14, Copy: 1, Decoders: 1}},
		}},
	}
	if diff := cmp.Diff(instances, p.Instances); diff != "" {
		t.Error(diff)
	}
}

func TestAModeThatChangesIsSeenAtTheNextLook(t *testing.T) {
	lib := gputest.New(gpus.H100_SXM5_80GB)
	s := scanner(lib, fstest.MapFS{})
	for _, on := range []bool{false, true, false} {
		lib.Partition(0, on)
		inv, err := s.Scan()
		if err != nil || inv.GPUs[0].MIG != on || (inv.GPUs[0].Partition != nil) != on {
			t.Errorf("mode %v: %+v, %v", on, inv.GPUs[0], err)
		}
	}
}

func TestInstancesAreMadeAndEndWithinTheCardsLimits(t *testing.T) {
	lib := gputest.New(gpus.A100_SXM4_80GB)
	lib.Partition(0, true)
	s := scanner(lib, fstest.MapFS{})
	card := gputest.UUID(0)
	id, err := s.MakeInstance(card, nvml.GPU_INSTANCE_PROFILE_3_SLICE, gpu.Place{Start: 4, Size: 4})
	if err != nil {
		t.Fatal(err)
	}
	uuid, err := s.MakeCompute(card, id)
	if err != nil {
		t.Fatal(err)
	}
	if there, err := s.HasDevice(uuid); err != nil || !there {
		t.Errorf("device %s: %v, %v", uuid, there, err)
	}
	if _, err := s.MakeInstance(card, nvml.GPU_INSTANCE_PROFILE_2_SLICE, gpu.Place{Start: 4, Size: 2}); !errors.Is(err, gpu.ErrTaken) {
		t.Errorf("a place that is taken: %v", err)
	}
	if err := s.EndInstance(card, id); !errors.Is(err, gpu.ErrBusy) {
		t.Errorf("ended with a compute instance in it: %v", err)
	}
	lib.Busy(0, true)
	if err := s.EndCompute(card, id); !errors.Is(err, gpu.ErrBusy) {
		t.Errorf("ended under a program: %v", err)
	}
	lib.Busy(0, false)
	for range 2 { // what is not there is no error
		if err := errors.Join(s.EndCompute(card, id), s.EndInstance(card, id)); err != nil {
			t.Error(err)
		}
	}
	if there, err := s.HasDevice(uuid); err != nil || there {
		t.Errorf("the device that ended: %v, %v", there, err)
	}
	if _, err := s.Instances("GPU-no"); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("a card that is not there: %v", err)
	}
}

// An error event of an instance says nothing about its neighbours, and is
// forgotten with it.
func TestAnErrorOfAnInstanceIsItsOwn(t *testing.T) {
	lib := gputest.New(gpus.A100_SXM4_80GB)
	lib.Partition(0, true)
	s := scanner(lib, fstest.MapFS{})
	s.WatchXIDs = true
	lib.Make(0, nvml.GPU_INSTANCE_PROFILE_3_SLICE, 0)
	lib.Make(0, nvml.GPU_INSTANCE_PROFILE_3_SLICE, 4)
	look := func() gpu.GPU {
		inv, err := s.Scan()
		if err != nil {
			t.Fatal(err)
		}
		return inv.GPUs[0]
	}
	look()
	lib.XIDOn(0, 1, 94)
	g := look()
	i := g.Partition.Instances
	if g.Fault != "" || i[0].Devices[0].Fault != "" || i[1].Devices[0].Fault != "the MIG instance reported XID 94" {
		t.Errorf("card %q, instances %q and %q", g.Fault, i[0].Devices[0].Fault, i[1].Devices[0].Fault)
	}
	if err := errors.Join(s.EndCompute(g.UUID, 1), s.EndInstance(g.UUID, 1)); err != nil {
		t.Fatal(err)
	}
	look()
	lib.Card(0).GpuInstanceCounter = 1 // the next one has the same id and UUID
	lib.Make(0, nvml.GPU_INSTANCE_PROFILE_3_SLICE, 4)
	if f := look().Partition.Instances[1].Devices[0].Fault; f != "" {
		t.Errorf("another instance is blamed: %s", f)
	}
}

func TestProgramsOnInstancesAreTheirs(t *testing.T) {
	lib := gputest.New(gpus.A100_SXM4_80GB)
	lib.Partition(0, true)
	d := lib.Card(0)
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 42, UsedGpuMemory: 5}}, nvml.SUCCESS
	}
	d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED }
	d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 40, nvml.SUCCESS }
	d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	one, two := lib.Make(0, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 0), lib.Make(0, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 1)
	lib.Run(one, 42, 5)
	s := scanner(lib, fstest.MapFS{})
	if _, err := s.Scan(); err != nil {
		t.Fatal(err)
	}
	use, err := s.Use()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, u := range use {
		got[u.UUID] = len(u.Processes)
	}
	if diff := cmp.Diff(map[string]int{gputest.UUID(0): 0, one: 1, two: 0}, got); diff != "" {
		t.Error(diff)
	}
}
