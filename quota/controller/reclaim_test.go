package controller_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// running waits until so many pods of a job are on nodes and have not ended.
func (w *world) running(t *testing.T, app string, n int) []corev1.Pod {
	t.Helper()
	var on []corev1.Pod
	apitest.Eventually(t, apitest.Patience, fmt.Sprintf("%d pods of %s running", n, app), func(ctx context.Context) error {
		on = nil
		pods := w.podsOf(t, ctx, app)
		for _, p := range pods {
			if p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded && p.DeletionTimestamp == nil {
				on = append(on, p)
			}
		}
		if len(on) != n {
			return fmt.Errorf("%d of %d", len(on), len(pods))
		}
		return nil
	})
	return on
}

// Three pods at a time do five pieces of work; what the last ones do not need is
// for others while they still run.
func TestAJobGivesBackTowardsItsEndWhatItDoesNotNeed(t *testing.T) {
	w := newWorld(t)
	w.node(t, "fixed", 1, "80000Mi", "20000Mi", nil)
	flavor := w.flavor(t, "a100", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu=3")
	w.serveWebhook(t, w.start(t))
	j := job("batch", "queue-q", 3, "1")
	j.Spec.Completions = ptr.To[int32](5)
	w.create(t, j)
	first := w.running(t, "batch", 3)
	next := job("next", "queue-q", 1, "1")
	w.create(t, next)
	w.waits(t, next, "nvidia.com/gpu")

	// Two are done: three are left, and so is all the quota.
	w.end(t, &first[0])
	w.end(t, &first[1])
	last := w.running(t, "batch", 3)
	w.usage(t, queue, "nvidia.com/gpu=3")
	w.waits(t, next, "nvidia.com/gpu")

	// One more is done: two are left.
	w.end(t, &last[0])
	w.allBound(t, "next", 1)
	w.running(t, "batch", 2)
	w.usage(t, queue, "nvidia.com/gpu=3")
	w.becomes(t, j, "two thirds of its admission", func(wl *kueue.Workload) bool {
		r := wl.Status.ReclaimablePods
		return len(r) == 1 && r[0].Name == "main" && r[0].Count == 1
	})
	for _, p := range w.running(t, "batch", 2) {
		w.end(t, &p)
	}
	w.finished(t, j)
	w.usage(t, queue, "nvidia.com/gpu=1")
}
