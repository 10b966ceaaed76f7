package gpu_test

import (
	"io/fs"
	"os"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"

	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/gpu/gputest"
)

func TestAnXIDMakesItsCardFaultyUntilTheDriverIsLoadedAnew(t *testing.T) {
	lib := gputest.New(gpus.Multiple(2, gputest.T4)...)
	s := &gpu.Scanner{
		Open:  func() (nvml.Interface, error) { return lib, nil },
		Sysfs: os.DirFS(t.TempDir()).(fs.ReadLinkFS), WatchXIDs: true, Benign: gpu.BenignXIDs(),
	}
	faults := func(want0, want1 string) {
		t.Helper()
		inv, err := s.Scan()
		if err != nil || len(inv.GPUs) != 2 {
			t.Fatalf("%+v, %v", inv, err)
		}
		if inv.GPUs[0].Fault != want0 || inv.GPUs[1].Fault != want1 {
			t.Errorf("faults %q and %q, want %q and %q", inv.GPUs[0].Fault, inv.GPUs[1].Fault, want0, want1)
		}
	}
	faults("", "")
	lib.XID(0, 13) // a fault of the program
	lib.XID(1, 79)
	lib.XID(1, 48)
	faults("", "the card reported XID 79")
	faults("", "the card reported XID 79")
	s.Close()
	faults("", "")
}

func TestTheUseOfCardsIsReadWhileTheLibraryIsOpen(t *testing.T) {
	lib := gputest.New(gputest.T4)
	d := lib.Card(0)
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 300 << 20}, {Pid: 8, UsedGpuMemory: ^uint64(0)}}, nvml.SUCCESS
	}
	d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 40}, nvml.SUCCESS }
	d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 66500, nvml.SUCCESS }
	s := &gpu.Scanner{Open: func() (nvml.Interface, error) { return lib, nil }, Sysfs: os.DirFS(t.TempDir()).(fs.ReadLinkFS)}
	if use, err := s.Use(); err != nil || len(use) != 0 {
		t.Fatalf("before the first scan: %+v, %v", use, err)
	}
	if _, err := s.Scan(); err != nil {
		t.Fatal(err)
	}
	use, err := s.Use()
	if err != nil || len(use) != 1 {
		t.Fatalf("%+v, %v", use, err)
	}
	u := use[0]
	if len(u.Processes) != 1 || u.Processes[0] != (gpu.ProcessUse{PID: 7, Memory: 300 << 20}) {
		t.Errorf("processes %+v: one of which nothing is known is none", u.Processes)
	}
	if u.UUID != gputest.UUID(0) || u.Model != "Tesla T4, driver "+gputest.DriverVersion || u.Utilization != 40 || u.Temperature != -1 || u.Power != 66.5 {
		t.Errorf("got %+v", u)
	}
}
