package controller

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gpu/sluice/quota/fit"
)

// roomMetrics tell of room on cards, computed when they are asked for.
type roomMetrics struct{ *core }

var (
	fitRefusals = prometheus.NewDesc("sluice_fit_refusals_total", "Times that a workload which the budget admits found no room, by the kind of reason.", []string{"cause"}, nil)
	placed      = prometheus.NewDesc("sluice_placements_total", "Pods that the scheduler gave their devices, on the node that was chosen for them or elsewhere.", []string{"where"}, nil)
	moved       = prometheus.NewDesc("sluice_placements_moved_total", "Pods past their gate that were given another node, since the first would not do any more.", nil, nil)
	flavorNodes = prometheus.NewDesc("sluice_flavor_nodes", "Nodes of a flavor.", []string{"flavor"}, nil)
	flavorFree  = prometheus.NewDesc("sluice_flavor_free_memory_bytes", "Memory left on all cards of a flavor; what is promised counts as taken.", []string{"flavor"}, nil)
	nodeDevices = prometheus.NewDesc("sluice_node_devices", "Devices that the driver of a node offers: cards, MIG devices and the one for monitoring.", []string{"node"}, nil)
	flavorHole  = prometheus.NewDesc("sluice_flavor_largest_hole_bytes", "The most memory left on one card of a flavor.", []string{"flavor"}, nil)
)

// Describe implements prometheus.Collector.
func (roomMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{fitRefusals, placed, moved, flavorNodes, flavorFree, flavorHole, nodeDevices} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m roomMetrics) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	counts, holes := m.fit.Counts(), m.fit.Holes()
	devices := map[string]int{}
	for _, d := range m.devicesOf() {
		if d.Node != "" {
			devices[d.Node]++
		}
	}
	m.mu.Unlock()
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for _, cause := range fit.Causes {
		count(fitRefusals, counts.Refusals[cause], string(cause))
	}
	count(placed, counts.Hits, "chosen")
	count(placed, counts.Misses, "elsewhere")
	count(moved, counts.Moved)
	for flavor, h := range holes {
		to <- prometheus.MustNewConstMetric(flavorNodes, prometheus.GaugeValue, float64(h.Nodes), string(flavor))
		to <- prometheus.MustNewConstMetric(flavorFree, prometheus.GaugeValue, float64(h.Free), string(flavor))
		to <- prometheus.MustNewConstMetric(flavorHole, prometheus.GaugeValue, float64(h.Largest), string(flavor))
	}
	for node, n := range devices {
		to <- prometheus.MustNewConstMetric(nodeDevices, prometheus.GaugeValue, float64(n), node)
	}
}
