package monitor

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// The labels of everything that is told of a share. Several pods or containers
// that use one share are named together, with commas.
var shareLabels = []string{"namespace", "pod", "container", "claim", "device", "share"}

func shareMetric(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("sluice_share_"+name, help, shareLabels, nil)
}

func cardMetric(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("sluice_card_"+name, help, []string{"uuid", "model"}, nil)
}

var (
	shareUsed     = shareMetric("memory_used_bytes", "Card memory that the limiter has charged to the share.")
	shareNVML     = shareMetric("memory_nvml_bytes", "Card memory that the share's processes hold by NVML.")
	shareLimit    = shareMetric("memory_limit_bytes", "Card memory that the share may hold.")
	shareAbove    = shareMetric("memory_above_limit_bytes", "Card memory that the share's processes hold above its limit, by NVML.")
	sharePeak     = shareMetric("memory_peak_bytes", "Most card memory that the share was ever charged at once.")
	shareRefused  = shareMetric("refused_allocations_total", "Allocations that the limiter refused.")
	shareCores    = shareMetric("cores", "Percent of the card's time that the share is guaranteed.")
	shareContexts = shareMetric("contexts", "CUDA contexts that live in the share.")
	shareOverhead = shareMetric("context_overhead_bytes", "Card memory that the share is charged for each context.")

	cardTotal       = cardMetric("memory_total_bytes", "Memory of the card.")
	cardUsed        = cardMetric("memory_used_bytes", "Memory of the card in use by NVML, the driver's own included.")
	cardAllocated   = cardMetric("memory_allocated_bytes", "Memory of the card that prepared shares hold.")
	cardCores       = cardMetric("cores_allocated", "Percent of the card's time that prepared shares are guaranteed.")
	cardForeign     = cardMetric("foreign_processes", "Processes on the card that use no share of it.")
	cardUtilization = cardMetric("utilization_percent", "Percent of the time in which the card worked, by NVML.")
	cardTemperature = cardMetric("temperature_celsius", "Temperature of the card.")
	cardPower       = cardMetric("power_watts", "Power that the card draws.")

	kills   = prometheus.NewDesc("sluice_driver_processes_killed_total", "Processes that were killed because their share was above its limit.", nil, nil)
	reports = prometheus.NewDesc("sluice_driver_shares_above_limit_total", "Times that a share was found above its limit.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m *Monitor) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		shareUsed, shareNVML, shareLimit, shareAbove, sharePeak, shareRefused, shareCores, shareContexts, shareOverhead,
		shareCoreSeconds, shareThrottled,
		cardTotal, cardUsed, cardAllocated, cardCores, cardForeign, cardUtilization, cardTemperature, cardPower, reports, kills,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector with what the last look found.
func (m *Monitor) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	last, times := m.last, m.times
	m.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(reports, prometheus.CounterValue, float64(last.above))
	ch <- prometheus.MustNewConstMetric(kills, prometheus.CounterValue, float64(last.killed))
	for _, s := range last.shares {
		var pods []string
		for _, p := range s.pods {
			pods = append(pods, p.Name)
		}
		labels := []string{s.Claim.Namespace, strings.Join(pods, ","), strings.Join(s.containers, ","), s.Claim.Name, s.Device, s.Name}
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
		}
		gauge(shareLimit, float64(s.Limit))
		gauge(shareNVML, float64(s.nvml))
		gauge(shareAbove, float64(s.above))
		gauge(shareCores, float64(s.Cores))
		if t, ok := times[s.Name]; ok {
			collectCores(ch, t, labels)
		}
		if !s.read {
			continue
		}
		gauge(shareUsed, float64(s.usage.Memory))
		gauge(sharePeak, float64(s.usage.Peak))
		gauge(shareContexts, float64(contexts(s.usage)))
		gauge(shareOverhead, float64(s.overhead))
		ch <- prometheus.MustNewConstMetric(shareRefused, prometheus.CounterValue, float64(s.usage.Refused), labels...)
	}
	for _, c := range last.cards {
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, c.UUID, c.Model)
		}
		gauge(cardTotal, float64(c.MemoryTotal))
		gauge(cardUsed, float64(c.MemoryUsed))
		gauge(cardAllocated, float64(c.allocated))
		gauge(cardCores, float64(c.cores))
		gauge(cardForeign, float64(len(c.foreign)))
		for _, v := range []struct {
			d     *prometheus.Desc
			value float64
		}{{cardUtilization, float64(c.Utilization)}, {cardTemperature, float64(c.Temperature)}, {cardPower, c.Power}} {
			if v.value >= 0 {
				gauge(v.d, v.value)
			}
		}
	}
}
