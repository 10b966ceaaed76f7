package controller

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

// Labels with the meaning that users of the quota API know.
const (
	// QueueLabel names the LocalQueue of a pod, job or claim.
	QueueLabel = "kueue.x-k8s.io/queue-name"
	// BesideQueueLabel does so where a manager of Kueue admits: there Kueue's own
	// integrations act on QueueLabel.
	BesideQueueLabel = "quota.sluice.dev/queue-name"
	// PriorityLabel names a WorkloadPriorityClass.
	PriorityLabel = "kueue.x-k8s.io/priority-class"
)

// QueueNamed is the LocalQueue that labels name, whoever admits.
func QueueNamed(labels map[string]string) string {
	return cmp.Or(labels[BesideQueueLabel], labels[QueueLabel])
}

// gatedBy, on a Workload or the object that it belongs to, keeps it out of its
// queue while it is not empty.
const gatedBy = "kueue.x-k8s.io/admission-gated-by"

// maxRun, a label of a job or pod, is how many seconds it may run.
const maxRun = "kueue.x-k8s.io/max-exec-time-seconds"

// Names of our own.
const (
	// Gate holds a pod back until it is admitted.
	Gate = "quota.sluice.dev/admission"
	// WorkloadLabel names, on pods of an admitted job, the Workload that they
	// belong to.
	WorkloadLabel = "quota.sluice.dev/workload"
	// PodSetLabel names, on those pods, their pod set.
	PodSetLabel = "quota.sluice.dev/podset"
	// Finalizer keeps a Workload while quota is held by it, also after it or its
	// owner was deleted: without the object a restarted controller would not know
	// of quota that pods on their way out still use.
	Finalizer = "quota.sluice.dev/holds-quota"
	// PlacementAnnotation on a LocalQueue or ClusterQueue is the policy by which
	// nodes are chosen for its pods.
	PlacementAnnotation = "quota.sluice.dev/placement"
	// ElasticAnnotation on a ResourceFlavor, "true", says that its nodes come when
	// pods wait for them: the budget alone admits.
	ElasticAnnotation = "quota.sluice.dev/elastic"
	// ElasticCardAnnotation on an elastic ResourceFlavor is the memory of one of
	// its cards, "80Gi", by which requests are priced while it has no node.
	ElasticCardAnnotation = "quota.sluice.dev/elastic-card-memory"
	// FieldOwner is the field manager of what the controller writes.
	FieldOwner = "sluice-quota"
)

// devices are the budget resources that stand for devices and that tickets hold.
var devices = []engine.Resource{pricing.ResourceDevices, pricing.ResourceMemory, pricing.ResourceCores}

// HasGate says whether a pod waits at our gate.
func HasGate(p *corev1.Pod) bool {
	for _, g := range p.Spec.SchedulingGates {
		if g.Name == Gate {
			return true
		}
	}
	return false
}

// ended says whether a pod has run to its end.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}
