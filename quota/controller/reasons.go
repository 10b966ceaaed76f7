package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/lifecycle"

	"golang.org/x/time/rate"
)

// Why a workload waits is for people. It is written when nothing better is to
// do: admissions never queue behind it, and a backlog of thousands does not turn
// every admission into a round of writes.
const (
	// reasonAfter is how long a workload waits before it is told why: most are
	// admitted sooner.
	reasonAfter = 300 * time.Millisecond
	// reasonsPerSecond bounds those writes.
	reasonsPerSecond, reasonsAtOnce = 20, 50
	// reasonAgain is how often the numbers in a reason are refreshed at most.
	reasonAgain = 30 * time.Second
)

// reasons writes them.
type reasons struct {
	*workloads
	queue workqueue.TypedDelayingInterface[engine.WorkloadID]
}

func newReasons(r *workloads) *reasons {
	return &reasons{workloads: r, queue: workqueue.NewTypedDelayingQueue[engine.WorkloadID]()}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*reasons) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (r *reasons) Start(ctx context.Context) error {
	go func() {
		<-ctx.Done()
		r.queue.ShutDown()
	}()
	limit := rate.NewLimiter(reasonsPerSecond, reasonsAtOnce)
	for {
		id, done := r.queue.Get()
		if done || limit.Wait(ctx) != nil {
			return nil
		}
		r.say(ctx, id)
		r.queue.Done(id)
	}
}

// soon asks for a workload's reason to be written.
func (r *reasons) soon(id engine.WorkloadID) { r.queue.AddAfter(id, reasonAfter) }

// why is what the engine says of a workload, nothing if it does not know it.
func (c *core) why(id engine.WorkloadID) engine.Why {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.works[id]; w == nil || !w.told {
		return engine.Why{State: engine.Unknown}
	}
	return c.engine.Why(id)
}

// say says in the status, and once on the user's object, why the workload does
// not run.
func (r *reasons) say(ctx context.Context, id engine.WorkloadID) {
	v := r.view(id)
	if !v.known || v.halted || v.object == nil || v.admit != nil || v.object.Status.Admission != nil || conditionTrue(v.object, kueue.WorkloadFinished) {
		return
	}
	why := r.why(id)
	if why.State == engine.Unknown || why.Reason == engine.NotYetTried {
		// Nothing has been decided since it came, or since what it waits for changed.
		r.queue.AddAfter(id, recheck)
		return
	}
	if why.State != engine.Pending && why.State != engine.Promised {
		return
	}
	wl := copyStatus(v.object)
	// The place in the queue changes with every workload that comes or goes, and what
	// is written here would be of a moment ago.
	why.Position = 0
	message := why.String()
	reason := string(why.Reason)
	if reason == "" {
		reason = kueue.WorkloadQuotaReservedReasonPendingEvaluation
	}
	before := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadQuotaReserved)
	same := before != nil && before.Status == metav1.ConditionFalse && before.Reason == reason
	gate := lifecycle.Gated(wl, why.Gated, r.now())
	if same && before.Message == message && !gate {
		return
	}
	if same && !gate {
		if left := r.refreshed(id); left > 0 {
			r.queue.AddAfter(id, left)
			return
		}
	}
	lifecycle.Wait(wl, reason, message, r.now())
	if why.Reason == engine.WaitingForRoom {
		lacksRoom(wl, r.now())
	}
	if err := r.write(ctx, wl); err != nil {
		// Whoever won the conflict is on its way here; anything else passes.
		r.queue.AddAfter(id, recheck)
		return
	}
	if !same {
		r.event(wl, corev1.EventTypeWarning, reason, message)
	}
}

// refreshed notes that a reason is written anew, unless that was done a moment
// ago: then it returns how long to wait.
func (r *reasons) refreshed(id engine.WorkloadID) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.works[id]
	if w == nil {
		return 0
	}
	now := r.now()
	if left := w.reasonAt.Add(reasonAgain).Sub(now); left > 0 {
		return left
	}
	w.reasonAt = now
	return 0
}
