package gputest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
)

// Partition puts card i into MIG mode, or back.
func (l *Library) Partition(i int, on bool) {
	mode := nvml.DEVICE_MIG_DISABLE
	if on {
		mode = nvml.DEVICE_MIG_ENABLE
	}
	l.Card(i).SetMigMode(mode)
}

// Make makes a GPU instance of card i, of NVML's number of a profile, at a
// memory slice, with one compute instance that is all of it: what an
// administrator does. It returns the device's UUID.
func (l *Library) Make(i, number, start int) string {
	d := l.Card(i)
	info, ret := d.GetGpuInstanceProfileInfo(number)
	if ret != nvml.SUCCESS {
		panic(ret)
	}
	places, _ := d.GetGpuInstancePossiblePlacements(&info)
	at := slices.IndexFunc(places, func(p nvml.GpuInstancePlacement) bool { return int(p.Start) == start })
	gi, ret := d.CreateGpuInstanceWithPlacement(&info, &places[at])
	if ret != nvml.SUCCESS {
		panic(ret)
	}
	ci, _ := gi.GetComputeInstanceProfileInfo(number, 0)
	c, ret := gi.CreateComputeInstance(&ci)
	if ret != nvml.SUCCESS {
		panic(ret)
	}
	made, _ := gi.GetInfo()
	compute, _ := c.GetInfo()
	return migUUID(i, int(made.Id), int(compute.Id))
}

// Instances are card i's GPU instances as "ID profile@slice", by slice, with a
// "+" for each compute instance.
func (l *Library) Instances(i int) []string {
	var out []string
	for _, gi := range l.instances(i) {
		text := fmt.Sprintf("%d@%d", gi.Info.ProfileId, gi.Info.Placement.Start)
		for range gi.ComputeInstances {
			text += "+"
		}
		out = append(out, text)
	}
	return out
}

// Busy makes the instances of card i refuse to be destroyed, as if programs
// used them.
func (l *Library) Busy(i int, busy bool) { l.busy[i] = busy }

// OnChange is called before and after each change of instances, with what is
// to be done or was done: "make instance", "made instance", "make compute",
// "end compute", "ended instance" and so on. Nil: nobody is.
func (l *Library) OnChange(f func(string)) { l.onChange = f }

func (l *Library) change(what string) {
	if l.onChange != nil {
		l.onChange(what)
	}
}

// instances lists the mock's set in order.
func (l *Library) instances(i int) []*server.GpuInstance {
	d := l.Card(i)
	d.RLock()
	defer d.RUnlock()
	var out []*server.GpuInstance
	for gi := range d.GpuInstances {
		out = append(out, gi)
	}
	slices.SortFunc(out, func(a, b *server.GpuInstance) int {
		return cmp.Or(cmp.Compare(a.Info.Placement.Start, b.Info.Placement.Start), cmp.Compare(a.Info.Id, b.Info.Id))
	})
	return out
}

func migUUID(card, gi, ci int) string {
	return fmt.Sprintf("MIG-%08x-0000-0000-%04x-%012x", 0xa0000000+card, gi, ci)
}

// completeMIG adds what the mock leaves out: overlaps are refused, instances
// are found by id, and compute instances are devices.
func (l *Library) completeMIG(i int) {
	d := l.Card(i)
	create := d.CreateGpuInstanceWithPlacementFunc
	d.CreateGpuInstanceWithPlacementFunc = func(info *nvml.GpuInstanceProfileInfo, at *nvml.GpuInstancePlacement) (nvml.GpuInstance, nvml.Return) {
		l.change("make instance")
		for _, o := range l.instances(i) {
			p := o.Info.Placement
			if p.Start < at.Start+at.Size && at.Start < p.Start+p.Size {
				return nil, nvml.ERROR_INSUFFICIENT_RESOURCES
			}
		}
		gi, ret := create(info, at)
		if ret == nvml.SUCCESS {
			l.completeInstance(i, gi.(*server.GpuInstance))
			l.change("made instance")
		}
		return gi, ret
	}
	d.GetGpuInstanceByIdFunc = func(id int) (nvml.GpuInstance, nvml.Return) {
		for _, gi := range l.instances(i) {
			if int(gi.Info.Id) == id {
				return gi, nvml.SUCCESS
			}
		}
		return nil, nvml.ERROR_NOT_FOUND
	}
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(index int) (nvml.Device, nvml.Return) {
		if all := l.migDevices(i); index < len(all) {
			return all[index], nvml.SUCCESS
		}
		return nil, nvml.ERROR_NOT_FOUND
	}
}

func (l *Library) completeInstance(i int, gi *server.GpuInstance) {
	compute, destroy := gi.CreateComputeInstanceFunc, gi.DestroyFunc
	gi.CreateComputeInstanceFunc = func(info *nvml.ComputeInstanceProfileInfo) (nvml.ComputeInstance, nvml.Return) {
		l.change("make compute")
		ci, ret := compute(info)
		if ret != nvml.SUCCESS {
			return ci, ret
		}
		c := ci.(*server.ComputeInstance)
		end := c.DestroyFunc
		c.DestroyFunc = func() nvml.Return {
			l.change("end compute")
			if l.busy[i] {
				return nvml.ERROR_IN_USE
			}
			ret := end()
			l.change("ended compute")
			return ret
		}
		l.change("made compute")
		return ci, ret
	}
	gi.DestroyFunc = func() nvml.Return {
		l.change("end instance")
		if l.busy[i] || len(gi.ComputeInstances) > 0 {
			return nvml.ERROR_IN_USE
		}
		ret := destroy()
		l.change("ended instance")
		return ret
	}
}

func (l *Library) migDevices(i int) []nvml.Device {
	var out []nvml.Device
	for _, gi := range l.instances(i) {
		var ids []int
		for ci := range gi.ComputeInstances {
			ids = append(ids, int(ci.Info.Id))
		}
		slices.Sort(ids)
		for _, ci := range ids {
			out = append(out, l.migDevice(i, int(gi.Info.Id), ci))
		}
	}
	return out
}

func (l *Library) migDevice(i, gi, ci int) nvml.Device {
	return &mock.Device{
		GetUUIDFunc:              func() (string, nvml.Return) { return migUUID(i, gi, ci), nvml.SUCCESS },
		GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return gi, nvml.SUCCESS },
		GetComputeInstanceIdFunc: func() (int, nvml.Return) { return ci, nvml.SUCCESS },
		IsMigDeviceHandleFunc:    func() (bool, nvml.Return) { return true, nvml.SUCCESS },
		GetNameFunc:              func() (string, nvml.Return) { return "MIG", nvml.SUCCESS },
		GetMemoryInfoFunc:        func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 1 << 33}, nvml.SUCCESS },
		GetUtilizationRatesFunc:  func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED },
		GetPowerUsageFunc:        func() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED },
		GetTemperatureFunc:       func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED },
		GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) {
			return l.programs[migUUID(i, gi, ci)], nvml.SUCCESS
		},
		GetDeviceHandleFromMigDeviceHandleFunc: func() (nvml.Device, nvml.Return) { return l.Card(i), nvml.SUCCESS },
	}
}

// XIDOn lets a GPU instance of card i report an error event.
func (l *Library) XIDOn(i, gi int, code uint64) {
	l.events = append(l.events, nvml.EventData{
		Device: l.Devices[i], EventType: nvml.EventTypeXidCriticalError, EventData: code, GpuInstanceId: uint32(gi), ComputeInstanceId: 0xffffffff,
	})
}

// Run puts a program on a device, by UUID.
func (l *Library) Run(uuid string, pid uint32, memory uint64) {
	l.programs[uuid] = append(l.programs[uuid], nvml.ProcessInfo{Pid: pid, UsedGpuMemory: memory})
}

// findMIG lets devices be found by their UUIDs.
func (l *Library) findMIG() {
	cards := l.DeviceGetHandleByUUIDFunc
	l.DeviceGetHandleByUUIDFunc = func(uuid string) (nvml.Device, nvml.Return) {
		for i := range l.Devices {
			for _, d := range l.migDevices(i) {
				if have, _ := d.GetUUID(); have == uuid {
					return d, nvml.SUCCESS
				}
			}
		}
		return cards(uuid)
	}
}
