package plugin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gpu/sluice/driver/slicing"
	"github.com/sluice-gpu/sluice/driver/state"
)

// metrics are the driver's own; see docs/user/metrics.md for their meaning.
type metrics struct {
	prepare   *prometheus.HistogramVec
	scanFails prometheus.Counter
	pubFails  prometheus.Counter
	memory    *prometheus.GaugeVec
	refused   prometheus.Gauge
}

func newMetrics(r prometheus.Registerer, look func() (*state.Checkpoint, error)) *metrics {
	m := &metrics{
		prepare: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sluice_driver_prepare_seconds",
			Help:    "Time to prepare the claims of one pod, by result.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}, []string{"result"}),
		scanFails: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_driver_scan_failures_total",
			Help: "Looks at the cards of the node that found something wrong.",
		}),
		pubFails: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_driver_publish_failures_total",
			Help: "Failures to write a ResourceSlice.",
		}),
		memory: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sluice_driver_device_memory_bytes",
			Help: "Memory of the card or MIG device that can be given out.",
		}, []string{"device", "uuid", "product", "group"}),
		refused: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_driver_configuration_refused",
			Help: "1 while the configuration was changed to one that cannot be used; the last good one is in use then.",
		}),
	}
	if r != nil {
		r.MustRegister(m.prepare, m.scanFails, m.pubFails, m.memory, m.refused, preparedClaims{look})
	}
	return m
}

func (m *metrics) prepared(start time.Time, err error) {
	result := "ok"
	if err != nil {
		result = "refused"
	}
	m.prepare.WithLabelValues(result).Observe(time.Since(start).Seconds())
}

func (m *metrics) scanFailed() { m.scanFails.Inc() }

func (m *metrics) configurationRefused(is bool) {
	m.refused.Set(0)
	if is {
		m.refused.Set(1)
	}
}

func (m *metrics) publishFailed() { m.pubFails.Inc() }

func (m *metrics) cards(plan *slicing.Plan) {
	m.memory.Reset()
	for _, c := range plan.Cards {
		for _, i := range c.Instances {
			m.memory.WithLabelValues(i.Device, i.UUID, c.ProductName+" MIG "+i.Profile, c.Group).Set(float64(i.MemoryMi << 20))
		}
		if c.Partitioned() {
			continue
		}
		m.memory.WithLabelValues(c.Device, c.UUID, c.ProductName, c.Group).Set(float64(c.MemoryMi << 20))
	}
}

// preparedClaims tells what is prepared, when it is asked.
type preparedClaims struct {
	look func() (*state.Checkpoint, error)
}

var (
	heldMemory = prometheus.NewDesc("sluice_driver_device_memory_held_bytes", "Memory of the card that prepared shares hold.", []string{"device"}, nil)
	claimCount = prometheus.NewDesc("sluice_driver_prepared_claims", "Claims that are prepared on this node.", nil, nil)
)

// Describe implements prometheus.Collector.
func (p preparedClaims) Describe(ch chan<- *prometheus.Desc) {
	ch <- heldMemory
	ch <- claimCount
}

// Collect implements prometheus.Collector.
func (p preparedClaims) Collect(ch chan<- prometheus.Metric) {
	cp, err := p.look()
	if err != nil {
		return // the next update of the checkpoint reports it
	}
	for _, device := range cp.Devices() {
		memoryMi, _ := cp.Held(device, "")
		ch <- prometheus.MustNewConstMetric(heldMemory, prometheus.GaugeValue, float64(memoryMi<<20), device)
	}
	ch <- prometheus.MustNewConstMetric(claimCount, prometheus.GaugeValue, float64(cp.Len()))
}
