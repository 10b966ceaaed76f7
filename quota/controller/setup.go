package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/beside"
	"github.com/sluice-gpu/sluice/quota/config"
	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/internal/wire"
	"github.com/sluice-gpu/sluice/quota/jobs"
)

// Scheme knows every type that the controller reads or writes.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(kueue.AddToScheme(s))
	return s
}

// NewCache is the cache that the manager has to have. It is small, as what nobody
// here reads is dropped, and takes in Workloads in the cheapest way.
func NewCache(cfg *rest.Config, o cache.Options) (cache.Cache, error) {
	direct, err := wire.New(cfg, o.HTTPClient, o.Scheme)
	if err != nil {
		return nil, err
	}
	o.NewInformer = direct.NewInformer
	o.DefaultTransform = cache.TransformStripManagedFields()
	o.ByObject = map[client.Object]cache.ByObject{
		// Of all Leases, those of nodes among them, only one kind is of interest.
		&coordinationv1.Lease{}: {Field: fields.OneTermEqualSelector("metadata.name", beside.LeaseName)},
		&kueue.Workload{}:       {Transform: openWorkload},
	}
	return cache.New(cfg, o)
}

// Controller is the quota controller, set up on a manager.
type Controller struct {
	core  *core
	ready <-chan struct{}
	pulse *pulse
	live  client.Reader
	// templates are those that limits of pods become.
	templates *templates
}

// Ready is a readiness check: everything that the API shows has been taken in.
func (c *Controller) Ready(*http.Request) error {
	select {
	case <-c.ready:
		return nil
	default:
		return errors.New("the API's objects have not all been read yet")
	}
}

// stuckAfter is how long nobody may get at the core before the process is
// better started anew. Nothing under its lock takes longer than a second or so.
const stuckAfter = time.Minute

// pulse notes when the core could last be got at.
type pulse struct{ last atomic.Int64 }

func (p *pulse) watch(ctx context.Context, c *core, every time.Duration) {
	p.last.Store(c.now().UnixNano())
	go func() {
		for ctx.Err() == nil {
			c.mu.Lock()
			p.last.Store(c.now().UnixNano())
			c.mu.Unlock()
			time.Sleep(every)
		}
	}()
}

func (p *pulse) check(now time.Time) error {
	if still := now.Sub(time.Unix(0, p.last.Load())); still > stuckAfter {
		return fmt.Errorf("nothing could be decided for %s: one computation does not end", still.Round(time.Second))
	}
	return nil
}

// Alive is a liveness check: it fails where one computation holds up all others.
func (c *Controller) Alive(*http.Request) error { return c.pulse.check(c.core.now()) }

// watched are the kinds that facts come from.
func watched() []client.Object {
	return []client.Object{
		&kueue.ResourceFlavor{}, &kueue.Cohort{}, &kueue.ClusterQueue{}, &kueue.LocalQueue{}, &kueue.Workload{}, &kueue.AdmissionCheck{},
		&corev1.Namespace{}, &corev1.Node{}, &corev1.Pod{},
		&resourceapi.DeviceClass{}, &resourceapi.ResourceSlice{}, &resourceapi.ResourceClaim{}, &resourceapi.ResourceClaimTemplate{},
	}
}

// QPS and Burst bound the requests that one replica makes a second. The API
// server's own fairness is what protects it; these only stop a runaway loop.
const (
	QPS   = 1000
	Burst = 2000
)

// Setup adds the controller to a manager. Metrics go to the registerer.
func Setup(ctx context.Context, mgr ctrl.Manager, cfg *config.QuotaConfiguration, registry prometheus.Registerer) (*Controller, error) {
	c := newCore(cfg)
	if err := c.mayStart(ctx, mgr.GetAPIReader(), mgr.GetRESTMapper()); err != nil {
		return nil, err
	}
	direct, err := wire.New(mgr.GetConfig(), mgr.GetHTTPClient(), mgr.GetScheme())
	if err != nil {
		return nil, err
	}
	api, live := direct.Client(mgr.GetClient()), direct.Reader(mgr.GetAPIReader())
	if c.beside {
		api, live = beside.NewClient(api), beside.NewReader(live)
	}
	m := newMetrics(registry)
	registry.MustRegister(roomMetrics{c}, haltMetric{c})
	recorder, err := NewRecorder(mgr)
	if err != nil {
		return nil, err
	}
	s := &sources{core: c, client: api, recorder: recorder, metrics: m}

	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, podsByClaim, claimNames); err != nil {
		return nil, err
	}
	watch := &kindWatch{core: c, cache: mgr.GetCache(), mapper: mgr.GetRESTMapper(), live: live, running: map[*jobs.Kind]toolscache.InformerSynced{}}
	synced, err := watch.begin(ctx)
	if err != nil {
		return nil, err
	}
	more, err := optional(mgr)
	if err != nil {
		return nil, err
	}
	ready, err := c.listen(ctx, mgr.GetCache(), more, synced...)
	if err != nil {
		return nil, err
	}
	if err := mgr.Add(&decider{core: c, metrics: m, ready: ready, caughtUp: func(ctx context.Context) error { return c.catchUp(ctx, live) }}); err != nil {
		return nil, err
	}
	out := &lookout{core: c, live: live, cache: mgr.GetCache(), recorder: recorder, elected: mgr.Elected(), seen: map[string]time.Time{}, news: make(chan leaseNews)}
	if err := mgr.Add(out); err != nil {
		return nil, err
	}
	limits := &templates{core: c, client: api, live: live}
	if err := mgr.Add(limits); err != nil {
		return nil, err
	}
	if err := addAdmission(mgr, c, api, m, recorder); err != nil {
		return nil, err
	}

	w := &workloads{sources: s, live: live, ledger: newLedger(c, live)}
	w.reasons = newReasons(w)
	if err := mgr.Add(w.reasons); err != nil {
		return nil, err
	}
	opts := controller.Options{MaxConcurrentReconciles: cfg.Concurrency}
	err = ctrl.NewControllerManagedBy(mgr).Named("workload").WithOptions(opts).
		WatchesRawSource(source.Func(c.tellTo)).
		Complete(w)
	if err != nil {
		return nil, fmt.Errorf("workload controller: %w", err)
	}
	err = ctrl.NewControllerManagedBy(mgr).Named("group").WithOptions(opts).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(groupOf)).
		Watches(&kueue.Workload{}, handler.EnqueueRequestsFromMapFunc(groupOf)).
		Complete(&groupReconciler{sources: s})
	if err != nil {
		return nil, fmt.Errorf("group controller: %w", err)
	}
	if err := addJobs(mgr, cfg, s, watch, live); err != nil {
		return nil, err
	}
	err = ctrl.NewControllerManagedBy(mgr).Named("pod").WithOptions(opts).
		For(&corev1.Pod{}, builder.WithPredicates(c.others())).
		Watches(&kueue.Workload{}, handler.EnqueueRequestsFromMapFunc(c.podsOfWorkload), builder.WithPredicates(forPods)).
		WatchesRawSource(source.Func(c.tellPodsTo)).
		Watches(&resourceapi.ResourceClaim{}, handler.EnqueueRequestsFromMapFunc(podsOfClaim(api)), builder.WithPredicates(c.others())).
		Complete(&podReconciler{sources: s, live: live})
	if err != nil {
		return nil, fmt.Errorf("pod controller: %w", err)
	}
	err = ctrl.NewControllerManagedBy(mgr).Named("claim").WithOptions(opts).
		For(&resourceapi.ResourceClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(isNamed))).
		Watches(&kueue.Workload{}, handler.EnqueueRequestsFromMapFunc(ownerOf(resourceapi.SchemeGroupVersion.String(), "ResourceClaim"))).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(claimsOfPod)).
		Complete(&claimReconciler{sources: s, live: live})
	if err != nil {
		return nil, fmt.Errorf("claim controller: %w", err)
	}
	p := &pulse{}
	p.watch(ctx, c, time.Second)
	return &Controller{core: c, live: live, ready: ready, pulse: p, templates: limits}, nil
}

// String draws the queues and what they use, for people who look for a fault.
func (c *Controller) String() string {
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	return c.core.engine.String()
}

// listen feeds everything that the caches see to the core. The channel is
// closed once all that was there at the start has been taken in.
func (c *core) listen(ctx context.Context, informers cache.Cache, more []client.Object, synced ...toolscache.InformerSynced) (<-chan struct{}, error) {
	for _, o := range append(watched(), more...) {
		informer, err := informers.GetInformer(ctx, o, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", o, err)
		}
		registration, err := informer.AddEventHandler(c.handler())
		if err != nil {
			return nil, err
		}
		synced = append(synced, registration.HasSynced)
	}
	ready := make(chan struct{})
	go func() {
		if toolscache.WaitForCacheSync(ctx.Done(), synced...) {
			c.mu.Lock()
			c.synced = true
			c.mu.Unlock()
			close(ready)
		}
	}()
	return ready, nil
}

// catchUp reads what quota is held past the caches, once, before the first
// decision: the last leader may have written it a moment ago. The reconcilers
// start when the caches are full, which is before all of it is taken in here; so
// until this is done nothing counts as free and nothing is opened.
func (c *core) catchUp(ctx context.Context, live client.Reader) error {
	var workloads kueue.WorkloadList
	if err := live.List(ctx, &workloads); err != nil {
		return err
	}
	var claims resourceapi.ResourceClaimList
	if err := live.List(ctx, &claims); err != nil {
		return err
	}
	for i := range claims.Items {
		c.saw(&claims.Items[i])
	}
	for i := range workloads.Items {
		c.saw(&workloads.Items[i])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range workloads.Items {
		c.recallForeign(&workloads.Items[i])
	}
	c.caughtUp, c.decides = true, !c.beside
	for id := range c.works {
		c.tell(id)
	}
	return nil
}

// tellTo lets the core ask for Workloads to be looked at.
func (c *core) tellTo(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tell = func(id engine.WorkloadID) {
		// Whoever is not known yet is looked at when he is.
		if c.works[id] != nil {
			queue.Add(reconcile.Request{NamespacedName: nameOf(id)})
		}
	}
	for id := range c.works {
		c.tell(id)
	}
	return nil
}

// ownerOf maps a Workload to the object of a kind that it belongs to.
func ownerOf(apiVersion, kind string) handler.MapFunc {
	return func(_ context.Context, o client.Object) []reconcile.Request {
		owner := metav1.GetControllerOf(o)
		if owner == nil || owner.APIVersion != apiVersion || owner.Kind != kind {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: owner.Name}}}
	}
}

// podsOfWorkload maps a Workload to its pods.
func (c *core) podsOfWorkload(_ context.Context, o client.Object) []reconcile.Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []reconcile.Request
	for _, p := range c.podsOf[workloadID(o.GetNamespace(), o.GetName())] {
		all = append(all, reconcile.Request{NamespacedName: p.name})
	}
	if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == "Pod" && len(all) == 0 {
		all = append(all, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: owner.Name}})
	}
	return all
}

// podsOfClaim maps a claim to the pods that wait for it.
func podsOfClaim(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == "Pod" {
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: owner.Name}}}
		}
		var pods corev1.PodList
		if reader.List(ctx, &pods, client.InNamespace(o.GetNamespace()), client.MatchingFields{podsByClaim: o.GetName()}) != nil {
			return nil
		}
		var all []reconcile.Request
		for i := range pods.Items {
			all = append(all, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&pods.Items[i])})
		}
		return all
	}
}

// claimsOfPod maps a pod to the claims that it refers to by name.
func claimsOfPod(_ context.Context, o client.Object) []reconcile.Request {
	var all []reconcile.Request
	for _, name := range claimNames(o) {
		all = append(all, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}})
	}
	return all
}
