package gpu

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Use is what happens on a card, or on a MIG device, now.
type Use struct {
	UUID string
	// Model names the product and the driver's version: cards of one model
	// take the same memory for a context.
	Model string
	// MemoryTotal and MemoryUsed are bytes; used includes what the driver
	// took for itself.
	MemoryTotal, MemoryUsed uint64
	// Processes hold contexts on the card, in NVML's order.
	Processes []ProcessUse

	// Utilization in percent, Temperature in degrees Celsius and Power in
	// watts are -1 where the card does not tell.
	Utilization, Temperature int
	Power                    float64
}

// ProcessUse is one process on a card.
type ProcessUse struct {
	// PID as this process sees it: NVML names only processes of its caller's
	// PID namespace.
	PID int
	// Memory is what it holds on the card in bytes, its contexts included.
	Memory uint64
}

// Use tells what happens on every card that can be asked. It opens nothing:
// before the first successful Scan, and after one that failed, there are no
// cards.
func (s *Scanner) Use() ([]Use, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lib == nil {
		return nil, nil
	}
	r := reader{lib: s.lib}
	if err := r.versions(); err != nil {
		return nil, err
	}
	count, ret := s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML does not count cards: %s: %w", describe(ret), ErrUnavailable)
	}
	var all []Use
	for i := range count {
		dev, ret := s.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // Scan tells of it
		}
		partitioned := isPartitioned(dev)
		if u, ok := r.use(dev, !partitioned); ok {
			all = append(all, u)
		}
		if !partitioned {
			continue
		}
		// The processes on its MIG devices are theirs: the card has none of
		// its own.
		for _, mig := range migHandles(dev) {
			if u, ok := r.use(mig, true); ok {
				all = append(all, u)
			}
		}
	}
	return all, nil
}

func isPartitioned(dev nvml.Device) bool {
	mode, _, ret := dev.GetMigMode()
	return ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
}

func (r *reader) use(dev nvml.Device, programs bool) (Use, bool) {
	u := Use{Utilization: -1, Temperature: -1, Power: -1}
	var ret nvml.Return
	if u.UUID, ret = dev.GetUUID(); ret != nvml.SUCCESS {
		return u, false
	}
	name, _ := dev.GetName()
	u.Model = name + ", driver " + r.driver
	memory, ret := dev.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return u, false
	}
	u.MemoryTotal, u.MemoryUsed = memory.Total, memory.Used
	var processes []nvml.ProcessInfo
	if programs {
		if processes, ret = dev.GetComputeRunningProcesses(); ret != nvml.SUCCESS {
			return u, false
		}
	}
	for _, p := range processes {
		if p.UsedGpuMemory == ^uint64(0) { // NVML_VALUE_NOT_AVAILABLE
			continue
		}
		u.Processes = append(u.Processes, ProcessUse{PID: int(p.Pid), Memory: p.UsedGpuMemory})
	}
	if v, ret := dev.GetUtilizationRates(); ret == nvml.SUCCESS {
		u.Utilization = int(v.Gpu)
	}
	if v, ret := dev.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS {
		u.Temperature = int(v)
	}
	if v, ret := dev.GetPowerUsage(); ret == nvml.SUCCESS {
		u.Power = float64(v) / 1000
	}
	return u, true
}
