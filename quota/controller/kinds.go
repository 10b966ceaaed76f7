package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/config"
	"github.com/sluice-gpu/sluice/quota/jobs"
)

// kindWatch keeps a watch on the jobs of each governed kind that the cluster
// serves. It begins when the kind's CustomResourceDefinition appears and ends
// when it goes; a kind that is not there costs nothing.
type kindWatch struct {
	*core
	cache  cache.Cache
	mapper meta.RESTMapper
	live   client.Reader

	mu      sync.Mutex
	running map[*jobs.Kind]toolscache.InformerSynced
}

// definition is a CustomResourceDefinition.
var definition = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

func definitionMetadata() *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(definition)
	return m
}

// begin watches the kinds that are served when the controller starts. What it
// returns is true of each once all its jobs were taken in.
func (k *kindWatch) begin(ctx context.Context) ([]toolscache.InformerSynced, error) {
	var synced []toolscache.InformerSynced
	for _, kind := range k.kinds.All() {
		_, err := k.mapper.RESTMapping(kind.GroupVersionKind().GroupKind(), kind.Version)
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look for %s: %w", kind.GroupVersionKind(), err)
		}
		if err := k.start(ctx, kind); err != nil {
			return nil, err
		}
		synced = append(synced, k.running[kind])
	}
	return synced, nil
}

// Reconcile starts or ends the watches of a CustomResourceDefinition's kinds.
func (k *kindWatch) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	rows := slices.DeleteFunc(k.kinds.All(), func(kind *jobs.Kind) bool { return kind.CRD() != req.Name })
	if len(rows) == 0 {
		return ctrl.Result{}, nil
	}
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(definition)
	if err := k.live.Get(ctx, req.NamespacedName, crd); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	for _, kind := range rows {
		if !serves(crd, kind.Version) {
			if err := k.stop(ctx, kind); err != nil {
				return ctrl.Result{}, err
			}
			continue
		}
		if err := k.start(ctx, kind); meta.IsNoMatchError(err) {
			// It takes the API server a moment to serve what it has accepted.
			return ctrl.Result{RequeueAfter: recheck}, nil
		} else if err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{}, nil
}

// serves says whether a definition is in force for a version.
func serves(crd *unstructured.Unstructured, version string) bool {
	if crd.GetDeletionTimestamp() != nil {
		return false
	}
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	established := slices.ContainsFunc(conditions, func(c any) bool {
		m, _ := c.(map[string]any)
		return m["type"] == "Established" && m["status"] == "True"
	})
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	return established && slices.ContainsFunc(versions, func(v any) bool {
		m, _ := v.(map[string]any)
		return m["name"] == version && m["served"] == true
	})
}

func example(kind *jobs.Kind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind.GroupVersionKind())
	return u
}

func (k *kindWatch) start(ctx context.Context, kind *jobs.Kind) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.running[kind] != nil {
		return nil
	}
	informer, err := k.cache.GetInformer(ctx, example(kind), cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	registration, err := informer.AddEventHandler(k.handler())
	if err != nil {
		return err
	}
	k.running[kind] = registration.HasSynced
	ctrl.LoggerFrom(ctx).V(2).Info("jobs of a kind are governed", "kind", kind.GroupVersionKind())
	return nil
}

// stop ends a watch. Its jobs are gone with the definition, and so are, in a
// moment, their pods.
func (k *kindWatch) stop(ctx context.Context, kind *jobs.Kind) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.running[kind] == nil {
		return nil
	}
	if err := k.cache.RemoveInformer(ctx, example(kind)); err != nil {
		return err
	}
	delete(k.running, kind)
	k.core.lostKind(kind)
	ctrl.LoggerFrom(ctx).V(2).Info("jobs of a kind are served no more", "kind", kind.GroupVersionKind())
	return nil
}

func (c *core) handler() toolscache.ResourceEventHandlerFuncs {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    c.saw,
		UpdateFunc: func(_, now any) { c.saw(now) },
		DeleteFunc: func(gone any) {
			if unknown, ok := gone.(toolscache.DeletedFinalStateUnknown); ok {
				gone = unknown.Obj
			}
			c.lost(gone)
		},
	}
}

// lostKind takes in that all jobs of a kind are gone.
func (c *core) lostKind(kind *jobs.Kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, f := range c.owners {
		if f.kind == kind {
			c.lostJob(uid)
		}
	}
	c.wake()
}

// tellJobsTo lets the core ask for jobs to be looked at.
func (c *core) tellJobsTo(_ context.Context, queue workqueue.TypedRateLimitingInterface[jobRequest]) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tellJob = func(r jobRequest) { queue.Add(r) }
	for r := range c.jobs {
		queue.Add(r)
	}
	return nil
}

// tellPodsTo lets the core ask for pods to be looked at.
func (c *core) tellPodsTo(_ context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tellPod = func(name client.ObjectKey) { queue.Add(ctrl.Request{NamespacedName: name}) }
	return nil
}

// jobOf maps a Workload to the job that it belongs to.
func (c *core) jobOf(_ context.Context, wl client.Object) []jobRequest {
	owner := metav1.GetControllerOf(wl)
	if owner == nil {
		return nil
	}
	kind := c.kinds.Find(owner.APIVersion, owner.Kind)
	if kind == nil {
		return nil
	}
	return []jobRequest{{kind, client.ObjectKey{Namespace: wl.GetNamespace(), Name: owner.Name}}}
}

// addJobs adds the controllers of jobs, and of the kinds that are served.
func addJobs(mgr ctrl.Manager, cfg *config.QuotaConfiguration, s *sources, watch *kindWatch, live client.Reader) error {
	err := ctrl.NewControllerManagedBy(mgr).Named("kind").
		// Every replica knows the jobs: the webhook asks for them.
		WithOptions(controller.Options{NeedLeaderElection: ptr.To(false)}).
		WatchesRawSource(source.Kind(mgr.GetCache(), definitionMetadata(), &handler.TypedEnqueueRequestForObject[*metav1.PartialObjectMetadata]{})).
		Complete(watch)
	if err != nil {
		return fmt.Errorf("kind controller: %w", err)
	}
	err = builder.TypedControllerManagedBy[jobRequest](mgr).Named("job").
		WithOptions(controller.TypedOptions[jobRequest]{MaxConcurrentReconciles: cfg.Concurrency}).
		WatchesRawSource(source.TypedFunc[jobRequest](s.tellJobsTo)).
		Watches(&kueue.Workload{}, handler.TypedEnqueueRequestsFromMapFunc[client.Object, jobRequest](s.jobOf)).
		Complete(&jobReconciler{sources: s, live: live})
	if err != nil {
		return fmt.Errorf("job controller: %w", err)
	}
	return nil
}
