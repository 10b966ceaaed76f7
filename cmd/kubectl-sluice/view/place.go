package view

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/lifecycle"
)

// rules are the controller's defaults: who is evicted for not being ready goes to
// the end of the queue.
var rules = lifecycle.Rules{PodsReady: &lifecycle.PodsReady{ByEviction: true}}

// place tells how many of those who wait in the same LocalQueue go before a
// workload: more important ones, and equally important ones that came earlier. It is
// empty for one that does not wait. A workload that goes before another may still be
// admitted after it, if the queue is BestEffortFIFO and it finds less.
func place(w kueue.Workload, all []kueue.Workload) string {
	if !queued(w) {
		return ""
	}
	before, waiting := 0, 0
	for _, o := range all {
		if o.Spec.QueueName != w.Spec.QueueName || !queued(o) {
			continue
		}
		waiting++
		if goesBefore(o, w) {
			before++
		}
	}
	if before == 0 {
		return "no other that waits in this queue goes before it"
	}
	return fmt.Sprintf("%d of the %d that wait in this queue go before it", before, waiting)
}

// queued says that a workload waits for quota.
func queued(w kueue.Workload) bool {
	return w.Status.Admission == nil && ptr.Deref(w.Spec.Active, true) && !meta.IsStatusConditionTrue(w.Status.Conditions, kueue.WorkloadFinished)
}

// goesBefore is the order of a queue.
func goesBefore(a, b kueue.Workload) bool {
	if p, q := ptr.Deref(a.Spec.Priority, 0), ptr.Deref(b.Spec.Priority, 0); p != q {
		return p > q
	}
	if t, u := lifecycle.QueuedAt(&a, rules), lifecycle.QueuedAt(&b, rules); !t.Equal(u) {
		return t.Before(u)
	}
	return a.Name < b.Name
}
