package gpu

import (
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
)

// reader turns one NVML handle into a GPU.
type reader struct {
	lib    nvml.Interface
	sysfs  fs.ReadLinkFS
	driver string
	cuda   string
	faults xids // what is known of MIG devices
}

func (r *reader) versions() error {
	var ret nvml.Return
	if r.driver, ret = r.lib.SystemGetDriverVersion(); ret != nvml.SUCCESS {
		return fmt.Errorf("NVML does not tell the driver version: %s: %w", describe(ret), ErrUnavailable)
	}
	if v, ret := r.lib.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
		r.cuda = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	return nil
}

// has tells whether the loaded library exports symbol. go-nvml binds lazily:
// calling what an older driver does not have ends the process.
func (r *reader) has(symbol string) bool {
	return r.lib.Extensions().LookupSymbol(symbol) == nil
}

func (r *reader) card(index int, dev nvml.Device) (GPU, error) {
	g := GPU{Index: index, DriverVersion: r.driver, CUDAVersion: r.cuda, NUMANode: -1}
	var ret nvml.Return

	// Without these a card cannot be named, opened or sized.
	if g.UUID, ret = dev.GetUUID(); ret != nvml.SUCCESS {
		return g, fmt.Errorf("no UUID: %s", describe(ret))
	}
	if len(g.HexID()) < 8 {
		return g, fmt.Errorf("UUID %q is not of the form GPU-xxxxxxxx-", g.UUID)
	}
	pci, ret := dev.GetPciInfo()
	if ret != nvml.SUCCESS {
		return g, fmt.Errorf("%s: no PCI address: %s", g.UUID, describe(ret))
	}
	g.PCIBusID = busID(pci)
	if g.Minor, ret = dev.GetMinorNumber(); ret != nvml.SUCCESS {
		return g, fmt.Errorf("%s: no minor number: %s", g.UUID, describe(ret))
	}
	if err := r.memory(&g, dev); err != nil {
		return g, fmt.Errorf("%s: %w", g.UUID, err)
	}

	if name, ret := dev.GetName(); ret == nvml.SUCCESS {
		g.ProductName = name
	}
	if b, ret := dev.GetBrand(); ret == nvml.SUCCESS {
		g.Brand = brands[b]
	}
	if a, ret := dev.GetArchitecture(); ret == nvml.SUCCESS {
		g.Architecture = architectures[a]
	}
	major, minor, ret := dev.GetCudaComputeCapability()
	if ret == nvml.SUCCESS {
		g.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
	}
	if g.MIG = isPartitioned(dev); g.MIG {
		var err error
		if g.Partition, err = r.partition(dev); err != nil {
			return g, fmt.Errorf("%s: MIG: %w", g.UUID, err)
		}
	}
	if r.has("nvmlDeviceGetEccMode") {
		if mode, _, ret := dev.GetEccMode(); ret == nvml.SUCCESS {
			g.ECC = mode == nvml.FEATURE_ENABLED
		}
	}
	if r.has("nvmlDeviceGetNumGpuCores") {
		if cores, ret := dev.GetNumGpuCores(); ret == nvml.SUCCESS {
			g.SMCount = cores / coresPerSM(major, minor)
		}
	}
	if r.has("nvmlDeviceGetMemoryBusWidth") {
		width, wret := dev.GetMemoryBusWidth()
		clock, cret := dev.GetMaxClockInfo(nvml.CLOCK_MEM)
		if wret == nvml.SUCCESS && cret == nvml.SUCCESS {
			// Two transfers a clock, eight bits a byte.
			g.MemoryBandwidth = int64(width) * int64(clock) * 2 / 8 / 1000
		}
	}
	g.FP16TFLOPS = fp16TFLOPS(g.ProductName)
	r.topology(&g, dev)
	return g, nil
}

func (r *reader) memory(g *GPU, dev nvml.Device) error {
	if r.has("nvmlDeviceGetMemoryInfo_v2") {
		if m, ret := dev.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
			g.MemoryTotal, g.MemoryReserved = m.Total, m.Reserved
			return nil
		}
	}
	m, ret := dev.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("no memory size: %s", describe(ret))
	}
	g.MemoryTotal = m.Total
	return nil
}

// topology asks sysfs by the same helpers that other DRA drivers use, so that
// a network card and a GPU on one root complex really say the same string.
func (r *reader) topology(g *GPU, dev nvml.Device) {
	from := deviceattribute.WithFS(r.sysfs)
	if a, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(g.PCIBusID, from); err == nil && a.Value.StringValue != nil {
		g.PCIeRoot = *a.Value.StringValue
	}
	a, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(g.PCIBusID, deviceattribute.ScalarAttribute, from)
	switch {
	case err == nil && a.Value.IntValue != nil:
		g.NUMANode = int(*a.Value.IntValue)
	case r.oneNUMANode():
		// The kernel says -1 on machines where there is nothing to choose.
		g.NUMANode = 0
	case r.has("nvmlDeviceGetMemoryAffinity"):
		if nodes, ret := dev.GetMemoryAffinity(1, nvml.AFFINITY_SCOPE_NODE); ret == nvml.SUCCESS && len(nodes) == 1 {
			g.NUMANode = onlyBit(nodes[0])
		}
	}
}

// oneNUMANode tells that sysfs knows the machine's nodes and there is one.
func (r *reader) oneNUMANode() bool {
	nodes, err := fs.Glob(r.sysfs, path.Join("devices", "system", "node", "node[0-9]*"))
	return err == nil && len(nodes) == 1
}

// onlyBit returns the number of the single bit that is set, else -1.
func onlyBit(mask uint) int {
	if mask == 0 || mask&(mask-1) != 0 {
		return -1
	}
	n := 0
	for mask > 1 {
		mask >>= 1
		n++
	}
	return n
}

// busID is the kernel's form of an NVML address: four digits of domain where
// NVML writes eight, lower case. PciInfo carries it twice; the string is the
// one that also names the function.
func busID(p nvml.PciInfo) string {
	var b strings.Builder
	for _, c := range p.BusId {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	s := strings.ToLower(b.String())
	if domain, rest, ok := strings.Cut(s, ":"); ok && strings.Count(rest, ":") == 1 {
		for len(domain) > 4 && domain[0] == '0' {
			domain = domain[1:]
		}
		return domain + ":" + rest
	}
	return fmt.Sprintf("%04x:%02x:%02x.0", p.Domain, p.Bus, p.Device)
}
