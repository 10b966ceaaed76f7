package controller

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// unready is why a ClusterQueue must admit nothing, by the API's name for it and
// in a sentence; empty if it may.
type unready struct{ reason, message string }

// multiKueue is the controller whose checks would send workloads to other
// clusters.
const multiKueue = "kueue.x-k8s.io/multikueue"

// unready looks at what a queue refers to and at whether it is on its way out.
func (c *core) unready(q *kueue.ClusterQueue) unready {
	if q.DeletionTimestamp != nil {
		return unready{kueue.ClusterQueueActiveReasonTerminating, "it is being deleted"}
	}
	if s := q.Spec.AdmissionChecksStrategy; s != nil {
		for _, rule := range s.AdmissionChecks {
			check := c.checks[string(rule.Name)]
			switch {
			case check == nil:
				return unready{kueue.ClusterQueueActiveReasonAdmissionCheckNotFound, fmt.Sprintf("AdmissionCheck %s does not exist", rule.Name)}
			case check.Spec.ControllerName == multiKueue:
				return unready{kueue.ClusterQueueActiveReasonAdmissionCheckInactive, fmt.Sprintf("AdmissionCheck %s is one of MultiKueue, which is not supported", rule.Name)}
			case !meta.IsStatusConditionTrue(check.Status.Conditions, kueue.AdmissionCheckActive):
				return unready{kueue.ClusterQueueActiveReasonAdmissionCheckInactive, fmt.Sprintf("AdmissionCheck %s is not active: controller %s does not say that it answers for it", rule.Name, check.Spec.ControllerName)}
			}
		}
	}
	for _, g := range q.Spec.ResourceGroups {
		for _, f := range g.Flavors {
			flavor := c.flavors[string(f.Name)]
			switch {
			case flavor == nil:
				// The engine knows this one.
			case flavor.Spec.TopologyName != nil:
				return unready{kueue.ClusterQueueActiveReasonTopologyNotFound, "flavor " + flavor.Name + " names a topology, which is not supported"}
			}
		}
	}
	return unready{}
}

// checkChanged looks again at the queues that want an admission check.
func (c *core) checkChanged(name string) {
	for _, w := range c.works {
		if w.object != nil && w.object.Status.Admission != nil {
			c.noteAsk(w, w.object, w.object)
		}
	}
	for _, q := range c.queues {
		if s := q.Spec.AdmissionChecksStrategy; s != nil {
			for _, rule := range s.AdmissionChecks {
				if string(rule.Name) == name {
					c.applyQueue(q)
					break
				}
			}
		}
	}
}
