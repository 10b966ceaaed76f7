package fakegpu

import (
	"fmt"
	"slices"
	"strings"
)

const mib = 1 << 20

// Model is a kind of card. Memory is what NVML calls total; Reserved is what the driver keeps, so
// that the difference is what CUDA can hand out.
type Model struct {
	Name              string // as NVML spells it
	MemoryMiB         uint64
	ReservedMiB       uint64
	SMs, CUDACores    int
	ComputeCapability [2]int
	Architecture      int // NVML_DEVICE_ARCH_*
	PCIDevice         uint32
	PCISubsystem      uint32
	BusWidth          int // bits
	SMClock, MemClock int // MHz, highest
	PowerLimitW       int
	MIG               MIGFamily
	NVLinks           int // links of the card in a system where all cards are connected
	PCIeGen           int
	BoardPart         string
}

// NVML's numbers of architectures and of the brand that all these cards have.
const (
	archTuring  = 6
	archAmpere  = 7
	archAda     = 8
	archHopper  = 9
	brandNVIDIA = 14
)

// models by the names that node files use. SMs, cores, clocks, bus widths and power are of
// NVIDIA's data sheets and architecture white papers (A100, H100, H200, L4, T4); MemoryMiB is what
// nvidia-smi prints as total; ReservedMiB makes the difference what CUDA programs print as the
// card's total capacity (79.25, 39.39, 79.11, 139.81, 22.03 and 14.74 GiB); device ids are those
// of the public PCI id list.
var models = map[string]Model{
	"A100-SXM4-80GB": {Name: "NVIDIA A100-SXM4-80GB", MemoryMiB: 81920, ReservedMiB: 768, SMs: 108, CUDACores: 6912,
		ComputeCapability: [2]int{8, 0}, Architecture: archAmpere, PCIDevice: 0x20b210de, PCISubsystem: 0x147f10de, BusWidth: 5120,
		SMClock: 1410, MemClock: 1593, PowerLimitW: 400, MIG: migA100x80, NVLinks: 12, PCIeGen: 4, BoardPart: "692-2G506-0210-002"},
	"A100-PCIE-40GB": {Name: "NVIDIA A100-PCIE-40GB", MemoryMiB: 40960, ReservedMiB: 624, SMs: 108, CUDACores: 6912,
		ComputeCapability: [2]int{8, 0}, Architecture: archAmpere, PCIDevice: 0x20f110de, PCISubsystem: 0x145f10de, BusWidth: 5120,
		SMClock: 1410, MemClock: 1215, PowerLimitW: 250, MIG: migA100x40, PCIeGen: 4, BoardPart: "900-21001-0000-000"},
	"H100-SXM5-80GB": {Name: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559, ReservedMiB: 551, SMs: 132, CUDACores: 16896,
		ComputeCapability: [2]int{9, 0}, Architecture: archHopper, PCIDevice: 0x233010de, PCISubsystem: 0x16c110de, BusWidth: 5120,
		SMClock: 1980, MemClock: 2619, PowerLimitW: 700, MIG: migH100x80, NVLinks: 18, PCIeGen: 5, BoardPart: "692-2G520-0200-000"},
	"H200": {Name: "NVIDIA H200", MemoryMiB: 143771, ReservedMiB: 606, SMs: 132, CUDACores: 16896,
		ComputeCapability: [2]int{9, 0}, Architecture: archHopper, PCIDevice: 0x233510de, PCISubsystem: 0x18be10de, BusWidth: 6144,
		SMClock: 1980, MemClock: 3201, PowerLimitW: 700, MIG: migNoProfiles, NVLinks: 18, PCIeGen: 5, BoardPart: "692-2G520-0280-000"},
	"L4": {Name: "NVIDIA L4", MemoryMiB: 23034, ReservedMiB: 476, SMs: 58, CUDACores: 7424,
		ComputeCapability: [2]int{8, 9}, Architecture: archAda, PCIDevice: 0x27b810de, PCISubsystem: 0x16ca10de, BusWidth: 192,
		SMClock: 2040, MemClock: 6251, PowerLimitW: 72, PCIeGen: 4, BoardPart: "900-2G193-0000-000"},
	"T4": {Name: "Tesla T4", MemoryMiB: 15360, ReservedMiB: 265, SMs: 40, CUDACores: 2560,
		ComputeCapability: [2]int{7, 5}, Architecture: archTuring, PCIDevice: 0x1eb810de, PCISubsystem: 0x12a210de, BusWidth: 256,
		SMClock: 1590, MemClock: 5001, PowerLimitW: 70, PCIeGen: 3, BoardPart: "900-2G183-0000-001"},
}

// LookupModel finds a model by its name in node files, for example "A100-SXM4-80GB".
func LookupModel(name string) (Model, error) {
	m, ok := models[name]
	if !ok {
		return Model{}, fmt.Errorf("no card model %q; known are %s", name, strings.Join(ModelNames(), ", "))
	}
	return m, nil
}

// ModelNames lists the known models.
func ModelNames() []string {
	var names []string
	for name := range models {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// UsableMiB is what CUDA can hand out of the card's memory.
func (m Model) UsableMiB() uint64 { return m.MemoryMiB - m.ReservedMiB }
