package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/beside"
	"github.com/sluice-gpu/sluice/quota/lifecycle"
)

// This file holds admission up while a manager of Kueue is at work in the
// cluster. Nothing is decided then, no quota is given, no gate is opened and no
// ticket is written; what runs goes on, and what ends is released. It goes on by
// itself when the manager is gone.

// halt says why nothing may be admitted, "" that it may again.
func (c *core) halt(why string) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed = (c.halted == "") != (why == "")
	c.halted = why
	if !changed || why != "" {
		return changed
	}
	for id := range c.works {
		c.tell(id)
	}
	c.room = true
	c.wake()
	return changed
}

// isHalted says whether nothing may be admitted.
func (c *core) isHalted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.halted != ""
}

// noteForeign remembers that quota was reserved for a workload while nothing was
// admitted here: it was not counted here, and is given back before anything goes
// on. What was there when this replica came is told apart by recallForeign.
func (c *core) noteForeign(w *work, before *kueue.Workload) {
	if w.object.Status.Admission == nil {
		w.foreign = false
	} else if c.halted != "" && (before != nil || c.caughtUp) && (before == nil || before.Status.Admission == nil) {
		w.foreign = true
	}
}

// recallForeign finds the same out about a Workload that was there before, by who
// wrote what it shows; o has its managedFields. One that something is in use by is
// counted, whoever admitted it.
func (c *core) recallForeign(o *kueue.Workload) {
	w := c.works[workloadID(o.Namespace, o.Name)]
	if w == nil || w.object == nil || w.object.UID != o.UID || granted(w.object) == nil || c.beside {
		return
	}
	if controllerutil.ContainsFinalizer(o, Finalizer) && byKueue(o) && !c.inUse(w.id) {
		w.foreign = true
		c.tell(w.id)
	}
}

// kueueManagers begins the names under which Kueue's manager writes.
const kueueManagers = "kueue"

// byKueue says whether the quota that a Workload shows was reserved by Kueue, and
// no part of it here. The API server keeps who wrote a field, and to write this one
// takes the right to write statuses of Workloads. What Kueue was told to admit, by
// what it costs (engine: kueue), it counted.
func byKueue(o *kueue.Workload) bool {
	if o.Status.Admission == nil || beside.Charges(o) != nil {
		return false
	}
	theirs := false
	for i := range o.ManagedFields {
		e := &o.ManagedFields[i]
		var fields struct {
			Status struct {
				Admission json.RawMessage `json:"f:admission"`
			} `json:"f:status"`
		}
		if e.FieldsV1 == nil || json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields) != nil || fields.Status.Admission == nil {
			continue
		}
		if e.Manager == FieldOwner {
			return false
		}
		theirs = theirs || strings.HasPrefix(e.Manager, kueueManagers)
	}
	return theirs
}

// elsewhere is why such a reservation is given back.
var elsewhere = lifecycle.Verdict{Reason: "AdmittedElsewhere", Message: "Another manager reserved quota for it while this controller admitted nothing; it waits for an admission that counts its devices"}

// lookout watches for a manager of Kueue.
type lookout struct {
	*core
	live     client.Reader
	cache    cache.Cache
	recorder events.EventRecorder
	elected  <-chan struct{}
	// manager is what was found last, where a manager of Kueue is to admit.
	manager *string
	// seen is when each Lease was seen being renewed, by namespace.
	seen map[string]time.Time
	// news are Leases that are there or were renewed.
	news chan leaseNews
}

// leaseNews is a Lease's namespace, and whether it was seen being renewed.
type leaseNews struct {
	namespace string
	renewed   bool
}

const (
	// lookoutEvery is how often it is looked whether a Lease has run out.
	lookoutEvery = 5 * time.Second
	// hooksEvery is how often webhooks are looked for: they come with a manager,
	// whose Lease is seen at once.
	hooksEvery = 30 * time.Second
)

// mayStart says why the controller must not start here: the kinds of the quota API
// are not served, or a manager of Kueue is at work that is not the one to admit.
func (c *core) mayStart(ctx context.Context, live client.Reader, kinds meta.RESTMapper) error {
	want := kueue.SchemeGroupVersion
	if _, err := kinds.RESTMapping(want.WithKind("Workload").GroupKind(), want.Version); meta.IsNoMatchError(err) {
		return fmt.Errorf("%s is not served: the kinds of the quota API are not installed, or are those of an older Kueue; apply the chart's folder crds with kubectl apply --server-side --force-conflicts", want)
	} else if err != nil {
		return err
	}
	if c.beside {
		return nil
	}
	found, err := beside.Find(ctx, live, c.now())
	if err != nil || found == "" {
		return err
	}
	return fmt.Errorf("a manager of Kueue is at work in this cluster: %s; %s", found, beside.Advice)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: what another
// replica does meanwhile must be known when this one begins to lead.
func (*lookout) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (l *lookout) Start(ctx context.Context) error {
	informer, err := l.cache.GetInformer(ctx, &coordinationv1.Lease{})
	if err != nil {
		return err
	}
	send := func(o any, renewed bool) {
		lease, ok := o.(*coordinationv1.Lease)
		if !ok {
			return
		}
		select {
		case l.news <- leaseNews{lease.Namespace, renewed}:
		case <-ctx.Done():
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { send(o, false) },
		UpdateFunc: func(before, after any) {
			a, was := before.(*coordinationv1.Lease)
			b, is := after.(*coordinationv1.Lease)
			send(after, was && is && !b.Spec.RenewTime.Equal(a.Spec.RenewTime))
		},
	}); err != nil {
		return err
	}
	tick := time.NewTicker(lookoutEvery)
	defer tick.Stop()
	hooks, looked := "", l.now()
	for first := true; ; first = false {
		if now := l.now(); !first && now.Sub(looked) >= hooksEvery {
			looked = now
			if found, err := beside.FindWebhooks(ctx, l.live); err == nil {
				hooks = found
			} else if ctx.Err() == nil {
				log.FromContext(ctx).Error(err, "webhooks not looked at")
			}
		}
		found, err := l.held(ctx)
		if err != nil {
			return err
		}
		if found == "" {
			found = hooks
		}
		l.found(ctx, found)
		select {
		case <-ctx.Done():
			return nil
		case n := <-l.news:
			if n.renewed {
				l.seen[n.namespace] = l.now()
			}
		case <-tick.C:
		}
	}
}

// held says by whom the Lease of Kueue's manager is held, "" if by nobody.
func (l *lookout) held(ctx context.Context) (string, error) {
	var leases coordinationv1.LeaseList
	if err := l.cache.List(ctx, &leases); err != nil {
		if ctx.Err() != nil {
			return "", nil
		}
		return "", err
	}
	for i := range leases.Items {
		if o := &leases.Items[i]; beside.Held(o, l.seen[o.Namespace], l.now()) {
			return beside.Describe(o), nil
		}
	}
	return "", nil
}

// found takes in what was found.
func (l *lookout) found(ctx context.Context, what string) {
	if l.beside {
		if first := l.manager == nil; first || *l.manager != what {
			l.manager = &what
			log.FromContext(ctx).WithName("beside").Info("who admits", "manager", cmp.Or(what, "none is at work: nothing is admitted until Kueue's manager runs"))
		}
		return
	}
	if !l.halt(what) {
		return
	}
	logger := log.FromContext(ctx).WithName("beside")
	if what != "" {
		logger.Error(nil, "nothing is admitted: a manager of Kueue is at work in this cluster", "found", what, "do", beside.Advice)
		l.tellQueues(ctx, corev1.EventTypeWarning, "Halted", "Sluice admits nothing: a manager of Kueue is at work in this cluster: "+what+"; "+beside.Advice)
		return
	}
	logger.Info("the manager of Kueue is gone: workloads are admitted again")
	l.tellQueues(ctx, corev1.EventTypeNormal, "Resumed", "The manager of Kueue is gone: Sluice admits workloads again")
}

// tellQueues puts an event on every ClusterQueue, in the replica that leads.
func (l *lookout) tellQueues(ctx context.Context, kind, reason, message string) {
	select {
	case <-l.elected:
	default:
		return
	}
	var queues kueue.ClusterQueueList
	if err := l.cache.List(ctx, &queues); err != nil {
		return
	}
	for i := range queues.Items {
		l.recorder.Eventf(&queues.Items[i], nil, kind, reason, "Quota", "%s", message)
	}
}

var haltedGauge = prometheus.NewDesc("sluice_quota_halted", "1 while nothing is admitted because a manager of Kueue is at work in the cluster.", nil, nil)

// haltMetric tells whether admission is held up.
type haltMetric struct{ *core }

// Describe implements prometheus.Collector.
func (haltMetric) Describe(to chan<- *prometheus.Desc) { to <- haltedGauge }

// Collect implements prometheus.Collector.
func (m haltMetric) Collect(to chan<- prometheus.Metric) {
	value := 0.0
	if m.isHalted() {
		value = 1
	}
	to <- prometheus.MustNewConstMetric(haltedGauge, prometheus.GaugeValue, value)
}
