package gpu_test

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/gpu/gputest"
)

func scanner(lib nvml.Interface, sysfs fs.FS) *gpu.Scanner {
	return &gpu.Scanner{Open: func() (nvml.Interface, error) { return lib, nil }, Sysfs: sysfs.(fs.ReadLinkFS)}
}

func scan(t *testing.T, lib nvml.Interface, sysfs fs.FS) gpu.Inventory {
	t.Helper()
	inv, err := scanner(lib, sysfs).Scan()
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

func TestACardIsDescribedInFull(t *testing.T) {
	lib := gputest.New(gpus.A100_SXM4_80GB)
	inv := scan(t, lib, fstest.MapFS{})
	want := []gpu.GPU{{
		UUID: gputest.UUID(0), PCIBusID: "0000:10:00.0", NUMANode: -1,
		ProductName: "NVIDIA A100-SXM4-80GB", Brand: "Nvidia", Architecture: "Ampere", ComputeCapability: "8.0",
		DriverVersion: gputest.DriverVersion, CUDAVersion: "12.8",
		MemoryTotal: 81920 << 20, MemoryReserved: gputest.ReservedMi << 20,
		SMCount: 108, MemoryBandwidth: 2039, FP16TFLOPS: 312, ECC: true,
		NVLinkDomain: "nvlink-a0000000",
	}}
	if diff := cmp.Diff(want, inv.GPUs); diff != "" {
		t.Error(diff)
	}
	if got := inv.GPUs[0].UsableMi(); got != 81920-gputest.ReservedMi {
		t.Errorf("%dMi usable", got)
	}
}

func TestMachinesOfEightCardsAreDescribed(t *testing.T) {
	for _, tc := range []struct {
		server       *server.Server
		product      string
		architecture string
		capability   string
		sms          int
		fp16         int64
		memoryMi     int64
	}{
		{dgxa100.New(), "Mock NVIDIA A100-SXM4-40GB", "Ampere", "8.0", 108, 312, 40960},
		{dgxh100.New(), "NVIDIA H100 80GB HBM3", "Hopper", "9.0", 132, 989, 81920},
		{dgxh200.New(), "NVIDIA H200 141GB HBM3e", "Hopper", "9.0", 132, 989, 144384},
		{dgxb200.New(), "NVIDIA B200 180GB HBM3e", "Blackwell", "10.0", 148, 2250, 184320},
	} {
		t.Run(tc.product, func(t *testing.T) {
			inv := scan(t, gputest.Complete(tc.server), fstest.MapFS{})
			if len(inv.GPUs) != 8 || len(inv.Missing) != 0 {
				t.Fatalf("%d cards, missing %v", len(inv.GPUs), inv.Missing)
			}
			ids := map[string]bool{}
			for i, g := range inv.GPUs {
				ids[g.UUID] = true
				if g.PCIBusID != gputest.BusID(i) || g.ProductName != tc.product || g.Architecture != tc.architecture ||
					g.ComputeCapability != tc.capability || g.SMCount != tc.sms || g.FP16TFLOPS != tc.fp16 || !g.ECC || g.MIG {
					t.Errorf("card %d: %+v", i, g)
				}
				if got := g.UsableMi(); got != tc.memoryMi-gputest.ReservedMi {
					t.Errorf("card %d: %dMi usable, want %dMi", i, got, tc.memoryMi-gputest.ReservedMi)
				}
			}
			if len(ids) != 8 {
				t.Errorf("%d identities", len(ids))
			}
		})
	}
}

func TestCardsAreSortedByPCIAddress(t *testing.T) {
	lib := gputest.New(gpus.Multiple(3, gputest.T4)...)
	lib.Devices[0], lib.Devices[2] = lib.Devices[2], lib.Devices[0]
	var got []string
	for _, g := range scan(t, lib, fstest.MapFS{}).GPUs {
		got = append(got, g.PCIBusID)
	}
	if diff := cmp.Diff([]string{gputest.BusID(0), gputest.BusID(1), gputest.BusID(2)}, got); diff != "" {
		t.Error(diff)
	}
}

func TestTopologyComesFromSysfs(t *testing.T) {
	dir := t.TempDir()
	device := dir + "/devices/pci0000:0f/0000:0f:01.0/0000:10:00.0"
	for _, d := range []string{device, dir + "/bus/pci/devices", dir + "/devices/system/node/node0", dir + "/devices/system/node/node1"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(device+"/numa_node", []byte("1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../../devices/pci0000:0f/0000:0f:01.0/0000:10:00.0", dir+"/bus/pci/devices/0000:10:00.0"); err != nil {
		t.Fatal(err)
	}
	cards := scan(t, gputest.New(gputest.T4, gputest.T4), os.DirFS(dir)).GPUs
	if cards[0].PCIeRoot != "pci0000:0f" || cards[0].NUMANode != 1 {
		t.Errorf("card with sysfs entry: root %q, NUMA node %d", cards[0].PCIeRoot, cards[0].NUMANode)
	}
	if cards[1].PCIeRoot != "" || cards[1].NUMANode != -1 {
		t.Errorf("card without: root %q, NUMA node %d", cards[1].PCIeRoot, cards[1].NUMANode)
	}
}

func TestAMachineWithOneNUMANodeHasAllCardsOnIt(t *testing.T) {
	sys := fstest.MapFS{"devices/system/node/node0/cpulist": {Data: []byte("0-7")}}
	if got := scan(t, gputest.New(gputest.T4), sys).GPUs[0].NUMANode; got != 0 {
		t.Errorf("NUMA node %d", got)
	}
}

func TestNUMANodeFromTheDriverWhereSysfsHasNone(t *testing.T) {
	lib := gputest.New(gputest.T4, gputest.T4)
	for i, mask := range []uint{1 << 3, 3} {
		lib.Card(i).GetMemoryAffinityFunc = func(int, nvml.AffinityScope) ([]uint, nvml.Return) { return []uint{mask}, nvml.SUCCESS }
	}
	cards := scan(t, lib, fstest.MapFS{}).GPUs
	if cards[0].NUMANode != 3 || cards[1].NUMANode != -1 {
		t.Errorf("NUMA nodes %d and %d, want 3 and, for two nodes at once, -1", cards[0].NUMANode, cards[1].NUMANode)
	}
}

// link joins cards a and b, or a to a switch if b is negative.
func link(lib *gputest.Library, a, b int) {
	d := lib.Card(a)
	state, peer, kind := d.GetNvLinkStateFunc, d.GetNvLinkRemotePciInfoFunc, d.GetNvLinkRemoteDeviceTypeFunc
	n := 0
	for {
		if _, ret := state(n); ret != nvml.SUCCESS {
			break
		}
		n++
	}
	d.GetNvLinkStateFunc = func(i int) (nvml.EnableState, nvml.Return) {
		if i == n {
			return nvml.FEATURE_ENABLED, nvml.SUCCESS
		}
		return state(i)
	}
	d.GetNvLinkRemotePciInfoFunc = func(i int) (nvml.PciInfo, nvml.Return) {
		if i != n {
			return peer(i)
		}
		return lib.Card(b).GetPciInfo()
	}
	d.GetNvLinkRemoteDeviceTypeFunc = func(i int) (nvml.IntNvLinkDeviceType, nvml.Return) {
		switch {
		case i != n:
			return kind(i)
		case b < 0:
			return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
		}
		return nvml.NVLINK_DEVICE_TYPE_GPU, nvml.SUCCESS
	}
}

func domains(inv gpu.Inventory) []string {
	var out []string
	for _, g := range inv.GPUs {
		out = append(out, strings.TrimPrefix(g.NVLinkDomain, "nvlink-a000000"))
	}
	return out
}

func TestCardsThatReachOneAnotherShareAnNVLinkDomain(t *testing.T) {
	pairs := gputest.New(gpus.Multiple(5, gpus.A100_SXM4_80GB)...)
	link(pairs, 0, 1)
	link(pairs, 1, 0)
	link(pairs, 2, 3)
	link(pairs, 3, 2)
	if diff := cmp.Diff([]string{"0", "0", "2", "2", "4"}, domains(scan(t, pairs, fstest.MapFS{}))); diff != "" {
		t.Errorf("two pairs and a single card:\n%s", diff)
	}
	ring := gputest.New(gpus.Multiple(4, gpus.A100_SXM4_80GB)...)
	for i := range 4 {
		link(ring, i, (i+1)%4)
	}
	if diff := cmp.Diff([]string{"0", "0", "0", "0"}, domains(scan(t, ring, fstest.MapFS{}))); diff != "" {
		t.Errorf("a ring:\n%s", diff)
	}
	switched := gputest.New(gpus.Multiple(4, gpus.A100_SXM4_80GB)...)
	for i := range 3 {
		link(switched, i+1, -1)
	}
	if diff := cmp.Diff([]string{"0", "1", "1", "1"}, domains(scan(t, switched, fstest.MapFS{}))); diff != "" {
		t.Errorf("three on a switch:\n%s", diff)
	}
}

func TestACardThatCannotBeReadIsNamedAndTheOthersStay(t *testing.T) {
	lib := gputest.New(gputest.T4, gputest.T4, gputest.T4)
	lib.Card(1).GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
	inv := scan(t, lib, fstest.MapFS{})
	if len(inv.GPUs) != 2 || len(inv.Missing) != 1 || !strings.Contains(inv.Missing[0], "card 1 of 3") || !strings.Contains(inv.Missing[0], "lost") {
		t.Errorf("got %d cards, missing %q", len(inv.GPUs), inv.Missing)
	}
}

func TestADriverThatComesLaterIsFound(t *testing.T) {
	lib := gputest.New(gputest.T4)
	var opened []string
	s := scanner(lib, fstest.MapFS{})
	missing := errors.New("no library")
	s.Open = func() (nvml.Interface, error) {
		opened = append(opened, "")
		if len(opened) == 1 {
			return nil, missing
		}
		return lib, nil
	}
	if _, err := s.Scan(); !errors.Is(err, missing) {
		t.Fatalf("first scan: %v", err)
	}
	lib.InitFunc = func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }
	_, err := s.Scan()
	if !errors.Is(err, gpu.ErrUnavailable) || !strings.Contains(err.Error(), "driver not loaded") {
		t.Fatalf("second scan: %v", err)
	}
	lib.InitFunc = func() nvml.Return { return nvml.SUCCESS }
	if inv, err := s.Scan(); err != nil || len(inv.GPUs) != 1 || s.Library() == nil {
		t.Fatalf("third scan: %v, %v", inv, err)
	}
	for name, fail := range map[string]func(){
		"unloaded under open handles": func() { lib.InitFunc = func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED } },
		"broken":                      func() { lib.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN } },
	} {
		count := lib.DeviceGetCountFunc
		fail()
		if _, err := s.Scan(); !errors.Is(err, gpu.ErrUnavailable) {
			t.Fatalf("scan of a driver that is %s: %v", name, err)
		}
		if s.Library() != nil {
			t.Errorf("%s: the library is kept open", name)
		}
		lib.InitFunc = func() nvml.Return { return nvml.SUCCESS }
		lib.DeviceGetCountFunc = count
		if inv, err := s.Scan(); err != nil || len(inv.GPUs) != 1 {
			t.Fatalf("scan after it was %s: %v, %v", name, inv, err)
		}
	}
}

func TestAFolderWithoutALibraryIsANodeWithoutADriver(t *testing.T) {
	root := t.TempDir()
	_, err := gpu.NewScanner(root, "/sys").Scan()
	if !errors.Is(err, gpu.ErrUnavailable) || !strings.Contains(err.Error(), root) {
		t.Errorf("got %v", err)
	}
}

func TestAnOldDriverIsNotAskedWhatItDoesNotKnow(t *testing.T) {
	lib := gputest.New(gputest.T4)
	lib.LookupSymbolFunc = func(symbol string) error {
		switch symbol {
		case "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetEccMode", "nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMemoryBusWidth", "nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetNvLinkState":
			return errors.New("no such symbol")
		}
		return nil
	}
	d := lib.Card(0)
	d.GetEccModeFunc = nil
	d.GetMemoryInfo_v2Func, d.GetNumGpuCoresFunc, d.GetMemoryBusWidthFunc, d.GetMemoryAffinityFunc, d.GetNvLinkStateFunc = nil, nil, nil, nil, nil
	g := scan(t, lib, fstest.MapFS{}).GPUs[0]
	if g.MemoryTotal != 15360<<20 || g.SMCount != 0 || g.MemoryBandwidth != 0 {
		t.Errorf("got %+v", g)
	}
}
