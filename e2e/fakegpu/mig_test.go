package fakegpu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func migCard(model string, instances ...string) Node {
	return Node{Name: "node-1", Cards: []Card{{Model: model, MIG: &MIG{Instances: instances}}}}
}

// go-nvlib makes a profile's name of its numbers, by NVIDIA's rules: names and numbers must agree.
func TestProfilesAreThoseOfTheCardAndFillIt(t *testing.T) {
	for model, want := range map[string]string{
		"A100-PCIE-40GB": "1g.5gb/19x7 1g.5gb+me/20x7 1g.10gb/15x4 2g.10gb/14x3 3g.20gb/9x2 4g.20gb/5x1 7g.40gb/0x1",
		"A100-SXM4-80GB": "1g.10gb/19x7 1g.10gb+me/20x7 1g.20gb/15x4 2g.20gb/14x3 3g.40gb/9x2 4g.40gb/5x1 7g.80gb/0x1",
		"H100-SXM5-80GB": "1g.10gb/19x7 1g.10gb+me/20x7 1g.20gb/15x4 2g.20gb/14x3 3g.40gb/9x2 4g.40gb/5x1 7g.80gb/0x1",
	} {
		t.Run(model, func(t *testing.T) {
			in := install(t, migCard(model))
			lib := openNVML(t, in)
			card := handle(t, lib, 0)
			named := device.New(lib)
			info, _ := card.GetMemoryInfo_v2()
			var got []string
			for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
				p, ret := card.GetGpuInstanceProfileInfo(number)
				if ret == nvml.ERROR_NOT_SUPPORTED {
					continue
				}
				v3, ret3 := card.GetGpuInstanceProfileInfoV(number).V3()
				byID, retID := card.GetGpuInstanceProfileInfoByIdV(int(p.Id)).V2()
				places, retP := card.GetGpuInstancePossiblePlacements(&p)
				if ret != nvml.SUCCESS || ret3 != nvml.SUCCESS || retID != nvml.SUCCESS || retP != nvml.SUCCESS {
					t.Fatalf("profile %d: %v %v %v %v", number, ret, ret3, retID, retP)
				}
				name := cString(v3.Name[:])
				if name != cString(byID.Name[:]) || v3.MemorySizeMB != p.MemorySizeMB {
					t.Errorf("%s and %s are one profile: %+v %+v", name, cString(byID.Name[:]), v3, p)
				}
				ci, _, _ := strings.Cut(name, "g")
				profile, err := named.NewMigProfile(number, map[string]int{"1": 0, "2": 1, "3": 2, "4": 3, "7": 4}[ci], 0, p.MemorySizeMB, info.Total)
				if err != nil || profile.String() != name {
					t.Errorf("profile %s has the numbers of %v (%v)", name, profile, err)
				}
				if sum := uint64(p.InstanceCount) * p.MemorySizeMB << 20; sum > info.Total-info.Reserved {
					t.Errorf("%d of %s take %d bytes of %d", p.InstanceCount, name, sum, info.Total-info.Reserved)
				}
				got = append(got, fmt.Sprintf("%s/%dx%d", name, p.Id, len(places)))
			}
			wanted := strings.Fields(want)
			slices.Sort(wanted)
			slices.Sort(got)
			if !slices.Equal(got, wanted) {
				t.Errorf("profiles %q, want %q", got, wanted)
			}
		})
	}
}

// makeGI makes an instance of a profile's number at a place, and a compute instance that is all of it.
func makeGI(t *testing.T, card nvml.Device, number int, start uint32) (nvml.GpuInstance, nvml.Return) {
	t.Helper()
	p, _ := card.GetGpuInstanceProfileInfo(number)
	places, _ := card.GetGpuInstancePossiblePlacements(&p)
	for _, place := range places {
		if place.Start != start {
			continue
		}
		gi, ret := card.CreateGpuInstanceWithPlacement(&p, &place)
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		ci, ret := gi.GetComputeInstanceProfileInfo(number, 0)
		if ret != nvml.SUCCESS {
			t.Fatalf("no compute profile of all of it: %v", ret)
		}
		if _, ret = gi.CreateComputeInstance(&ci); ret != nvml.SUCCESS {
			t.Fatalf("CreateComputeInstance: %v", ret)
		}
		return gi, ret
	}
	t.Fatalf("profile %d cannot begin at %d", number, start)
	return nil, nvml.ERROR_UNKNOWN
}

func TestAnInstanceIsADeviceUntilItIsDestroyed(t *testing.T) {
	in := install(t, migCard("A100-SXM4-80GB", "1g.10gb@6"))
	lib := openNVML(t, in)
	card := handle(t, lib, 0)
	gi, ret := makeGI(t, card, nvml.GPU_INSTANCE_PROFILE_3_SLICE, 0)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	info, _ := gi.GetInfo()
	if info.Placement != (nvml.GpuInstancePlacement{Start: 0, Size: 4}) || info.ProfileId != 9 {
		t.Errorf("instance %+v", info)
	}
	if _, ret := makeGI(t, card, nvml.GPU_INSTANCE_PROFILE_2_SLICE, 2); ret != nvml.ERROR_INSUFFICIENT_RESOURCES {
		t.Errorf("a place that is taken: %v", ret)
	}
	if _, ret := makeGI(t, card, nvml.GPU_INSTANCE_PROFILE_3_SLICE, 4); ret != nvml.ERROR_INSUFFICIENT_RESOURCES {
		t.Errorf("a place that is taken in part: %v", ret)
	}

	var mig nvml.Device
	uuids := map[string]bool{}
	for i := range 3 {
		d, ret := card.GetMigDeviceHandleByIndex(i)
		if i == 2 {
			if ret != nvml.ERROR_NOT_FOUND {
				t.Errorf("a third device of two: %v", ret)
			}
			break
		}
		uuid, _ := d.GetUUID()
		uuids[uuid] = true
		if id, _ := d.GetGpuInstanceId(); id == int(info.Id) {
			mig = d
		}
	}
	if len(uuids) != 2 || mig == nil {
		t.Fatalf("devices %v", uuids)
	}
	uuid, _ := mig.GetUUID()
	name, _ := mig.GetName()
	memory, _ := mig.GetMemoryInfo_v2()
	attributes, _ := mig.GetAttributes()
	parent, _ := mig.GetDeviceHandleFromMigDeviceHandle()
	is, _ := mig.IsMigDeviceHandle()
	cardIs, _ := card.IsMigDeviceHandle()
	same, _ := lib.DeviceGetHandleByUUID(uuid)
	if name != "NVIDIA A100-SXM4-80GB MIG 3g.40gb" || memory.Total != 40192<<20 || attributes.MultiprocessorCount != 42 ||
		attributes.MemorySizeMB != 40192 || parent != card || !is || cardIs || same != mig || !strings.HasPrefix(uuid, "MIG-") {
		t.Errorf("%s %s: %+v %+v, parent %v, %v %v %v", uuid, name, memory, attributes, parent == card, is, cardIs, same == mig)
	}
	described, err := device.New(lib).NewMigDevice(mig)
	if err != nil {
		t.Fatal(err)
	}
	if profile, err := described.GetProfile(); err != nil || profile.String() != "3g.40gb" {
		t.Errorf("profile %v, %v", profile, err)
	}

	if ret := gi.Destroy(); ret != nvml.ERROR_IN_USE {
		t.Errorf("destroyed with a compute instance in it: %v", ret)
	}
	ci, ret := gi.GetComputeInstanceById(0)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	// A program that runs there keeps it.
	holder := hold(t, visible(in, uuid, "alloc:1Gi"))
	if ret := ci.Destroy(); ret != nvml.ERROR_IN_USE {
		t.Errorf("destroyed under a program: %v", ret)
	}
	holder.kill()
	if ret := ci.Destroy(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if ret := gi.Destroy(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if _, ret := lib.DeviceGetHandleByUUID(uuid); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("a destroyed device is found: %v", ret)
	}
	if _, ret := mig.GetName(); ret == nvml.SUCCESS {
		t.Error("its handle still answers")
	}
	again, _ := makeGI(t, card, nvml.GPU_INSTANCE_PROFILE_3_SLICE, 0)
	if again == nil {
		t.Fatal("its place is not free")
	}
	if _, ret := lib.DeviceGetHandleByUUID(uuid); ret == nvml.SUCCESS {
		t.Error("another instance has the UUID of one that was destroyed")
	}
}

// visible is a probe that is told to use one device.
func visible(in *Installed, uuid string, args ...string) *exec.Cmd {
	cmd := probeCommand(in, args...)
	cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+uuid)
	return cmd
}

func migUUIDs(t *testing.T, in *Installed) (uuids []string) {
	t.Helper()
	instances, on, err := in.Instances(0)
	if err != nil || !on {
		t.Fatalf("MIG mode %v, %v", on, err)
	}
	for _, gi := range instances {
		for _, ci := range gi.Compute {
			uuids = append(uuids, ci.UUID)
		}
	}
	return uuids
}

func TestAProgramSeesOneInstanceAndItsMemoryOnly(t *testing.T) {
	in := install(t, migCard("A100-SXM4-80GB", "3g.40gb", "1g.10gb"))
	uuids := migUUIDs(t, in)
	out, err := visible(in, uuids[1], "info", "alloc:9Gi", "alloc:1Gi=OUT_OF_MEMORY", "meminfo").Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	steps := parseSteps(t, out)
	if s := steps[0]; s.Devices != 1 || s.Name != "NVIDIA A100-SXM4-80GB MIG 1g.10gb" || s.DeviceTotal != 9728<<20 || !strings.EqualFold("MIG-"+strings.TrimPrefix(s.UUID, "GPU-"), uuids[1]) {
		t.Errorf("the program sees %+v of %v", s, uuids)
	}
	// The other instance has all of its memory while this one is full.
	full := hold(t, visible(in, uuids[1], "alloc:9Gi"))
	defer full.kill()
	if out, err := visible(in, uuids[0], "alloc:39Gi=SUCCESS", "alloc:1Gi=OUT_OF_MEMORY").Output(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}

	// Without a choice it is the first one of which the capabilities are there.
	dev := t.TempDir()
	instances, _, _ := in.Instances(0)
	gi := instances[1].ID
	for _, name := range []string{"nvidiactl", "nvidia0", fmt.Sprint("nvidia-caps/nvidia-cap", 3+gi*9), fmt.Sprint("nvidia-caps/nvidia-cap", 3+gi*9+1)} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dev, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dev, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := probeCommand(in, "info")
	cmd.Env = append(cmd.Env, "FAKEGPU_DEV="+dev)
	if out, err = cmd.Output(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if s := parseSteps(t, out)[0]; s.Devices != 1 || !strings.HasSuffix(s.Name, "MIG 1g.10gb") {
		t.Errorf("with the capabilities of one instance a program sees %+v", s)
	}
	// And whoever has no capability sees nothing, not the card either.
	if err := os.RemoveAll(filepath.Join(dev, "nvidia-caps")); err != nil {
		t.Fatal(err)
	}
	cmd = probeCommand(in, "info")
	cmd.Env = append(cmd.Env, "FAKEGPU_DEV="+dev)
	if out, err = cmd.Output(); err != nil || parseSteps(t, out)[0].Result != "CUDA_ERROR_NO_DEVICE" {
		t.Errorf("without a capability: %s (%v)", out, err)
	}
}

func TestTheModeIsKeptWhileTheCardIsInUse(t *testing.T) {
	in := install(t, oneCard("A100-SXM4-80GB"))
	h := hold(t, probeCommand(in, "alloc:1Gi"))
	if err := in.MIGMode(0, true); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("switched under a program: %v", err)
	}
	h.kill()
	for _, step := range []func() error{
		func() error { return in.MIGMode(0, true) },
		func() error { return in.MakeInstance(0, "7g.80gb") },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.MIGMode(0, false); err == nil {
		t.Error("switched off with an instance")
	}
	if err := in.Reset(); err != nil {
		t.Fatal(err)
	}
	if instances, on, err := in.Instances(0); err != nil || !on || len(instances) > 0 {
		t.Errorf("after a power cycle mode %v, instances %+v, %v", on, instances, err)
	}
	if err := in.MakeInstance(0, "7g.80gb"); err != nil {
		t.Fatal(err)
	}
	if err := in.DestroyInstance(0, 1); err != nil {
		t.Fatal(err)
	}
	if err := in.MIGMode(0, false); err != nil {
		t.Error(err)
	}
	if s := probe(t, in, "info"); s[0].Name != "NVIDIA A100-SXM4-80GB" {
		t.Errorf("with the mode off a program sees %+v", s)
	}
}

// Whoever lacks the capability "config", a container for example, changes nothing.
func TestInstancesAreMadeOnlyByWhoHasTheRight(t *testing.T) {
	in := install(t, migCard("A100-SXM4-80GB"))
	if err := os.Remove(filepath.Join(in.DevDir(), "nvidia-caps/nvidia-cap1")); err != nil {
		t.Fatal(err)
	}
	card := handle(t, openNVML(t, in), 0)
	if _, ret := makeGI(t, card, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 0); ret != nvml.ERROR_NO_PERMISSION {
		t.Errorf("made: %v", ret)
	}
	if _, ret := card.SetMigMode(0); ret != nvml.ERROR_NO_PERMISSION {
		t.Errorf("mode set: %v", ret)
	}
}
