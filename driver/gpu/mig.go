package gpu

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Partition is how a card in MIG mode is cut, and how it could be. NVIDIA's
// "Multi-Instance GPU User Guide" has the terms.
type Partition struct {
	// Profiles are the shapes that GPU instances of the card can have, in the
	// order of NVML's numbers.
	Profiles []MIGProfile
	// Instances are the GPU instances that are there, by memory slice.
	Instances []Instance
}

// MIGProfile is a shape of GPU instances on one kind of card.
type MIGProfile struct {
	// Name is the profile's name as nvidia-smi spells it, "3g.40gb".
	Name string
	// ID is the card's number of the profile.
	ID int
	Engines
	// Slices are its compute slices, Count how many instances of it fit on an
	// empty card.
	Slices, Count int
	MemoryMi      int64
	// Places are where an instance of it can be.
	Places []Place
}

// Engines are what an instance has of the card beside memory.
type Engines struct {
	SMs, Copy, Decoders, Encoders, JPEG, OFA int
}

// Place is a range of a card's memory slices.
type Place struct{ Start, Size int }

// Overlaps tells whether the places have a slice in common.
func (p Place) Overlaps(o Place) bool { return p.Start < o.Start+o.Size && o.Start < p.Start+p.Size }

// Instance is a GPU instance.
type Instance struct {
	// ID is NVML's; it is given again when the instance is gone.
	ID        int
	ProfileID int
	Place
	// Devices are the compute instances in it, which are what programs use.
	Devices []MIGDevice
}

// MIGDevice is a compute instance.
type MIGDevice struct {
	// UUID is "MIG-" and a UUID.
	UUID string
	// ID is its number within the GPU instance.
	ID int
	// Profile is that of the GPU instance, or "1c.3g.40gb" for a part of one.
	Profile  string
	MemoryMi int64
	Engines
	// Fault says what is wrong with the device; empty if nothing is known.
	Fault string
}

// partition reads a card in MIG mode. What it cannot read is left out: a
// profile of a kind that has no name here, an instance that goes meanwhile.
func (r *reader) partition(dev nvml.Device) (*Partition, error) {
	memory, ret := dev.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("no memory size: %s", describe(ret))
	}
	namer := device.New(r.lib, device.WithVerifySymbols(false))
	p := &Partition{}
	devices := r.migDevices(dev)
	for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := dev.GetGpuInstanceProfileInfo(number)
		if ret != nvml.SUCCESS {
			continue // not of this card, or unknown to this driver
		}
		whole, ok := computeNumber(int(info.SliceCount))
		if !ok {
			continue
		}
		name, err := namer.NewMigProfile(number, whole, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, info.MemorySizeMB, memory.Total)
		if err != nil {
			continue
		}
		places, ret := dev.GetGpuInstancePossiblePlacements(&info)
		if ret != nvml.SUCCESS {
			continue
		}
		profile := MIGProfile{
			Name: name.String(), ID: int(info.Id), Slices: int(info.SliceCount), Count: int(info.InstanceCount), MemoryMi: int64(info.MemorySizeMB),
			Engines: Engines{
				SMs: int(info.MultiprocessorCount), Copy: int(info.CopyEngineCount), Decoders: int(info.DecoderCount),
				Encoders: int(info.EncoderCount), JPEG: int(info.JpegCount), OFA: int(info.OfaCount),
			},
		}
		for _, at := range places {
			profile.Places = append(profile.Places, Place{Start: int(at.Start), Size: int(at.Size)})
		}
		p.Profiles = append(p.Profiles, profile)
		instances, ret := dev.GetGpuInstances(&info)
		if ret != nvml.SUCCESS {
			continue
		}
		for _, gi := range instances {
			if i, ok := r.instance(gi, profile, devices); ok {
				p.Instances = append(p.Instances, i)
			}
		}
	}
	slices.SortFunc(p.Instances, func(a, b Instance) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.ID, b.ID)) })
	return p, nil
}

func (r *reader) instance(gi nvml.GpuInstance, profile MIGProfile, devices map[[2]int]MIGDevice) (Instance, bool) {
	info, ret := gi.GetInfo()
	if ret != nvml.SUCCESS {
		return Instance{}, false
	}
	i := Instance{ID: int(info.Id), ProfileID: int(info.ProfileId), Place: Place{Start: int(info.Placement.Start), Size: int(info.Placement.Size)}}
	for _, c := range computeInstances(gi) {
		d, ok := devices[[2]int{i.ID, c.id}]
		if !ok {
			continue // made or destroyed meanwhile
		}
		d.Profile = profile.Name
		if c.slices < profile.Slices {
			d.Profile = fmt.Sprintf("%dc.%s", c.slices, profile.Name)
		}
		d.MemoryMi = profile.MemoryMi
		d.Fault = r.faults.fault(d.UUID)
		d.Engines = profile.Engines
		d.SMs = c.sms
		i.Devices = append(i.Devices, d)
	}
	return i, true
}

// compute is a compute instance of a GPU instance.
type compute struct {
	id, slices, sms int
	handle          nvml.ComputeInstance
}

// computeInstances lists those of a GPU instance by id.
func computeInstances(gi nvml.GpuInstance) []compute {
	var out []compute
	for number := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := gi.GetComputeInstanceProfileInfo(number, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret != nvml.SUCCESS {
			continue
		}
		list, ret := gi.GetComputeInstances(&info)
		if ret != nvml.SUCCESS {
			continue
		}
		for _, ci := range list {
			at, ret := ci.GetInfo()
			if ret == nvml.SUCCESS && !slices.ContainsFunc(out, func(c compute) bool { return c.id == int(at.Id) }) {
				out = append(out, compute{id: int(at.Id), slices: int(info.SliceCount), sms: int(info.MultiprocessorCount), handle: ci})
			}
		}
	}
	slices.SortFunc(out, func(a, b compute) int { return cmp.Compare(a.id, b.id) })
	return out
}

// migDevices are the UUIDs of compute instances, by the ids of the GPU instance
// and the compute instance.
func (r *reader) migDevices(dev nvml.Device) map[[2]int]MIGDevice {
	out := map[[2]int]MIGDevice{}
	for _, mig := range migHandles(dev) {
		gi, giRet := mig.GetGpuInstanceId()
		ci, ciRet := mig.GetComputeInstanceId()
		uuid, ret := mig.GetUUID()
		if giRet == nvml.SUCCESS && ciRet == nvml.SUCCESS && ret == nvml.SUCCESS {
			out[[2]int{gi, ci}] = MIGDevice{UUID: uuid, ID: ci}
		}
	}
	return out
}

// migHandles are the handles of a card's MIG devices.
func migHandles(dev nvml.Device) []nvml.Device {
	most, ret := dev.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil
	}
	var out []nvml.Device
	for i := range most {
		if mig, ret := dev.GetMigDeviceHandleByIndex(i); ret == nvml.SUCCESS {
			out = append(out, mig)
		}
	}
	return out
}

// computeNumber is NVML's number of the compute instance profile that has so
// many slices.
func computeNumber(slices int) (int, bool) {
	numbers := map[int]int{
		1: nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 2: nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE, 3: nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE,
		4: nvml.COMPUTE_INSTANCE_PROFILE_4_SLICE, 6: nvml.COMPUTE_INSTANCE_PROFILE_6_SLICE, 7: nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE,
		8: nvml.COMPUTE_INSTANCE_PROFILE_8_SLICE,
	}
	n, ok := numbers[slices]
	return n, ok
}
