package fit

import (
	"slices"
	"testing"
	"time"
)

// times are how long single runs of a benchmark took.
type times struct {
	b   *testing.B
	all []time.Duration
}

func newTimes(b *testing.B) *times {
	b.ResetTimer()
	return &times{b: b, all: make([]time.Duration, 0, b.N)}
}

func (t *times) time(f func()) {
	began := time.Now()
	f()
	t.all = append(t.all, time.Since(began))
}

func (t *times) report() {
	slices.Sort(t.all)
	at := func(part float64) float64 {
		return float64(t.all[min(len(t.all)-1, int(part*float64(len(t.all))))]) / 1e3
	}
	t.b.ReportMetric(at(0.5), "p50-us")
	t.b.ReportMetric(at(0.99), "p99-us")
	t.b.ReportMetric(0, "ns/op")
}
