package controller

import (
	"context"
	"errors"
	"math"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/translate"
)

const (
	// statusEvery is how often the status of one queue is written at most.
	statusEvery = time.Second
	// statusesPerSecond bounds those writes for all queues together: where there
	// are many, each is written less often while all change.
	statusesPerSecond = 30
)

// statuses writes what the engine knows of queues to their status, and to
// metrics.
type statuses struct {
	*core
	client  client.Client
	metrics *metrics
	limit   *rate.Limiter
	// shown are the queues that have gauges.
	shownQueues map[string]bool
	shownLocals map[types.NamespacedName]bool
	recorder    events.EventRecorder
	// told are the users of a flavor that is being deleted, as the last event on
	// it named them.
	told map[string][]string
}

func newStatuses(c *core, api client.Client, m *metrics, recorder events.EventRecorder) *statuses {
	return &statuses{core: c, recorder: recorder, told: map[string][]string{}, client: api, metrics: m, limit: rate.NewLimiter(statusesPerSecond, 2*statusesPerSecond)}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*statuses) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (s *statuses) Start(ctx context.Context) error {
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		s.mu.Lock()
		// The other manager writes the same statuses.
		stale := s.stale && s.halted == ""
		s.stale = s.stale && !stale
		s.mu.Unlock()
		if !stale {
			continue
		}
		if err := s.writeAll(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).V(2).Info("status of queues not written, will be tried again", "err", err.Error())
			s.mu.Lock()
			s.stale = true
			s.mu.Unlock()
		}
	}
}

func (s *statuses) writeAll(ctx context.Context) error {
	var queues kueue.ClusterQueueList
	if err := s.client.List(ctx, &queues); err != nil {
		return err
	}
	var locals kueue.LocalQueueList
	if err := s.client.List(ctx, &locals); err != nil {
		return err
	}
	var cohorts kueue.CohortList
	if err := s.client.List(ctx, &cohorts); err != nil {
		return err
	}
	s.forgetGone(queues.Items, locals.Items)
	var flavors kueue.ResourceFlavorList
	if err := s.client.List(ctx, &flavors); err != nil {
		return err
	}
	counts, u := s.count(), users{}
	if leaving(queues.Items, locals.Items, flavors.Items) {
		u = s.users()
	}
	counts.leadTo(locals.Items)
	var last error
	for i := range queues.Items {
		q := &queues.Items[i]
		who := u.queues[q.Name]
		// The finalizer first: what is written of the status would make it a conflict,
		// again and again while the queue is busy.
		if err := errors.Join(s.keep(ctx, q, who), s.clusterQueue(ctx, q, counts, who)); err != nil {
			last = err
		}
	}
	for i := range locals.Items {
		q := &locals.Items[i]
		who := u.locals[client.ObjectKeyFromObject(q)]
		if err := errors.Join(s.keep(ctx, q, who), s.localQueue(ctx, q, counts, who)); err != nil {
			last = err
		}
	}
	for i := range flavors.Items {
		if err := s.flavor(ctx, flavors.Items[i].DeepCopy(), u); err != nil {
			last = err
		}
	}
	for i := range cohorts.Items {
		if err := s.cohort(ctx, &cohorts.Items[i]); err != nil {
			last = err
		}
	}
	return last
}

// forgetGone takes away the gauges of queues that are gone.
func (s *statuses) forgetGone(queues []kueue.ClusterQueue, locals []kueue.LocalQueue) {
	there, alsoThere := map[string]bool{}, map[types.NamespacedName]bool{}
	for i := range queues {
		there[queues[i].Name] = true
	}
	for i := range locals {
		alsoThere[client.ObjectKeyFromObject(&locals[i])] = true
	}
	for name := range s.shownQueues {
		if !there[name] {
			s.metrics.queueGone(name)
		}
	}
	for name := range s.shownLocals {
		if !alsoThere[name] {
			s.metrics.localGone(name.Namespace, name.Name)
		}
	}
	s.shownQueues, s.shownLocals = there, alsoThere
}

// write writes a status, if it has changed, when its turn comes.
func (s *statuses) write(ctx context.Context, o client.Object, before, after any) error {
	if equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	if err := s.limit.Wait(ctx); err != nil {
		return err
	}
	return client.IgnoreNotFound(s.client.Status().Update(ctx, o, client.FieldOwner(FieldOwner)))
}

func (s *statuses) clusterQueue(ctx context.Context, q *kueue.ClusterQueue, all counts, users []string) error {
	s.mu.Lock()
	known, ok := s.engine.QueueStatus(engine.QueueName(q.Name))
	why := s.unready(q)
	s.mu.Unlock()
	if !ok {
		return nil
	}
	t := all.queues[q.Name]
	if !known.Active {
		// Nothing is tried in it, but they wait all the same.
		known.Pending, known.Parked = int(t.pending), int(t.pending)
	}
	changed := q.DeepCopy()
	st := &changed.Status
	st.PendingWorkloads = int32(known.Pending)
	st.ReservingWorkloads, st.AdmittedWorkloads = t.reserving, t.admitted
	st.FlavorsReservation, st.FlavorsUsage = nil, nil
	for _, g := range q.Spec.ResourceGroups {
		for _, f := range g.Flavors {
			reserved, used := kueue.FlavorUsage{Name: f.Name}, kueue.FlavorUsage{Name: f.Name}
			for _, quota := range f.Resources {
				for _, have := range known.Usage {
					if have.Flavor != engine.FlavorName(f.Name) || have.Resource != engine.Resource(quota.Name) {
						continue
					}
					now := t.used.of(have.Flavor, have.Resource)
					reserved.Resources = append(reserved.Resources, resourceUsage(quota.Name, have.Resource, have.Used, have.Borrowed))
					used.Resources = append(used.Resources, resourceUsage(quota.Name, have.Resource, now, max(0, now-have.Nominal)))
					s.measure(q.Name, string(f.Name), &quota, have, now)
				}
			}
			st.FlavorsReservation = append(st.FlavorsReservation, reserved)
			st.FlavorsUsage = append(st.FlavorsUsage, used)
		}
	}
	st.FairSharing = nil
	if s.fair {
		st.FairSharing = &kueue.FairSharingStatus{WeightedShare: int64(known.Share)}
	}
	condition := metav1.Condition{Type: kueue.ClusterQueueActive, Status: metav1.ConditionTrue, Reason: string(engine.CodeReady), Message: "Can admit new workloads", ObservedGeneration: q.Generation}
	if !known.Active {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, string(known.Code), known.Inactive
		if why.reason != "" {
			condition.Reason = why.reason
		}
		if q.DeletionTimestamp != nil {
			condition.Message = "It is being deleted, and goes when nothing is in use any more by " + named(users)
		}
	}
	meta.SetStatusCondition(&st.Conditions, condition)
	s.metrics.queue(q, known, t)
	return s.write(ctx, changed, q.Status, changed.Status)
}

func resourceUsage(name corev1.ResourceName, r engine.Resource, total, borrowed engine.Amount) kueue.ResourceUsage {
	return kueue.ResourceUsage{Name: name, Total: translate.Quantity(r, total), Borrowed: translate.Quantity(r, borrowed)}
}

// measure sets the gauges of one quota.
func (s *statuses) measure(queue, flavor string, quota *kueue.ResourceQuota, have engine.UsageStatus, admitted engine.Amount) {
	labels := []string{queue, flavor, string(quota.Name)}
	one := unit(have.Resource)
	limit := func(a *engine.Amount) float64 {
		if a == nil {
			return math.Inf(1)
		}
		return float64(*a) / one
	}
	s.metrics.reserve.WithLabelValues(labels...).Set(float64(have.Used) / one)
	s.metrics.usage.WithLabelValues(labels...).Set(float64(admitted) / one)
	s.metrics.quota.WithLabelValues(labels...).Set(float64(have.Nominal) / one)
	s.metrics.borrow.WithLabelValues(labels...).Set(limit(translate.Optional(quota.Name, quota.BorrowingLimit)))
	s.metrics.lend.WithLabelValues(labels...).Set(limit(translate.Optional(quota.Name, quota.LendingLimit)))
}

// unit is how many of the engine's amounts make one of a resource's own units.
func unit(r engine.Resource) float64 {
	if engine.InThousandths(r) {
		return 1000
	}
	return 1
}

func (s *statuses) localQueue(ctx context.Context, q *kueue.LocalQueue, all counts, users []string) error {
	t := all.locals[types.NamespacedName{Namespace: q.Namespace, Name: q.Name}]
	s.mu.Lock()
	parent := s.queues[string(q.Spec.ClusterQueue)]
	known, ok := s.engine.QueueStatus(engine.QueueName(q.Spec.ClusterQueue))
	s.mu.Unlock()
	changed := q.DeepCopy()
	st := &changed.Status
	st.PendingWorkloads, st.ReservingWorkloads, st.AdmittedWorkloads = t.pending, t.reserving, t.admitted
	st.FlavorsReservation, st.FlavorsUsage = nil, nil
	if parent != nil {
		for _, g := range parent.Spec.ResourceGroups {
			for _, f := range g.Flavors {
				reserved, used := kueue.LocalQueueFlavorUsage{Name: f.Name}, kueue.LocalQueueFlavorUsage{Name: f.Name}
				for _, quota := range f.Resources {
					flavor, r := engine.FlavorName(f.Name), engine.Resource(quota.Name)
					reserved.Resources = append(reserved.Resources, kueue.LocalQueueResourceUsage{Name: quota.Name, Total: translate.Quantity(r, t.reserved.of(flavor, r))})
					used.Resources = append(used.Resources, kueue.LocalQueueResourceUsage{Name: quota.Name, Total: translate.Quantity(r, t.used.of(flavor, r))})
					s.metrics.localUse.WithLabelValues(q.Name, q.Namespace, string(f.Name), string(quota.Name)).Set(float64(t.used.of(flavor, r)) / unit(r))
				}
				st.FlavorsReservation = append(st.FlavorsReservation, reserved)
				st.FlavorsUsage = append(st.FlavorsUsage, used)
			}
		}
	}
	s.metrics.local.WithLabelValues(q.Name, q.Namespace).Set(float64(t.pending))
	s.metrics.localRes.WithLabelValues(q.Name, q.Namespace).Set(float64(t.reserving))
	s.metrics.localRun.WithLabelValues(q.Name, q.Namespace).Set(float64(t.admitted))
	condition := metav1.Condition{Type: kueue.LocalQueueActive, Status: metav1.ConditionTrue, Reason: "Ready", Message: "Can submit new workloads to ClusterQueue " + string(q.Spec.ClusterQueue), ObservedGeneration: q.Generation}
	inactive := func(reason, message string) {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, reason, message
	}
	switch {
	case q.DeletionTimestamp != nil:
		inactive("Terminating", "It is being deleted, and goes when nothing is in use any more by "+named(users))
	case !ok || parent == nil:
		inactive("ClusterQueueDoesNotExist", "ClusterQueue "+string(q.Spec.ClusterQueue)+" does not exist")
	case !known.Active:
		inactive("ClusterQueueIsInactive", "ClusterQueue "+string(q.Spec.ClusterQueue)+" is inactive: "+known.Inactive)
	case q.Spec.StopPolicy != nil && *q.Spec.StopPolicy != kueue.None:
		inactive("Stopped", "The LocalQueue is stopped")
	}
	meta.SetStatusCondition(&st.Conditions, condition)
	return s.write(ctx, changed, q.Status, changed.Status)
}

func (s *statuses) cohort(ctx context.Context, o *kueue.Cohort) error {
	s.mu.Lock()
	known, ok := s.engine.CohortStatus(engine.CohortName(o.Name))
	s.mu.Unlock()
	if !ok {
		return nil
	}
	s.metrics.cohortOf(o.Name, known)
	changed := o.DeepCopy()
	changed.Status.FairSharing = nil
	if s.fair {
		changed.Status.FairSharing = &kueue.FairSharingStatus{WeightedShare: int64(known.Share)}
	}
	return s.write(ctx, changed, o.Status, changed.Status)
}
