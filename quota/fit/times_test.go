package fit

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// times are how long single runs of a benchmark took: by the clock, which counts
// also what other programs and the garbage collector do meanwhile, and of the
// processor's time, which does not.
type times struct {
	b          *testing.B
	clock, own []time.Duration
}

func newTimes(b *testing.B) *times {
	runtime.LockOSThread()
	b.Cleanup(runtime.UnlockOSThread)
	b.ResetTimer()
	return &times{b: b, clock: make([]time.Duration, 0, b.N), own: make([]time.Duration, 0, b.N)}
}

// processor is the time that this thread has had of a processor.
func processor() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

func (t *times) time(f func()) {
	began, own := time.Now(), processor()
	f()
	t.own = append(t.own, processor()-own)
	t.clock = append(t.clock, time.Since(began))
}

// decision takes the time of placing a workload, and says how often it found no room.
func (t *times) decision(s *State, w *engine.Workload, a engine.Assignment) (none int) {
	t.time(func() {
		p, no := s.Place(w, a, nil)
		if no != nil {
			none = 1
			return
		}
		s.Take(w.ID, p)
	})
	return none
}

func (t *times) report() {
	at := func(all []time.Duration, part float64) float64 {
		slices.Sort(all)
		return float64(all[min(len(all)-1, int(part*float64(len(all))))]) / 1e3
	}
	t.b.ReportMetric(at(t.clock, 0.5), "p50-us")
	t.b.ReportMetric(at(t.clock, 0.99), "p99-us")
	t.b.ReportMetric(at(t.own, 0.99), "p99_cpu-us")
	t.b.ReportMetric(0, "ns/op")
}
