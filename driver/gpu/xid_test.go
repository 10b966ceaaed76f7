package gpu_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"

	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/gpu/gputest"
)

// ward is a scanner over two made-up cards, and a clock.
type ward struct {
	*gpu.Scanner
	t   *testing.T
	lib *gputest.Library
	now time.Time
	dir string
}

func newWard(t *testing.T) *ward {
	w := &ward{t: t, lib: gputest.New(gpus.Multiple(2, gputest.T4)...), now: time.Unix(1e9, 0), dir: t.TempDir()}
	w.lib.Energy = map[int]uint64{0: 500, 1: 500}
	w.restart("boot-1")
	return w
}

// restart begins anew with what the last scanner of the node has kept.
func (w *ward) restart(boot string) {
	w.Scanner = &gpu.Scanner{
		Open:  func() (nvml.Interface, error) { return w.lib, nil },
		Sysfs: os.DirFS(w.dir).(fs.ReadLinkFS), WatchXIDs: true, Benign: gpu.BenignXIDs(),
		Now: func() time.Time { return w.now }, FaultsFile: filepath.Join(w.dir, "faults.json"), BootID: boot,
	}
}

// is checks the faults of the cards by their beginnings; "!" before one is for
// a dead card.
func (w *ward) is(want ...string) {
	w.t.Helper()
	inv, err := w.Scan()
	if err != nil {
		w.t.Fatal(err)
	}
	var got []string
	for _, g := range inv.GPUs {
		fault := g.Fault
		if g.Dead {
			fault = "!" + fault
		}
		if (fault == "") != (g.Clears == "") {
			w.t.Errorf("fault %q ends by %q", fault, g.Clears)
		}
		got = append(got, fault)
	}
	if len(got) != len(want) {
		w.t.Fatalf("faults %q, want %q", got, want)
	}
	for i := range got {
		if !strings.HasPrefix(got[i], want[i]) || (want[i] == "") != (got[i] == "") {
			w.t.Errorf("faults %q, want %q", got, want)
		}
	}
}

func TestErrorsOfProgramsSayNothingOfTheCard(t *testing.T) {
	w := newWard(t)
	w.is("", "")
	w.lib.XID(0, 13)
	w.is("", "")
	w.Judge([]uint64{79}, 0)
	w.lib.XID(0, 79)
	w.lib.XID(1, 13)
	w.is("", "the card reported XID 13")
}

func TestACardThatMayRecoverIsOfferedAgainWhenItWasQuiet(t *testing.T) {
	w := newWard(t)
	w.is("", "")
	w.lib.XID(0, 32)
	w.is("the card reported XID 32", "")
	w.now = w.now.Add(9 * time.Minute)
	w.lib.XID(0, 61) // and it begins anew
	w.is("the card reported XID 61", "")
	w.now = w.now.Add(9 * time.Minute)
	w.is("the card reported XID 61", "")
	w.now = w.now.Add(time.Minute)
	w.is("", "")
	w.Judge(nil, time.Second)
	w.lib.XID(0, 32)
	w.is("the card reported XID 32", "")
	w.now = w.now.Add(time.Second)
	w.is("", "")
}

func TestACardWithAFatalErrorIsOfferedAgainWhenItWasReset(t *testing.T) {
	died := func(t *testing.T) *ward {
		w := newWard(t)
		w.is("", "")
		w.lib.XID(1, 95)
		w.is("", "!the card reported XID 95 (a memory error that was not contained)")
		w.now = w.now.Add(100 * time.Hour)
		w.lib.Energy[1] = 900
		w.lib.XID(1, 32) // no later error makes it less
		w.is("", "!the card reported XID 95")
		return w
	}
	t.Run("it counts its energy from the beginning", func(t *testing.T) {
		w := died(t)
		w.lib.Energy[1] = 20
		w.is("", "")
	})
	t.Run("a restart of this program is no reset", func(t *testing.T) {
		w := died(t)
		w.restart("boot-1")
		w.is("", "!the card reported XID 95")
		w.lib.Energy[1] = 20
		w.is("", "")
		w.restart("boot-1")
		w.is("", "")
	})
	t.Run("a reboot of the node is", func(t *testing.T) {
		w := died(t)
		w.restart("boot-2")
		w.is("", "")
	})
	t.Run("the driver was unloaded", func(t *testing.T) {
		w := died(t)
		w.lib.SystemGetDriverVersionFunc = func() (string, nvml.Return) { return "", nvml.ERROR_DRIVER_NOT_LOADED }
		if _, err := w.Scan(); err == nil {
			t.Fatal("scanned without a driver")
		}
		w.lib.SystemGetDriverVersionFunc = func() (string, nvml.Return) { return gputest.DriverVersion, nvml.SUCCESS }
		w.is("", "")
	})
}

func TestACardThatCannotBeReadAnyMoreIsKeptAsDead(t *testing.T) {
	w := newWard(t)
	w.lib.XID(0, 79)
	w.is("", "")
	by := w.lib.DeviceGetHandleByIndexFunc
	w.lib.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 0 {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		return by(i)
	}
	w.is("!the card cannot be read: no handle: card is lost", "")
	w.is("!the card cannot be read: no handle: card is lost", "")
	w.lib.DeviceGetHandleByIndexFunc = by
	w.is("", "") // it was reset, whatever it had reported
}

// TestAnErrorOfACardThatDoesNotTellItsNameIsNotThatOfTheOthers: one that fell
// off the bus reports it and answers nothing.
func TestAnErrorOfACardThatDoesNotTellItsNameIsNotThatOfTheOthers(t *testing.T) {
	w := newWard(t)
	w.is("", "")
	w.lib.XID(0, 79)
	uuid := w.lib.Card(0).GetUUIDFunc
	w.lib.Card(0).GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
	w.is("!the card cannot be read: no UUID: card is lost", "")
	w.restart("boot-1") // which knows of the card only what was kept
	w.lib.Card(0).GetUUIDFunc = uuid
	w.is("!the card reported XID 79 (it fell off the bus)", "")
}

func TestACardThatWasTakenOutIsGone(t *testing.T) {
	w := newWard(t)
	w.is("", "")
	w.lib.DeviceGetCountFunc = func() (int, nvml.Return) { return 1, nvml.SUCCESS }
	w.is("")
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
