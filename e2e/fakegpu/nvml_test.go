package fakegpu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// openNVML opens the node's library in this process as a driver would.
func openNVML(t *testing.T, in *Installed) nvml.Interface {
	t.Helper()
	t.Setenv("FAKEGPU_DIR", in.StateDir)
	t.Setenv("FAKEGPU_DEV", in.DevDir())
	lib := nvml.New(nvml.WithLibraryPath(in.NVML()))
	if ret := lib.Init(); ret != nvml.SUCCESS {
		t.Fatalf("Init: %v", ret)
	}
	t.Cleanup(func() { lib.Shutdown() })
	return lib
}

func handle(t *testing.T, lib nvml.Interface, index int) nvml.Device {
	t.Helper()
	d, ret := lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		t.Fatalf("DeviceGetHandleByIndex(%d): %v", index, ret)
	}
	return d
}

func TestNVMLTellsEveryModelAsItIs(t *testing.T) {
	n := Node{Name: "node-1"}
	for _, name := range ModelNames() {
		n.Cards = append(n.Cards, Card{Model: name})
	}
	in := install(t, n)
	lib := openNVML(t, in)
	if v, _ := lib.SystemGetDriverVersion(); v != DefaultDriverVersion {
		t.Errorf("driver version %q", v)
	}
	if v, _ := lib.SystemGetCudaDriverVersion(); v != 13000 {
		t.Errorf("CUDA version %d", v)
	}
	cards, err := n.CardInfos()
	if err != nil {
		t.Fatal(err)
	}
	if count, _ := lib.DeviceGetCount(); count != len(cards) {
		t.Fatalf("%d devices, want %d", count, len(cards))
	}
	for i, c := range cards {
		t.Run(n.Cards[i].Model, func(t *testing.T) {
			d := handle(t, lib, i)
			type facts struct {
				Name, UUID, Serial, Bus   string
				Minor, CCMajor, CCMinor   int
				Cores                     int
				BusWidth, SMClock, MemClk uint32
				Arch                      nvml.DeviceArchitecture
				Brand                     nvml.BrandType
				Total, Reserved, Free     uint64
				V1Total, V1Used           uint64
				MigReturn                 nvml.Return
				ByUUID, ByPCI, ByShortBus bool
			}
			var got facts
			got.Name, _ = d.GetName()
			got.UUID, _ = d.GetUUID()
			got.Serial, _ = d.GetSerial()
			got.Minor, _ = d.GetMinorNumber()
			got.CCMajor, got.CCMinor, _ = d.GetCudaComputeCapability()
			got.Cores, _ = d.GetNumGpuCores()
			got.BusWidth, _ = d.GetMemoryBusWidth()
			got.SMClock, _ = d.GetMaxClockInfo(nvml.CLOCK_SM)
			got.MemClk, _ = d.GetMaxClockInfo(nvml.CLOCK_MEM)
			got.Arch, _ = d.GetArchitecture()
			got.Brand, _ = d.GetBrand()
			pci, _ := d.GetPciInfo()
			got.Bus = cString(pci.BusId[:])
			v2, ret := d.GetMemoryInfo_v2()
			if ret != nvml.SUCCESS {
				t.Errorf("GetMemoryInfo_v2: %v", ret)
			}
			got.Total, got.Reserved, got.Free = v2.Total, v2.Reserved, v2.Free
			v1, _ := d.GetMemoryInfo()
			got.V1Total, got.V1Used = v1.Total, v1.Used
			_, _, got.MigReturn = d.GetMigMode()
			byUUID, _ := lib.DeviceGetHandleByUUID(c.UUID)
			byPCI, _ := lib.DeviceGetHandleByPciBusId(strings.ToLower(c.PCI))
			byShort, _ := lib.DeviceGetHandleByPciBusId(c.PCI[4:])
			got.ByUUID, got.ByPCI, got.ByShortBus = byUUID == d, byPCI == d, byShort == d

			want := facts{
				Name: c.Name, UUID: c.UUID, Serial: c.Serial, Bus: c.PCI, Minor: i,
				CCMajor: c.ComputeCapability[0], CCMinor: c.ComputeCapability[1], Cores: c.CUDACores,
				BusWidth: uint32(c.BusWidth), SMClock: uint32(c.SMClock), MemClk: uint32(c.MemClock),
				Arch: nvml.DeviceArchitecture(c.Architecture), Brand: nvml.BRAND_NVIDIA,
				Total: c.MemoryMiB << 20, Reserved: c.ReservedMiB << 20, Free: c.UsableMiB() << 20,
				V1Total: c.MemoryMiB << 20, V1Used: c.ReservedMiB << 20,
				ByUUID: true, ByPCI: true, ByShortBus: true,
			}
			if c.MIG == migNone {
				want.MigReturn = nvml.ERROR_NOT_SUPPORTED
			}
			if got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func cString[T int8 | uint8](b []T) string {
	var out []byte
	for _, c := range b {
		if c == 0 {
			break
		}
		out = append(out, byte(c))
	}
	return string(out)
}

func TestNVMLSeesProcessesByThePIDOfTheReader(t *testing.T) {
	in := install(t, Node{Name: "node-1", Cards: []Card{{Model: "T4", Count: 2}}})
	lib := openNVML(t, in)
	plain := hold(t, probeCommand(in, "alloc:1Gi"))
	// The second one lives in a pid namespace of its own, as in a container.
	inside := probeCommand(in, "--device", "0", "alloc:2Gi")
	inside.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	contained := hold(t, inside)
	hold(t, probeCommand(in, "--device", "1", "alloc:3Gi"))

	got := map[uint32]uint64{}
	procs, ret := handle(t, lib, 0).GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	for _, p := range procs {
		got[p.Pid] = p.UsedGpuMemory
	}
	want := map[uint32]uint64{uint32(plain.cmd.Process.Pid): gib, uint32(contained.cmd.Process.Pid): 2 * gib}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("processes of card 0: %v, want %v", got, want)
	}
	for _, p := range usage(t, in)[0].Processes {
		if p.PID == contained.cmd.Process.Pid && p.OwnPID != 1 {
			t.Errorf("the contained process is %d in its own namespace", p.OwnPID)
		}
	}
	// Seen from within, the others are not there.
	smi := exec.Command(filepath.Join(in.DriverRoot, "usr/bin/nvidia-smi"))
	smi.Env = in.Env()
	smi.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	out, err := smi.Output()
	if err != nil {
		t.Fatal(err)
	}
	if regexp.MustCompile(`\d+ +\d+ .*cudaprobe`).Match(out) || !strings.Contains(string(out), "3072MiB /  15360MiB") {
		t.Errorf("nvidia-smi in a pid namespace of its own printed\n%s", out)
	}
}

func TestNVMLMeasuresUtilisation(t *testing.T) {
	in := install(t, oneCard("T4"))
	lib := openNVML(t, in)
	d := handle(t, lib, 0)
	if u, ret := d.GetUtilizationRates(); ret != nvml.SUCCESS || u.Gpu != 0 {
		t.Fatalf("an idle card is %d%% busy (%v)", u.Gpu, ret)
	}
	if _, ret := d.GetProcessUtilization(0); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("an idle card has samples of processes: %v", ret)
	}
	since := uint64(time.Now().UnixMicro())
	a, b := probeCommand(in, "busy:1ms:60s"), probeCommand(in, "busy:3ms:60s")
	for _, cmd := range []*exec.Cmd{a, b} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
		defer cmd.Process.Kill()
	}
	var samples []nvml.ProcessUtilizationSample
	eventually(t, "two processes share the card in halves for a whole period", func() bool {
		samples, _ = d.GetProcessUtilization(0)
		u, _ := d.GetUtilizationRates()
		return len(samples) == 2 && samples[0].SmUtil >= 45 && samples[1].SmUtil >= 45 && u.Gpu >= 99
	})
	for _, s := range samples {
		if s.Pid != uint32(a.Process.Pid) && s.Pid != uint32(b.Process.Pid) {
			t.Errorf("sample of process %d", s.Pid)
		}
		if s.SmUtil > 55 || s.TimeStamp < since || s.TimeStamp > uint64(time.Now().UnixMicro()) {
			t.Errorf("process %d: %d%% at %d", s.Pid, s.SmUtil, s.TimeStamp)
		}
	}
	if _, ret := d.GetProcessUtilization(uint64(time.Now().Add(time.Second).UnixMicro())); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("samples newer than the future: %v", ret)
	}
}

func TestFaultsReachEveryLibrary(t *testing.T) {
	in := install(t, Node{Name: "node-1", Cards: []Card{{Model: "A100-SXM4-80GB", Count: 2}}})
	lib := openNVML(t, in)
	d0, d1 := handle(t, lib, 0), handle(t, lib, 1)
	inject := func(f ...Fault) {
		t.Helper()
		if err := in.Inject(f...); err != nil {
			t.Fatal(err)
		}
	}
	inject(XID(0, 31)) // before anybody registered: over
	set, _ := lib.EventSetCreate()
	defer set.Free()
	for _, d := range []nvml.Device{d0, d1} {
		if ret := d.RegisterEvents(nvml.EventTypeXidCriticalError|nvml.EventTypeDoubleBitEccError, set); ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
	}
	if _, ret := set.Wait(30); ret != nvml.ERROR_TIMEOUT {
		t.Errorf("an event of before: %v", ret)
	}
	go func() {
		time.Sleep(50 * time.Millisecond)
		in.Inject(XID(1, 79), ECC(0, true, 2))
	}()
	var told []string
	for range 2 {
		e, ret := set.Wait(2000)
		if ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
		uuid, _ := e.Device.GetUUID()
		told = append(told, fmt.Sprintf("%s %d %d", uuid, e.EventType, e.EventData))
	}
	cards, _ := in.Node.CardInfos()
	want := []string{fmt.Sprintf("%s %d 0", cards[0].UUID, nvml.EventTypeDoubleBitEccError), fmt.Sprintf("%s %d 79", cards[1].UUID, nvml.EventTypeXidCriticalError)}
	slices.Sort(told)
	slices.Sort(want)
	if !slices.Equal(told, want) {
		t.Errorf("events %q, want %q", told, want)
	}
	if n, _ := d0.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); n != 2 {
		t.Errorf("%d uncorrected errors", n)
	}

	inject(Lost(1), Temperature(0, 88))
	if _, ret := d1.GetName(); ret != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("name of a lost card: %v", ret)
	}
	if _, ret := set.Wait(100); ret != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("waiting with a lost card: %v", ret)
	}
	if c, _ := d0.GetTemperature(nvml.TEMPERATURE_GPU); c != 88 {
		t.Errorf("temperature %d", c)
	}
	probe(t, in, "init=DEVICE_UNAVAILABLE")
	if err := in.Repair(); err != nil {
		t.Fatal(err)
	}
	probe(t, in, "init=SUCCESS")
	if _, ret := d1.GetName(); ret != nvml.SUCCESS {
		t.Errorf("name of a repaired card: %v", ret)
	}
	if _, ret := set.Wait(30); ret != nvml.ERROR_TIMEOUT {
		t.Errorf("after the repair an event is told again: %v", ret)
	}

	inject(Unload())
	lib.Shutdown()
	if ret := lib.Init(); ret != nvml.ERROR_DRIVER_NOT_LOADED {
		t.Errorf("Init without a driver: %v", ret)
	}
	probe(t, in, "init=NO_DEVICE")
	in.Repair()
	if ret := lib.Init(); ret != nvml.SUCCESS {
		t.Errorf("Init with the driver back: %v", ret)
	}
}

func TestCardThatBreaksUnderAProgramEndsItsCalls(t *testing.T) {
	for result, fault := range map[string]Fault{"UNKNOWN": Lost(0), "ECC_UNCORRECTABLE": ECC(0, true, 1)} {
		in := install(t, oneCard("T4"))
		cmd := probeCommand(in, "alloc:1Gi=SUCCESS", "launch:300ms="+result, "alloc:1Gi="+result)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the kernel is queued", func() bool {
			p := usage(t, in)[0].Processes
			return len(p) == 1 && p[0].Queued > 0
		})
		if err := in.Inject(fault); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", fault, err)
		}
	}
}

func TestCardsWithoutDeviceNodesAreInvisible(t *testing.T) {
	in := install(t, Node{Name: "node-1", Cards: []Card{{Model: "T4", Count: 3}}})
	os.Remove(filepath.Join(in.DevDir(), "nvidia1"))
	lib := openNVML(t, in)
	if n, _ := lib.DeviceGetCount(); n != 2 {
		t.Errorf("%d devices", n)
	}
	if minor, _ := handle(t, lib, 1).GetMinorNumber(); minor != 2 {
		t.Errorf("the second device has minor %d", minor)
	}
	if s := probe(t, in, "info")[0]; s.Devices != 2 {
		t.Errorf("CUDA sees %d devices", s.Devices)
	}
	os.Remove(filepath.Join(in.DevDir(), "nvidiactl"))
	lib.Shutdown()
	if ret := lib.Init(); ret != nvml.ERROR_DRIVER_NOT_LOADED {
		t.Errorf("Init without nvidiactl: %v", ret)
	}
	lib = nil
	probe(t, in, "init=NO_DEVICE")
}

func TestNVLinkLeadsToPeersAndSwitches(t *testing.T) {
	in := install(t, Node{Name: "node-1", Cards: []Card{
		{Model: "A100-PCIE-40GB", NVLink: []int{1, 1}}, {Model: "A100-PCIE-40GB", NVLink: []int{0, 0}}, {Model: "H100-SXM5-80GB"},
	}})
	lib := openNVML(t, in)
	d := handle(t, lib, 0)
	if s, ret := d.GetNvLinkState(1); ret != nvml.SUCCESS || s != nvml.FEATURE_ENABLED {
		t.Errorf("link 1: %v, %v", s, ret)
	}
	if s, ret := d.GetNvLinkState(2); ret != nvml.SUCCESS || s != nvml.FEATURE_DISABLED {
		t.Errorf("link 2: %v, %v", s, ret)
	}
	cards, _ := in.Node.CardInfos()
	if pci, ret := d.GetNvLinkRemotePciInfo(0); ret != nvml.SUCCESS || cString(pci.BusId[:]) != cards[1].PCI {
		t.Errorf("link 0 leads to %s, %v", cString(pci.BusId[:]), ret)
	}
	if s, _ := lib.DeviceGetP2PStatus(d, handle(t, lib, 1), nvml.P2P_CAPS_INDEX_NVLINK); s != nvml.P2P_STATUS_OK {
		t.Errorf("NVLink between linked cards: %v", s)
	}
	if s, _ := lib.DeviceGetP2PStatus(d, handle(t, lib, 2), nvml.P2P_CAPS_INDEX_NVLINK); s == nvml.P2P_STATUS_OK {
		t.Errorf("NVLink between cards that are not linked")
	}
	if pci, ret := handle(t, lib, 2).GetNvLinkRemotePciInfo(17); ret != nvml.SUCCESS || pci.PciDeviceId>>16 != 0x1af1 {
		t.Errorf("a link to a switch leads to device %#x, %v", pci.PciDeviceId, ret)
	}
}

func TestUpgradeOfTheDriverKeepsWhatRuns(t *testing.T) {
	in := install(t, oneCard("T4"))
	h := hold(t, probeCommand(in, "alloc:1Gi"))
	if err := in.Upgrade("590.11.22"); err != nil {
		t.Fatal(err)
	}
	lib := openNVML(t, in)
	if v, _ := lib.SystemGetDriverVersion(); v != "590.11.22" {
		t.Errorf("driver version %q", v)
	}
	if m, _ := handle(t, lib, 0).GetMemoryInfo_v2(); m.Used != gib {
		t.Errorf("%d bytes are in use", m.Used)
	}
	files, _ := filepath.Glob(filepath.Join(in.LibDir(), "*.so.*.*.*"))
	for _, f := range files {
		if !strings.HasSuffix(f, ".so.590.11.22") {
			t.Errorf("%s is left of the old driver", f)
		}
	}
	h.kill()
	probe(t, in, "alloc:14Gi=SUCCESS")
}
