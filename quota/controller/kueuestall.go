package controller

import (
	"time"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// This file notices what Kueue has admitted and what cannot begin, since its room
// was lost meanwhile.

// stall is that a workload was admitted and none of its pods could begin for want
// of room.
type stall struct {
	since time.Time
	why   string
}

// noteStall notes it of a workload that holds quota and has no places.
func (c *core) noteStall(w *work, placed bool) {
	switch {
	case !c.beside || w.object == nil:
		return
	case placed || !conditionTrue(w.object, kueue.WorkloadAdmitted) || granted(w.object) == nil || c.inUse(w.id) || c.growing(w.object):
		w.stalled = stall{}
		return
	case !w.stalled.since.IsZero():
		return
	}
	w.stalled = stall{since: c.now(), why: "none of its pods has room"}
	if _, no := c.fit.Place(&engine.Workload{ID: w.id}, translate.Assignment(w.object.Status.Admission), nil); no != nil {
		w.stalled.why = no.String()
	}
	c.tell(w.id)
}

// mayStall is called for a workload of which a pod finds no room. What it was
// promised may be gone, with a node; then it holds quota and no place.
func (c *core) mayStall(w *work, given *engine.PodSetAssignment) {
	if c.beside && c.fit.Void(w.id, given) {
		c.mayLackPlace(w.id)
		c.wake()
	}
}

// cardless is called where no card is there that a pod of a workload could have.
func (c *core) cardless(wl *kueue.Workload, a *kueue.Admission, set string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.works[workloadID(wl.Namespace, wl.Name)]
	if w == nil {
		return
	}
	if given := engineSet(c.kept(w, a), set); given != nil {
		c.mayStall(w, given)
	}
}
