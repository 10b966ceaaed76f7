package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// statusEvery is how often the status of a queue is written at most.
const statusEvery = time.Second

// statuses writes what the engine knows of queues to their status, and to
// metrics.
type statuses struct {
	*core
	client  client.Client
	metrics *metrics
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
		stale := s.stale
		s.stale = false
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
	counts := s.count()
	var last error
	for i := range queues.Items {
		if err := s.clusterQueue(ctx, &queues.Items[i], counts); err != nil {
			last = err
		}
	}
	for i := range locals.Items {
		if err := s.localQueue(ctx, &locals.Items[i], counts); err != nil {
			last = err
		}
	}
	return last
}

// tally is what a queue's workloads add up to.
type tally struct {
	pending, reserving, admitted int32
	usage                        map[engine.FlavorName]engine.Amounts
}

type counts struct {
	queues map[string]*tally
	locals map[types.NamespacedName]*tally
}

func (c *core) count() counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	to := counts{queues: map[string]*tally{}, locals: map[types.NamespacedName]*tally{}}
	at := func(m map[types.NamespacedName]*tally, k types.NamespacedName) *tally {
		if m[k] == nil {
			m[k] = &tally{usage: map[engine.FlavorName]engine.Amounts{}}
		}
		return m[k]
	}
	byQueue := map[types.NamespacedName]*tally{}
	for _, w := range c.works {
		if w.object == nil || conditionTrue(w.object, kueue.WorkloadFinished) {
			continue
		}
		local := at(to.locals, types.NamespacedName{Namespace: w.object.Namespace, Name: string(w.object.Spec.QueueName)})
		a := w.object.Status.Admission
		if a == nil {
			local.pending++
			continue
		}
		queue := at(byQueue, types.NamespacedName{Name: string(a.ClusterQueue)})
		for _, t := range []*tally{local, queue} {
			t.reserving++
			if conditionTrue(w.object, kueue.WorkloadAdmitted) {
				t.admitted++
			}
		}
		for _, set := range translate.Assignment(a).PodSets {
			for r, n := range set.Usage {
				f := set.Flavors[r]
				if local.usage[f] == nil {
					local.usage[f] = engine.Amounts{}
				}
				local.usage[f][r] = local.usage[f][r].Add(n)
			}
		}
	}
	for k, t := range byQueue {
		to.queues[k.Name] = t
	}
	return to
}

func (s *statuses) clusterQueue(ctx context.Context, q *kueue.ClusterQueue, all counts) error {
	s.mu.Lock()
	known, ok := s.engine.QueueStatus(engine.QueueName(q.Name))
	s.mu.Unlock()
	if !ok {
		return nil
	}
	t := all.queues[q.Name]
	if t == nil {
		t = &tally{}
	}
	changed := q.DeepCopy()
	st := &changed.Status
	st.PendingWorkloads = int32(known.Pending)
	st.ReservingWorkloads, st.AdmittedWorkloads = t.reserving, t.admitted
	st.FlavorsReservation, st.FlavorsUsage = nil, nil
	for _, g := range q.Spec.ResourceGroups {
		for _, f := range g.Flavors {
			u := kueue.FlavorUsage{Name: f.Name}
			for _, r := range f.Resources {
				for _, have := range known.Usage {
					if have.Flavor == engine.FlavorName(f.Name) && have.Resource == engine.Resource(r.Name) {
						u.Resources = append(u.Resources, kueue.ResourceUsage{
							Name: r.Name, Total: translate.Quantity(have.Resource, have.Used), Borrowed: translate.Quantity(have.Resource, have.Borrowed),
						})
						s.metrics.usage.WithLabelValues(q.Name, string(f.Name), string(r.Name)).Set(float64(have.Used) / unit(r.Name))
						s.metrics.quota.WithLabelValues(q.Name, string(f.Name), string(r.Name)).Set(float64(have.Nominal) / unit(r.Name))
					}
				}
			}
			st.FlavorsReservation = append(st.FlavorsReservation, u)
			st.FlavorsUsage = append(st.FlavorsUsage, u)
		}
	}
	s.metrics.pending.WithLabelValues(q.Name, "active").Set(float64(known.Pending - known.Parked))
	s.metrics.pending.WithLabelValues(q.Name, "inadmissible").Set(float64(known.Parked))
	s.metrics.active.WithLabelValues(q.Name).Set(float64(known.Reserving))
	condition := metav1.Condition{Type: kueue.ClusterQueueActive, Status: metav1.ConditionTrue, Reason: string(engine.CodeReady), Message: "Can admit new workloads", ObservedGeneration: q.Generation}
	if !known.Active {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, string(known.Code), known.Inactive
	}
	meta.SetStatusCondition(&st.Conditions, condition)
	if equality.Semantic.DeepEqual(q.Status, changed.Status) {
		return nil
	}
	return client.IgnoreNotFound(s.client.Status().Update(ctx, changed, client.FieldOwner(FieldOwner)))
}

func unit(name corev1.ResourceName) float64 {
	if name == corev1.ResourceCPU {
		return 1000
	}
	return 1
}

func (s *statuses) localQueue(ctx context.Context, q *kueue.LocalQueue, all counts) error {
	t := all.locals[types.NamespacedName{Namespace: q.Namespace, Name: q.Name}]
	if t == nil {
		t = &tally{}
	}
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
				u := kueue.LocalQueueFlavorUsage{Name: f.Name}
				for _, r := range f.Resources {
					u.Resources = append(u.Resources, kueue.LocalQueueResourceUsage{
						Name: r.Name, Total: translate.Quantity(engine.Resource(r.Name), t.usage[engine.FlavorName(f.Name)][engine.Resource(r.Name)]),
					})
				}
				st.FlavorsReservation = append(st.FlavorsReservation, u)
				st.FlavorsUsage = append(st.FlavorsUsage, u)
			}
		}
	}
	condition := metav1.Condition{Type: kueue.LocalQueueActive, Status: metav1.ConditionTrue, Reason: "Ready", Message: "Can submit new workloads to ClusterQueue " + string(q.Spec.ClusterQueue), ObservedGeneration: q.Generation}
	switch {
	case !ok:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "ClusterQueueDoesNotExist", "ClusterQueue "+string(q.Spec.ClusterQueue)+" does not exist"
	case !known.Active:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "ClusterQueueIsInactive", "ClusterQueue "+string(q.Spec.ClusterQueue)+" is inactive: "+known.Inactive
	case q.Spec.StopPolicy != nil && *q.Spec.StopPolicy != kueue.None:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "Stopped", "The LocalQueue is stopped"
	}
	meta.SetStatusCondition(&st.Conditions, condition)
	if equality.Semantic.DeepEqual(q.Status, changed.Status) {
		return nil
	}
	return client.IgnoreNotFound(s.client.Status().Update(ctx, changed, client.FieldOwner(FieldOwner)))
}
