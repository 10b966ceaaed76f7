package controller

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/sluice-gpu/sluice/quota/ticket"
)

// ledger answers past the caches which Workloads of a namespace have tickets:
// the last leader may have written one a moment ago, and claims for extended
// resources are made by the scheduler. Whoever asks is answered by a list that
// began after it asked; all who ask while a list is under way share the next.
type ledger struct {
	*core
	live       client.Reader
	lists      sync.Mutex
	namespaces map[string]*lookups
}

// lookups are the lists of one namespace: the one under way, and the one that
// comes after it, if anybody waits for it.
type lookups struct{ now, next *lookup }

type lookup struct {
	done    chan struct{}
	charged map[string]bool
	err     error
}

func newLedger(c *core, live client.Reader) *ledger {
	return &ledger{core: c, live: live, namespaces: map[string]*lookups{}}
}

// charged says whether a claim has a ticket of the Workload.
func (l *ledger) charged(ctx context.Context, wl *kueue.Workload) (bool, error) {
	if !l.mayHaveTickets(wl) {
		return false, nil
	}
	mine := l.join(ctx, wl.Namespace)
	select {
	case <-mine.done:
		return mine.charged[wl.Name], mine.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// mayHaveTickets says whether anything was given to a Workload that a ticket
// could pay with, and whether there is anybody to use it: a Workload that
// belongs to nothing has no pods.
func (c *core) mayHaveTickets(wl *kueue.Workload) bool {
	if wl.Status.Admission == nil {
		return true
	}
	if metav1.GetControllerOf(wl) == nil && len(wl.OwnerReferences) == 0 {
		return false
	}
	for i := range wl.Status.Admission.PodSetAssignments {
		if c.deviceFlavor(&wl.Status.Admission.PodSetAssignments[i]) != "" {
			return true
		}
	}
	return false
}

// join returns a list that has not begun yet.
func (l *ledger) join(ctx context.Context, namespace string) *lookup {
	l.lists.Lock()
	defer l.lists.Unlock()
	n := l.namespaces[namespace]
	if n == nil {
		n = &lookups{}
		l.namespaces[namespace] = n
	}
	if n.next == nil {
		n.next = &lookup{done: make(chan struct{})}
		if n.now == nil {
			l.begin(ctx, namespace, n)
			return n.now
		}
	}
	return n.next
}

// begin starts the next list. The lock is held.
func (l *ledger) begin(ctx context.Context, namespace string, n *lookups) {
	mine := n.next
	n.now, n.next = mine, nil
	ctx = context.WithoutCancel(ctx)
	go func() {
		mine.charged, mine.err = l.list(ctx, namespace)
		close(mine.done)
		l.lists.Lock()
		defer l.lists.Unlock()
		n.now = nil
		if n.next != nil {
			l.begin(ctx, namespace, n)
			return
		}
		delete(l.namespaces, namespace)
	}()
}

func (l *ledger) list(ctx context.Context, namespace string) (map[string]bool, error) {
	// Only annotations are looked at.
	claims := &metav1.PartialObjectMetadataList{}
	claims.SetGroupVersionKind(resourceapi.SchemeGroupVersion.WithKind("ResourceClaimList"))
	if err := l.live.List(ctx, claims, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	charged := map[string]bool{}
	for i := range claims.Items {
		if name := claims.Items[i].Annotations[ticket.ByWorkload]; name != "" {
			charged[name] = true
		}
	}
	return charged, nil
}
