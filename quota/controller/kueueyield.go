package controller

import (
	"context"
	"fmt"
	"slices"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// This file has workloads leave their cards for others, and lets them stay where
// the other one is gone, or has found room, before they were told.

// isLeaving says whether a workload is on its way off its cards.
func (c *core) isLeaving(id engine.WorkloadID) bool {
	_, leaves := c.rooms.leaving[id]
	return leaves
}

// yield has a workload evicted for the room that another one needs.
func (c *core) yield(v, to *work) {
	than := "of higher priority"
	queue, other := v.object.Status.Admission.ClusterQueue, to.object.Status.Admission.ClusterQueue
	switch {
	case queue != other:
		than = fmt.Sprintf("which ClusterQueue %s has quota of its own for while %s borrows", other, queue)
	case priorityOf(v) == priorityOf(to):
		than = "which has waited longer"
	}
	v.yields = fmt.Sprintf("Preempted to make room on cards for Workload %s, %s, in ClusterQueue %s", nameOf(to.id), than, other)
	v.yieldsTo = to.id
	c.rooms.leaving[v.id] = struct{}{}
	c.room = true
	c.wake()
	c.tell(v.id)
}

// giveUpPromises frees what is kept for further pods of a workload.
func (c *core) giveUpPromises(v *work) {
	for i := range v.object.Spec.PodSets {
		c.fit.Trim(v.id, string(v.object.Spec.PodSets[i].Name), 0)
	}
}

// letStay ends that a workload waits for others to leave their cards. Those that go
// for it and were not told yet stay, unless what was kept for further pods of them is
// another's now.
func (c *core) letStay(w *work) {
	awaited := w.awaits
	w.awaits = nil
	for _, id := range awaited {
		v := c.works[id]
		if v == nil || v.yields == "" || v.yieldsTo != w.id || c.toldToLeave(v) {
			continue
		}
		why := v.yields
		v.yields, v.placed = "", false
		v.yieldsTo = ""
		if !c.reserve(v) {
			// It could not go on as a whole.
			v.yields = why
			c.giveUpPromises(v)
			continue
		}
		delete(c.rooms.leaving, id)
		for _, p := range c.podsOf[id] {
			c.tellPod(p.name)
		}
		c.room = true
		c.wake()
		c.tell(id)
	}
}

// toldToLeave says whether Kueue knows that a workload is to leave: it evicts it.
func (c *core) toldToLeave(v *work) bool {
	return v.object == nil || slices.ContainsFunc(c.ourChecks(v.object), func(s *kueue.AdmissionCheckState) bool { return s.State == kueue.CheckStateRetry })
}

// makeRoom tells Kueue to evict a workload, if the one that it goes for still asks
// for room: after that Kueue cannot be told to let it stay.
func (r *workloads) makeRoom(ctx context.Context, wl *kueue.Workload, id engine.WorkloadID) (ctrl.Result, error) {
	r.mu.Lock()
	var to engine.WorkloadID
	why := ""
	if w := r.works[id]; w != nil {
		to, why = w.yieldsTo, w.yields
	}
	r.mu.Unlock()
	if why == "" {
		// It may stay. That was told, and it is looked at again.
		return ctrl.Result{}, nil
	}
	if to != "" {
		asks, err := r.stillAsks(ctx, to)
		if err != nil {
			return ctrl.Result{}, err
		}
		if !asks {
			// The news of it are on their way here, and end it.
			return ctrl.Result{RequeueAfter: recheck}, nil
		}
	}
	return r.leave(ctx, wl, "Preempted", why)
}

// stillAsks says whether the API shows, past the caches, that Kueue waits for our
// answer about a workload.
func (r *workloads) stillAsks(ctx context.Context, id engine.WorkloadID) (bool, error) {
	now := &kueue.Workload{}
	if err := r.live.Get(ctx, nameOf(id), now); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.works[id]
	return w != nil && w.object != nil && w.object.UID == now.UID && r.asksForRoom(now), nil
}
