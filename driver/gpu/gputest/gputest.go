// Package gputest makes NVML libraries of made-up cards for tests: go-nvml's
// own mock server, completed by the calls it leaves out.
package gputest

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
)

// DriverVersion is what every made-up library reports.
const DriverVersion = "570.86.15"

// ReservedMi is the memory each card keeps for itself.
const ReservedMi = 512

// T4 completes the models that go-nvml knows.
var T4 = gpus.Config{
	Name: "Tesla T4", Architecture: nvml.DEVICE_ARCH_TURING, Brand: nvml.BRAND_TESLA,
	MemoryMB: 15360, CudaMajor: 7, CudaMinor: 5, PciDeviceId: 0x1EB810DE,
}

// Library is a made-up libnvidia-ml with n cards of one model. Card i has the
// UUID of UUID(i), the PCI address of BusID(i) and minor number i.
type Library struct {
	*server.Server
	// Energy is what card i has used since it was started, in millijoules.
	Energy map[int]uint64
	events []nvml.EventData

	busy     map[int]bool
	programs map[string][]nvml.ProcessInfo // by MIG device
	onChange func(string)
}

// XID lets card i report an error event to who listens.
func (l *Library) XID(i int, code uint64) {
	l.events = append(l.events, nvml.EventData{Device: l.Devices[i], EventType: nvml.EventTypeXidCriticalError, EventData: code, GpuInstanceId: 0xffffffff, ComputeInstanceId: 0xffffffff})
}

// New returns a library with the given cards.
func New(models ...gpus.Config) *Library {
	s, err := server.New(
		server.WithGPUs(models...),
		server.WithDriverVersion(DriverVersion),
		server.WithNVMLVersion("12."+DriverVersion),
		server.WithCUDADriverVersion(12080),
	)
	if err != nil {
		panic(err)
	}
	return Complete(s)
}

// Complete gives a mock server of go-nvml's what it leaves out.
func Complete(s *server.Server) *Library {
	l := &Library{Server: s, busy: map[int]bool{}, programs: map[string][]nvml.ProcessInfo{}}
	l.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{
			FreeFunc: func() nvml.Return { return nvml.SUCCESS },
			WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
				if len(l.events) == 0 {
					return nvml.EventData{}, nvml.ERROR_TIMEOUT
				}
				e := l.events[0]
				l.events = l.events[1:]
				return e, nvml.SUCCESS
			},
		}, nvml.SUCCESS
	}
	for i := range s.Devices {
		l.complete(i)
		l.completeMIG(i)
	}
	l.findMIG()
	return l
}

// UUID is the identity of card i.
func UUID(i int) string {
	return fmt.Sprintf("GPU-%08x-1111-2222-3333-%012x", 0xa0000000+i, i)
}

// BusID is the PCI address of card i as the kernel writes it.
func BusID(i int) string { return fmt.Sprintf("0000:%02x:00.0", 0x10+i) }

// Card gives access to card i for a test that changes it.
func (l *Library) Card(i int) *server.Device { return l.Devices[i].(*server.Device) }

func (l *Library) complete(i int) {
	d := l.Card(i)
	d.UUID, d.PciBusID = UUID(i), BusID(i)
	total := d.MemoryInfo.Total
	d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		return nvml.Memory_v2{Total: total, Reserved: ReservedMi << 20, Free: total - ReservedMi<<20}, nvml.SUCCESS
	}
	d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
		p := nvml.PciInfo{Bus: uint32(0x10 + i)}
		for j, c := range "0000" + BusID(i) {
			p.BusId[j] = int8(c)
		}
		return p, nvml.SUCCESS
	}
	d.IsMigDeviceHandleFunc = func() (bool, nvml.Return) { return false, nvml.SUCCESS }
	d.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS }
	d.GetTotalEnergyConsumptionFunc = func() (uint64, nvml.Return) {
		if mj, ok := l.Energy[i]; ok {
			return mj, nvml.SUCCESS
		}
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	d.GetNumGpuCoresFunc = func() (int, nvml.Return) {
		name, ret := d.GetName()
		return lanes(name), ret
	}
	d.GetEccModeFunc = func() (nvml.EnableState, nvml.EnableState, nvml.Return) {
		return nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED, nvml.SUCCESS
	}
	d.GetMemoryBusWidthFunc = func() (uint32, nvml.Return) { return 5120, nvml.SUCCESS }
	d.GetMaxClockInfoFunc = func(nvml.ClockType) (uint32, nvml.Return) { return 1593, nvml.SUCCESS }
	d.GetMemoryAffinityFunc = func(int, nvml.AffinityScope) ([]uint, nvml.Return) {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	d.GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) {
		return nvml.FEATURE_DISABLED, nvml.ERROR_NOT_SUPPORTED
	}
}

// lanes are the FP32 lanes of a model.
func lanes(name string) int {
	switch {
	case strings.Contains(name, "B200"):
		return 148 * 128
	case strings.Contains(name, "H100"), strings.Contains(name, "H200"):
		return 132 * 128
	}
	return 108 * 64
}
