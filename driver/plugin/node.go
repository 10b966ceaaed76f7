package plugin

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// pluginResource is what NVIDIA's device plugin offers. Sluice offers it, too,
// but through a DeviceClass, never in the node's status.
const pluginResource = "nvidia.com/gpu"

// ownNode is what the driver has to know of its node's object.
type ownNode struct {
	name   string
	client kubernetes.Interface
	// changed has a value after something changed that matters here.
	changed chan struct{}

	mu   sync.Mutex
	seen *nodeFacts
}

type nodeFacts struct {
	uid    types.UID
	labels map[string]string
	// devicePlugin tells that the node's status offers cards as well.
	devicePlugin bool
}

func newOwnNode(name string, client kubernetes.Interface) *ownNode {
	return &ownNode{name: name, client: client, changed: make(chan struct{}, 1)}
}

// facts are what was seen last; the first time, the API server is asked.
func (o *ownNode) facts(ctx context.Context) (nodeFacts, error) {
	if f := o.last(); f != nil {
		return *f, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	node, err := o.client.CoreV1().Nodes().Get(ctx, o.name, metav1.GetOptions{})
	if err != nil {
		return nodeFacts{}, fmt.Errorf("reading the labels of node %s: %w", o.name, err)
	}
	o.see(node)
	return *o.last(), nil
}

func (o *ownNode) last() *nodeFacts {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen
}

// uid is the node's, if it is known.
func (o *ownNode) uid() types.UID {
	if f := o.last(); f != nil {
		return f.uid
	}
	return ""
}

func (o *ownNode) see(node *corev1.Node) {
	cards := node.Status.Allocatable[pluginResource]
	f := &nodeFacts{uid: node.UID, labels: node.Labels, devicePlugin: cards.Sign() > 0}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen != nil && o.seen.uid == f.uid && o.seen.devicePlugin == f.devicePlugin && maps.Equal(o.seen.labels, f.labels) {
		return // a kubelet that says how it is
	}
	o.seen = f
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// watch follows the node until ctx ends. While the API server does not answer,
// what was seen last stays true.
func (o *ownNode) watch(ctx context.Context) {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, o.name).String()
	nodes := o.client.CoreV1().Nodes()
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = only
			return nodes.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = only
			return nodes.Watch(ctx, options)
		},
	}, o.client)
	see := func(obj any) {
		if node, ok := obj.(*corev1.Node); ok && node.Name == o.name {
			o.see(node)
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: lw,
		ObjectType:    &corev1.Node{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    see,
			UpdateFunc: func(_, obj any) { see(obj) },
		},
	})
	informer.RunWithContext(ctx)
}
