package controller

import (
	"context"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// decide prices what has changed, asks the engine, and remembers its decisions
// for the reconcilers. It returns the workloads that a decision is about.
func (c *core) decide() []engine.Decision {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.halted != "" {
		return nil
	}
	now := c.now()
	c.engine.Apply(engine.Tick{Now: now})
	c.reorder()
	for _, id := range slices.Sorted(maps.Keys(c.dirty)) {
		if w := c.works[id]; w != nil {
			c.tellEngine(w)
		}
	}
	asked := slices.Sorted(maps.Keys(c.dirty))
	clear(c.dirty)
	for _, id := range asked {
		c.unplaced[id] = struct{}{}
		if _, asks := c.rooms.open[id]; asks {
			c.rooms.due[id] = struct{}{}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.unplaced)) {
		// Pods that are just being bound count twice for a moment: those whose
		// places are not found are looked at once more.
		w := c.works[id]
		placed := w == nil || c.reserve(w)
		if placed {
			delete(c.unplaced, id)
		}
		if w != nil {
			c.noteStall(w, placed)
		}
	}
	c.stale = true
	came := c.fit.Freed() || c.room
	if came {
		c.engine.Apply(engine.RoomChanged{})
		c.room = false
		c.lookAgain()
	}
	c.lookAtComing(now)
	if c.beside {
		c.findRoom(came)
		for _, id := range asked {
			c.tell(id)
		}
		return nil
	}
	decisions := c.engine.Decide(c.fit)
	for _, d := range decisions {
		switch d := d.(type) {
		case engine.Admit:
			if w := c.works[d.ID]; w != nil {
				w.admit, w.placed, w.decided = &d, true, w.generation
				c.tell(d.ID)
			}
		case engine.Evict:
			if w := c.works[d.Victim]; w != nil {
				w.evict = &d
				c.tell(d.Victim)
			}
		case engine.Wait:
			c.tell(d.ID)
		}
	}
	if c.retell {
		c.retell = false
		for id, w := range c.works {
			if w.object != nil && w.object.Status.Admission == nil {
				c.tell(id)
			}
		}
	}
	// Those that wait because an equal one does get no decision of their own.
	for _, id := range asked {
		if w := c.works[id]; w != nil && w.object != nil && w.object.Status.Admission == nil {
			c.tell(id)
		}
	}
	return decisions
}

// reserve finds room for those pods of a workload that holds quota which are not
// on a node and have no place: it was admitted before a restart, or a pod is to be
// made anew. So nobody else is put in their place.
func (c *core) reserve(w *work) bool {
	if w.placed || w.late || w.object == nil {
		return true
	}
	a := granted(w.object)
	if a == nil || c.beside && (w.yields != "" || c.unanswered(w.object)) {
		return true
	}
	if c.served(w.object) {
		w.placed = true
		return true
	}
	rest := translate.Assignment(c.kept(w, a))
	for i := range rest.PodSets {
		set := &rest.PodSets[i]
		c.trimSet(w, set)
		claims := c.fit.Claims(w.id, set.Name)
		for _, p := range c.podsOf[w.id] {
			if p.set == set.Name && !p.ended && c.settledWith(p, claims) {
				set.Count--
			}
		}
	}
	w.placed = c.fit.TopUp(w.id, rest)
	return w.placed
}

// served says whether a workload is a claim's that has its devices.
func (c *core) served(wl *kueue.Workload) bool {
	owner := metav1.GetControllerOf(wl)
	if owner == nil || owner.Kind != "ResourceClaim" {
		return false
	}
	claim := c.claims[types.NamespacedName{Namespace: wl.Namespace, Name: owner.Name}]
	return claim != nil && claim.UID == owner.UID && claim.Status.Allocation != nil
}

// mayLackPlace has the next look find a place for a pod of a workload that lost
// its own and will need one.
func (c *core) mayLackPlace(id engine.WorkloadID) {
	if w := c.works[id]; w != nil && w.placed {
		w.placed = false
		c.unplaced[id] = struct{}{}
	}
}

// granted is what a workload holds and goes on holding, nil for nothing: it may
// still wait for admission checks.
func granted(wl *kueue.Workload) *kueue.Admission {
	if wl == nil || conditionTrue(wl, kueue.WorkloadEvicted) || conditionTrue(wl, kueue.WorkloadFinished) {
		return nil
	}
	return wl.Status.Admission
}

// decider runs the loop in the replica that leads.
type decider struct {
	*core
	metrics *metrics
	// ready is closed when everything that the API shows has been taken in.
	ready <-chan struct{}
	// caughtUp takes in what the caches may not show yet: what the last leader
	// wrote just before it stopped.
	caughtUp func(context.Context) error
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*decider) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (d *decider) Start(ctx context.Context) error {
	select {
	case <-d.ready:
	case <-ctx.Done():
		return nil
	}
	if err := d.caughtUp(ctx); err != nil {
		return err
	}
	logger := log.FromContext(ctx).WithName("decide")
	for {
		began := time.Now()
		decisions := d.decide()
		d.metrics.decision.WithLabelValues().Observe(time.Since(began).Seconds())
		for _, decision := range decisions {
			if _, wait := decision.(engine.Wait); wait {
				logger.V(4).Info("decision", "is", decision.String())
			} else {
				logger.V(2).Info("decision", "is", decision.String())
			}
		}
		var due <-chan time.Time
		next, ok := d.nextLook()
		if ok {
			due = time.After(max(10*time.Millisecond, time.Until(next)))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.kick:
			// Facts come in bursts; one look serves many.
			time.Sleep(5 * time.Millisecond)
		case <-due:
		}
	}
}

// nextLook is when to decide again if nothing happens until then.
func (c *core) nextLook() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.halted != "" {
		// What is due stays due until that ends, which wakes the decider.
		return time.Time{}, false
	}
	next, ok := c.engine.NextTick()
	if at := c.comingAt.Add(lookEvery); c.comingDue && (!ok || at.Before(next)) {
		return at, true
	}
	return next, ok
}
