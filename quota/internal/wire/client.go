package wire

import (
	"context"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// resource is that of Workloads.
const resource = "workloads"

// Workloads is the way to the API's Workloads.
type Workloads struct {
	api    rest.Interface
	params runtime.ParameterCodec
}

// New returns the way to Workloads by a connection that others use as well.
func New(cfg *rest.Config, connection *http.Client, scheme *runtime.Scheme) (*Workloads, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath, cfg.GroupVersion = "/apis", &kueue.SchemeGroupVersion
	cfg.ContentType = runtime.ContentTypeJSON
	cfg.NegotiatedSerializer = newCodecs(scheme)
	api, err := rest.RESTClientForConfigAndClient(cfg, connection)
	if err != nil {
		return nil, fmt.Errorf("a client for Workloads: %w", err)
	}
	return &Workloads{api: api, params: runtime.NewParameterCodec(scheme)}, nil
}

// NewInformer is toolscache.NewSharedIndexInformer, but for Workloads, which it
// gets its own way, those of all namespaces.
func (w *Workloads) NewInformer(lw toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	if _, ok := object.(*kueue.Workload); ok {
		lw = &toolscache.ListWatch{ListWithContextFunc: w.list, WatchFuncWithContext: w.watch}
	}
	return toolscache.NewSharedIndexInformer(lw, object, resync, indexers)
}

func (w *Workloads) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	all := &kueue.WorkloadList{}
	return all, w.api.Get().Resource(resource).VersionedParams(&o, w.params).Do(ctx).Into(all)
}

func (w *Workloads) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch, o.AllowWatchBookmarks = true, true
	return w.api.Get().Resource(resource).VersionedParams(&o, w.params).Watch(ctx)
}

// Reader reads Workloads past the cache, and the rest by another reader.
func (w *Workloads) Reader(others client.Reader) client.Reader { return &reader{others, w} }

type reader struct {
	client.Reader
	workloads *Workloads
}

// List implements client.Reader.
func (r *reader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	all, ok := list.(*kueue.WorkloadList)
	if !ok {
		return r.Reader.List(ctx, list, opts...)
	}
	o := (&client.ListOptions{}).ApplyOptions(opts)
	return r.workloads.api.Get().NamespaceIfScoped(o.Namespace, o.Namespace != "").Resource(resource).
		VersionedParams(o.AsListOptions(), r.workloads.params).Do(ctx).Into(all)
}

// Client writes Workloads, and leaves the rest to another client.
func (w *Workloads) Client(others client.Client) client.Client { return &writer{others, w} }

// send sends what a request is to make of a Workload, and reads what it is then.
func (w *Workloads) send(ctx context.Context, r *rest.Request, how runtime.Object, what, then *kueue.Workload) error {
	return r.Namespace(what.Namespace).Resource(resource).VersionedParams(how, w.params).Body(what).Do(ctx).Into(then)
}

type writer struct {
	client.Client
	workloads *Workloads
}

// Create implements client.Writer.
func (c *writer) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	wl, ok := o.(*kueue.Workload)
	if !ok {
		return c.Client.Create(ctx, o, opts...)
	}
	var how client.CreateOptions
	how.ApplyOptions(opts)
	return c.workloads.send(ctx, c.workloads.api.Post(), how.AsCreateOptions(), wl, wl)
}

// Update implements client.Writer.
func (c *writer) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	wl, ok := o.(*kueue.Workload)
	if !ok {
		return c.Client.Update(ctx, o, opts...)
	}
	var how client.UpdateOptions
	how.ApplyOptions(opts)
	return c.workloads.send(ctx, c.workloads.api.Put().Name(wl.Name), how.AsUpdateOptions(), wl, wl)
}

// Status implements client.StatusClient.
func (c *writer) Status() client.SubResourceWriter {
	return &statusWriter{c.Client.Status(), c.workloads}
}

type statusWriter struct {
	client.SubResourceWriter
	workloads *Workloads
}

// Update implements client.SubResourceWriter. Only the status is sent, against the
// version that is named: the API server takes the rest from what it has.
func (s *statusWriter) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	wl, ok := o.(*kueue.Workload)
	if !ok {
		return s.SubResourceWriter.Update(ctx, o, opts...)
	}
	var how client.SubResourceUpdateOptions
	how.ApplyOptions(opts)
	part := &kueue.Workload{
		ObjectMeta: metav1.ObjectMeta{Namespace: wl.Namespace, Name: wl.Name, UID: wl.UID, ResourceVersion: wl.ResourceVersion},
		Status:     wl.Status,
	}
	return s.workloads.send(ctx, s.workloads.api.Put().Name(wl.Name).SubResource("status"), how.AsUpdateOptions(), part, wl)
}
