package controller

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-gpu/sluice/quota/config"
)

// DefaultQueue is the LocalQueue of jobs that name none, where the configuration
// says so.
const DefaultQueue = "default"

// unnamed says what becomes of jobs that name no queue.
type unnamed struct {
	// defaulted puts them into the namespace's default queue, held suspends them
	// where there is none.
	defaulted, held bool
	in              labels.Selector
	namespaces      map[string]labels.Set
}

func newUnnamed(c *config.QuotaConfiguration) unnamed {
	in, err := metav1.LabelSelectorAsSelector(c.ManagedJobsNamespaceSelector)
	if err != nil {
		in = labels.Nothing() // Decode has refused it
	}
	return unnamed{defaulted: c.LocalQueueDefaulting, held: c.ManageJobsWithoutQueueName, in: in, namespaces: map[string]labels.Set{}}
}

// holds says whether jobs of a namespace that name no queue are suspended. A
// namespace that is not known is about to be.
func (u *unnamed) holds(namespace string) bool {
	set, known := u.namespaces[namespace]
	return u.held && known && u.in.Matches(set)
}

// Unnamed is what the webhook does with a job that names no queue: the queue that
// it puts it into, "" for none, and whether it suspends it.
func (c *Controller) Unnamed(ctx context.Context, namespace string) (queue string, suspend bool) {
	c.core.mu.Lock()
	u := &c.core.unnamed
	set, known := u.namespaces[namespace]
	in, suspend := known && u.in.Matches(set), u.holds(namespace)
	c.core.mu.Unlock()
	if in && u.defaulted && c.HasLocalQueue(ctx, namespace, DefaultQueue) {
		return DefaultQueue, true
	}
	return "", suspend
}
