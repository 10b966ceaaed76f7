package controller

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the controller's, under the names that dashboards for the quota
// API know where the meaning is the same, and under sluice_ otherwise.
type metrics struct {
	admittedTotal *prometheus.CounterVec
	admissionWait *prometheus.HistogramVec
	evictedTotal  *prometheus.CounterVec
	pending       *prometheus.GaugeVec
	active        *prometheus.GaugeVec
	usage         *prometheus.GaugeVec
	quota         *prometheus.GaugeVec
	noRoom        *prometheus.CounterVec
	tickets       prometheus.Counter
	refusals      prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		admittedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kueue_admitted_workloads_total", Help: "Workloads admitted, by ClusterQueue."}, []string{"cluster_queue"}),
		admissionWait: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kueue_admission_wait_time_seconds", Help: "Time from creation to admission.", Buckets: prometheus.ExponentialBuckets(0.1, 2, 16)}, []string{"cluster_queue"}),
		evictedTotal:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kueue_evicted_workloads_total", Help: "Workloads evicted, by ClusterQueue and reason."}, []string{"cluster_queue", "reason"}),
		pending:       prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kueue_pending_workloads", Help: "Workloads that wait: active ones will be tried, inadmissible ones when something changes."}, []string{"cluster_queue", "status"}),
		active:        prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kueue_reserving_active_workloads", Help: "Workloads that hold quota."}, []string{"cluster_queue"}),
		usage:         prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kueue_cluster_queue_resource_usage", Help: "What is charged, in units of the resource (cpu in cores)."}, []string{"cluster_queue", "flavor", "resource"}),
		quota:         prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kueue_cluster_queue_nominal_quota", Help: "The ClusterQueue's own quota."}, []string{"cluster_queue", "flavor", "resource"}),
		noRoom:        prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_gate_waits_total", Help: "Gates of admitted pods that could not open yet because no node had room."}, []string{"cluster_queue"}),
		tickets:       prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_tickets_written_total", Help: "Tickets written to claims."}),
		refusals:      prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_ticket_refusals_total", Help: "Times that a claim of an admitted workload got no ticket, since it asks for more than was admitted."}),
	}
	r.MustRegister(m.admittedTotal, m.admissionWait, m.evictedTotal, m.pending, m.active, m.usage, m.quota, m.noRoom, m.tickets, m.refusals)
	return m
}

func (m *metrics) admitted(queue string, waited time.Duration) {
	m.admittedTotal.WithLabelValues(queue).Inc()
	m.admissionWait.WithLabelValues(queue).Observe(waited.Seconds())
}

func (m *metrics) evicted(queue, reason string) {
	m.evictedTotal.WithLabelValues(queue, reason).Inc()
}
