package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// This file writes to Kueue what was found out about room: as the state of our
// AdmissionChecks, by which Kueue admits and evicts.

const (
	// roomPatience is how long a workload keeps its quota while it finds no room:
	// devices may be on their way back.
	roomPatience = 5 * time.Second
	// roomRetry is how long after that Kueue waits before it reserves quota for it
	// again, doubled each time up to roomRetryMost: others may use it meanwhile.
	roomRetry, roomRetryMost = 5 * time.Second, 60 * time.Second
	// startPatience is how long one that was admitted keeps its quota while none of
	// it has begun for want of room: nodes and drivers that start anew are back
	// before.
	startPatience = 30 * time.Second
)

// answer tells Kueue whether the pods of a workload have room.
func (r *workloads) answer(ctx context.Context, wl *kueue.Workload, v view) (ctrl.Result, error) {
	now := r.now()
	left := reservedAt(wl).Add(roomPatience).Sub(now)
	state, message := kueue.CheckStatePending, v.roomless
	switch {
	case v.placed:
		state, message = kueue.CheckStateReady, "All pods have room"
	case v.roomless == "":
		return ctrl.Result{RequeueAfter: max(left, 0)}, nil
	case left <= 0 && !v.making:
		state = kueue.CheckStateRetry
	}
	changed, err := r.set(ctx, wl, kueue.CheckStatePending, state, message)
	if changed && v.roomless != "" {
		r.event(wl, corev1.EventTypeWarning, string(engine.WaitingForRoom), v.roomless)
	}
	if err != nil || v.placed || left <= 0 {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: left}, nil
}

// set writes our answer to each of our checks, or to those that are in a state if
// one is named, and says whether it was another one.
func (r *workloads) set(ctx context.Context, wl *kueue.Workload, from, state kueue.CheckState, message string) (changed bool, err error) {
	wl = wl.DeepCopy()
	r.mu.Lock()
	checks := r.ourChecks(wl)
	r.mu.Unlock()
	for _, s := range checks {
		if from != "" && s.State != from || s.State == state && s.Message == message {
			continue
		}
		s.RequeueAfterSeconds = nil
		if state == kueue.CheckStateRetry {
			s.RequeueAfterSeconds = ptr.To(int32(min(roomRetryMost, roomRetry<<min(10, ptr.Deref(s.RetryCount, 0))) / time.Second))
		}
		s.State, s.Message, s.LastTransitionTime = state, message, metav1.NewTime(r.now())
		changed = true
	}
	if !changed {
		return false, nil
	}
	if err := r.write(ctx, wl); err != nil {
		return false, client.IgnoreNotFound(ignoreConflict(err))
	}
	return true, nil
}

// leave has Kueue evict a workload that holds quota: it does so when a check wants
// to be asked again.
func (r *workloads) leave(ctx context.Context, wl *kueue.Workload, reason, why string) (ctrl.Result, error) {
	changed, err := r.set(ctx, wl, "", kueue.CheckStateRetry, why)
	if changed {
		r.event(wl, corev1.EventTypeWarning, reason, why)
	}
	return ctrl.Result{}, err
}

// stalls looks at a workload that was admitted and could not begin.
func (r *workloads) stalls(ctx context.Context, wl *kueue.Workload, v view) (ctrl.Result, error) {
	if left := v.stalled.since.Add(v.patience).Sub(r.now()); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	return r.leave(ctx, wl, string(engine.WaitingForRoom), "It was admitted, but cards have no room any more: "+v.stalled.why)
}
