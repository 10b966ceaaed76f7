// Package gpu finds the graphics cards of this node and describes them.
//
// It decides nothing: it turns what NVML, sysfs and a small table of published
// figures say into plain values, one GPU a physical card, sorted by PCI
// address. It never names a Kubernetes device and never knows how a card is
// cut; package slicing does that. The kubelet plugin calls it at start and
// every few seconds afterwards.
package gpu

import (
	"cmp"
	"slices"
	"strings"
)

// Mi is the unit in which card memory is published.
const Mi = 1 << 20

// GPU is one physical card as the driver and the kernel describe it.
type GPU struct {
	// UUID identifies the card for its whole life ("GPU-5c2f1a90-...").
	UUID string
	// Index is the card's place in NVML's enumeration. It changes when cards
	// come and go and identifies nothing.
	Index int
	// Minor is the N of /dev/nvidiaN.
	Minor int

	// PCIBusID is the lower-case extended form dddd:bb:dd.f.
	PCIBusID string
	// PCIeRoot is the root complex ("pci0000:00"), empty where sysfs does not
	// know the card.
	PCIeRoot string
	// NUMANode is the NUMA node the card hangs on, -1 where nobody knows.
	NUMANode int

	ProductName       string
	Brand             string
	Architecture      string
	ComputeCapability string // "8.0"
	DriverVersion     string // "570.86.15"
	CUDAVersion       string // "12.8", the highest the driver supports

	// MemoryTotal and MemoryReserved are bytes as NVML reports them;
	// programs can hold what is left between the two.
	MemoryTotal    uint64
	MemoryReserved uint64

	// Ratings, 0 where unknown.
	SMCount         int   // streaming multiprocessors
	MemoryBandwidth int64 // GB/s, peak
	FP16TFLOPS      int64 // dense tensor throughput as published by the maker

	// Fault says what is wrong with the card; empty if nothing is known. Dead
	// tells that programs on it cannot go on, Clears what ends the fault.
	Fault  string
	Dead   bool
	Clears string
	// MIG tells that the card is in MIG mode, in which whole-card shares
	// cannot run on it.
	MIG bool
	// Partition is how a card in MIG mode is cut; nil for others.
	Partition *Partition
	// ECC tells that the card corrects errors of its memory.
	ECC bool
	// NVLinkDomain is equal for cards that reach one another over NVLink.
	// A card without such a link is alone in a domain of its own.
	NVLinkDomain string
}

// UsableMi is the memory, in whole Mi, that programs on the card can allocate
// in total.
func (g GPU) UsableMi() int64 {
	if g.MemoryReserved >= g.MemoryTotal {
		return 0
	}
	return int64((g.MemoryTotal - g.MemoryReserved) / Mi)
}

// HexID is the UUID's 32 hexadecimal digits without prefix and dashes, the
// material of device names.
func (g GPU) HexID() string {
	id := strings.ToLower(g.UUID)
	id = strings.TrimPrefix(id, "gpu-")
	return strings.ReplaceAll(id, "-", "")
}

// SortByPCI orders cards by PCI address, then by UUID. It is the order in
// which they are published, whatever order the driver enumerates them in.
func SortByPCI(gpus []GPU) {
	slices.SortFunc(gpus, func(a, b GPU) int {
		return cmp.Or(cmp.Compare(a.PCIBusID, b.PCIBusID), cmp.Compare(a.UUID, b.UUID))
	})
}
