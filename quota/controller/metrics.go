package controller

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/lifecycle"
)

// metrics are the controller's, under the names that dashboards for the quota
// API know where the meaning is the same, and under sluice_ otherwise.
type metrics struct {
	reservedTotal *prometheus.CounterVec
	reservedWait  *prometheus.HistogramVec
	admittedTotal *prometheus.CounterVec
	admissionWait *prometheus.HistogramVec
	checksWait    *prometheus.HistogramVec
	readyWait     *prometheus.HistogramVec
	readyAfter    *prometheus.HistogramVec
	evictedTotal  *prometheus.CounterVec
	preempted     *prometheus.CounterVec
	finished      *prometheus.CounterVec

	pending  *prometheus.GaugeVec
	active   *prometheus.GaugeVec
	running  *prometheus.GaugeVec
	status   *prometheus.GaugeVec
	usage    *prometheus.GaugeVec
	reserve  *prometheus.GaugeVec
	quota    *prometheus.GaugeVec
	borrow   *prometheus.GaugeVec
	lend     *prometheus.GaugeVec
	share    *prometheus.GaugeVec
	cohort   *prometheus.GaugeVec
	subtree  *prometheus.GaugeVec
	local    *prometheus.GaugeVec
	localRes *prometheus.GaugeVec
	localRun *prometheus.GaugeVec
	localUse *prometheus.GaugeVec

	decision *prometheus.HistogramVec
	noRoom   *prometheus.CounterVec
	tickets  prometheus.Counter
	refusals prometheus.Counter
}

var (
	waits = prometheus.ExponentialBuckets(0.1, 2, 16)
	// short fits what takes from a tenth of a millisecond to some seconds.
	short = prometheus.ExponentialBuckets(0.0001, 2, 16)
)

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		r.MustRegister(v)
		return v
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
		r.MustRegister(v)
		return v
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		r.MustRegister(v)
		return v
	}
	const queue = "cluster_queue"
	m := &metrics{
		reservedTotal: counter("kueue_quota_reserved_workloads_total", "Workloads that got quota.", queue),
		reservedWait:  histogram("kueue_quota_reserved_wait_time_seconds", "Time from creation, or the last eviction, until quota was reserved.", waits, queue),
		admittedTotal: counter("kueue_admitted_workloads_total", "Workloads admitted.", queue),
		admissionWait: histogram("kueue_admission_wait_time_seconds", "Time from creation, or the last eviction, to admission.", waits, queue),
		checksWait:    histogram("kueue_admission_checks_wait_time_seconds", "Time from the reservation of quota to admission.", waits, queue),
		readyWait:     histogram("kueue_ready_wait_time_seconds", "Time from creation, or the last eviction, until all pods were ready; with waitForPodsReady.", waits, queue),
		readyAfter:    histogram("kueue_admitted_until_ready_wait_time_seconds", "Time from admission until all pods were ready; with waitForPodsReady.", waits, queue),
		evictedTotal:  counter("kueue_evicted_workloads_total", "Workloads evicted. The underlying cause is that of a deactivation or preemption.", queue, "reason", "underlying_cause"),
		preempted:     counter("kueue_preempted_workloads_total", "Workloads preempted, by the ClusterQueue that they were in.", "preempted_cluster_queue", "reason"),
		finished:      counter("kueue_finished_workloads_total", "Workloads that ended.", queue),

		pending:  gauge("kueue_pending_workloads", "Workloads that wait: active ones will be tried, inadmissible ones when something changes.", queue, "status"),
		active:   gauge("kueue_reserving_active_workloads", "Workloads that hold quota.", queue),
		running:  gauge("kueue_admitted_active_workloads", "Workloads that are admitted and have not ended.", queue),
		status:   gauge("kueue_cluster_queue_status", "1 for the status that the ClusterQueue has: active, pending or terminating.", queue, "status"),
		usage:    gauge("kueue_cluster_queue_resource_usage", "What admitted workloads are charged, in units of the resource (cpu in cores).", queue, "flavor", "resource"),
		reserve:  gauge("kueue_cluster_queue_resource_reservation", "What is charged, in units of the resource (cpu in cores).", queue, "flavor", "resource"),
		quota:    gauge("kueue_cluster_queue_nominal_quota", "The ClusterQueue's own quota.", queue, "flavor", "resource"),
		borrow:   gauge("kueue_cluster_queue_borrowing_limit", "How much it may borrow; +Inf without a limit.", queue, "flavor", "resource"),
		lend:     gauge("kueue_cluster_queue_lending_limit", "How much it lends; +Inf without a limit.", queue, "flavor", "resource"),
		share:    gauge("kueue_cluster_queue_weighted_share", "Its dominant share in thousandths, by weight; NaN for weight 0 while it borrows.", queue),
		cohort:   gauge("kueue_cohort_weighted_share", "The Cohort's dominant share in thousandths, by weight; NaN for weight 0 while it borrows.", "cohort"),
		subtree:  gauge("kueue_cohort_subtree_quota", "The quota of the Cohort and all below it.", "cohort", "flavor", "resource"),
		local:    gauge("kueue_local_queue_pending_workloads", "Workloads of the LocalQueue that wait.", "name", "namespace"),
		localRes: gauge("kueue_local_queue_reserving_active_workloads", "Workloads of the LocalQueue that hold quota.", "name", "namespace"),
		localRun: gauge("kueue_local_queue_admitted_active_workloads", "Workloads of the LocalQueue that are admitted.", "name", "namespace"),
		localUse: gauge("kueue_local_queue_resource_usage", "What admitted workloads of the LocalQueue are charged.", "name", "namespace", "flavor", "resource"),

		decision: histogram("sluice_decision_duration_seconds", "Time of one round of decisions, pricing included.", short),
		noRoom:   counter("sluice_gate_waits_total", "Gates of admitted pods that could not open yet because no node had room.", queue),
		tickets:  prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_tickets_written_total", Help: "Tickets written to claims."}),
		refusals: prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_ticket_refusals_total", Help: "Times that a claim of an admitted workload got no ticket, since it asks for more than was admitted."}),
	}
	r.MustRegister(m.tickets, m.refusals)
	return m
}

// queuedSince is when a workload began to wait for the admission that it has.
func queuedSince(wl *kueue.Workload) time.Time {
	if c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadRequeued); c != nil {
		return c.LastTransitionTime.Time
	}
	return wl.CreationTimestamp.Time
}

func (m *metrics) reserved(wl *kueue.Workload, now time.Time) {
	queue := string(wl.Status.Admission.ClusterQueue)
	m.reservedTotal.WithLabelValues(queue).Inc()
	m.reservedWait.WithLabelValues(queue).Observe(now.Sub(queuedSince(wl)).Seconds())
}

func (m *metrics) admitted(wl *kueue.Workload, now time.Time) {
	queue := string(wl.Status.Admission.ClusterQueue)
	m.admittedTotal.WithLabelValues(queue).Inc()
	m.admissionWait.WithLabelValues(queue).Observe(now.Sub(queuedSince(wl)).Seconds())
	if c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadQuotaReserved); c != nil {
		m.checksWait.WithLabelValues(queue).Observe(now.Sub(c.LastTransitionTime.Time).Seconds())
	}
}

// ready is for a workload whose pods have just become ready.
func (m *metrics) ready(wl *kueue.Workload, now time.Time) {
	queue := string(wl.Status.Admission.ClusterQueue)
	m.readyWait.WithLabelValues(queue).Observe(now.Sub(queuedSince(wl)).Seconds())
	if c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadAdmitted); c != nil {
		m.readyAfter.WithLabelValues(queue).Observe(now.Sub(c.LastTransitionTime.Time).Seconds())
	}
}

func (m *metrics) evicted(queue string, v lifecycle.Verdict, cause string) {
	if v.Preempted != "" {
		m.preempted.WithLabelValues(queue, v.Preempted).Inc()
		cause = v.Preempted
	}
	m.evictedTotal.WithLabelValues(queue, v.Reason, cause).Inc()
}

// queue sets the gauges of a ClusterQueue.
func (m *metrics) queue(q *kueue.ClusterQueue, known engine.QueueStatus, t tally) {
	m.pending.WithLabelValues(q.Name, "active").Set(float64(known.Pending - known.Parked))
	m.pending.WithLabelValues(q.Name, "inadmissible").Set(float64(known.Parked))
	m.active.WithLabelValues(q.Name).Set(float64(t.reserving))
	m.running.WithLabelValues(q.Name).Set(float64(t.admitted))
	m.share.WithLabelValues(q.Name).Set(shareValue(known.Share))
	now := "pending"
	switch {
	case q.DeletionTimestamp != nil:
		now = "terminating"
	case known.Active:
		now = "active"
	}
	for _, status := range []string{"pending", "active", "terminating"} {
		v := 0.0
		if status == now {
			v = 1
		}
		m.status.WithLabelValues(q.Name, status).Set(v)
	}
}

// cohortOf sets the gauges of a Cohort.
func (m *metrics) cohortOf(name string, known engine.CohortStatus) {
	m.cohort.WithLabelValues(name).Set(shareValue(known.Share))
	for _, u := range known.Usage {
		m.subtree.WithLabelValues(name, string(u.Flavor), string(u.Resource)).Set(float64(u.Nominal) / unit(u.Resource))
	}
}

func shareValue(share engine.Amount) float64 {
	if share == engine.Unlimited {
		return math.NaN()
	}
	return float64(share)
}

// queueGone takes a ClusterQueue's series away.
func (m *metrics) queueGone(name string) {
	of := prometheus.Labels{"cluster_queue": name}
	for _, v := range []*prometheus.GaugeVec{m.pending, m.active, m.running, m.status, m.usage, m.reserve, m.quota, m.borrow, m.lend, m.share} {
		v.DeletePartialMatch(of)
	}
}

// localGone takes a LocalQueue's series away.
func (m *metrics) localGone(namespace, name string) {
	of := prometheus.Labels{"namespace": namespace, "name": name}
	for _, v := range []*prometheus.GaugeVec{m.local, m.localRes, m.localRun, m.localUse} {
		v.DeletePartialMatch(of)
	}
}
