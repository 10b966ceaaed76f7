package controller

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// behind has a client's caches show no Workload yet; all else is as it is.
func (d *desk) behind() {
	api, ok := d.client.(client.WithWatch)
	if !ok {
		d.t.Fatalf("client is %T", d.client)
	}
	d.client = interceptor.NewClient(api, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if _, is := o.(*kueue.Workload); is {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "workloads"}, key.Name)
		}
		return c.Get(ctx, key, o, opts...)
	}})
}

// An admission may be decided before the caches show the Workload, which was made
// here a moment ago. Nothing would wake it again but a timer.
func TestAnAdmissionIsWrittenBeforeTheCachesShowTheWorkload(t *testing.T) {
	d := newDesk(t, (&api{uid: "u"}).next(nil))
	d.take("w")
	d.mu.Lock()
	d.works["team/w"].admit = &engine.Admit{ID: "team/w", Assignment: engine.Assignment{Queue: "q", PodSets: []engine.PodSetAssignment{{Name: mainSet, Count: 1}}}}
	d.works["team/w"].decided = 1
	d.mu.Unlock()
	live := d.client
	d.behind()
	d.reconcile("w")
	d.client = live
	if wl := d.stored("w"); wl == nil || wl.Status.Admission == nil {
		t.Errorf("the API shows %+v, want the admission", wl)
	}
}

// The API says whether a Workload that the caches do not show is there at all.
func TestNothingIsAdmittedThatIsGoneWhenTheCachesDoNotShowIt(t *testing.T) {
	d := newDesk(t)
	d.saw((&api{uid: "u"}).next(nil))
	d.mu.Lock()
	d.works["team/w"].admit = &engine.Admit{ID: "team/w", Assignment: engine.Assignment{Queue: "q"}}
	d.works["team/w"].decided = 1
	d.mu.Unlock()
	d.reconcile("w")
	if d.works["team/w"].admit != nil || d.stored("w") != nil {
		t.Error("a Workload that is gone counts as admitted")
	}
}

// A queue whose numbers change all the time gets its finalizer as soon as any
// other: without it the queue could be deleted under what it admitted.
func TestABusyQueueIsKeptFromTheFirst(t *testing.T) {
	queue := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "q"}}
	local := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "l"}, Spec: kueue.LocalQueueSpec{ClusterQueue: "q"}}
	api := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(queue, local).WithStatusSubresource(queue, local).Build()
	c := loaded(t)
	for _, o := range []client.Object{queue, local} {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
		c.saw(o)
	}
	s := newStatuses(c, api, newMetrics(prometheus.NewRegistry()), events.NewFakeRecorder(10))
	if err := s.writeAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{&kueue.ClusterQueue{ObjectMeta: queue.ObjectMeta}, &kueue.LocalQueue{ObjectMeta: local.ObjectMeta}} {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
		if len(o.GetFinalizers()) != 1 {
			t.Errorf("%T: finalizers %v after one look, want %s", o, o.GetFinalizers(), inUseFinalizer)
		}
		var conditions int
		switch o := o.(type) {
		case *kueue.ClusterQueue:
			conditions = len(o.Status.Conditions)
		case *kueue.LocalQueue:
			conditions = len(o.Status.Conditions)
		}
		if conditions == 0 {
			t.Errorf("%T: its status was not written", o)
		}
	}
}

// A reconciler may be shown an admission before the core is. It must not be told
// to wait: what the core hears later brings nobody back.
func TestAnAdmissionThatAReconcilerSeesFirstIsKnownAtOnce(t *testing.T) {
	c := loaded(t)
	c.engine.Apply(engine.QueueChanged{Queue: engine.ClusterQueue{Name: "q"}})
	a := &api{uid: "u"}
	waits, runs := a.next(nil), a.next(grant("q", 4), reserved, admittedCondition)
	c.saw(waits)
	c.heed(runs)
	if got := c.held("team/w"); got != "q/4" {
		t.Fatalf("held %q, want q/4", got)
	}
	// What is older says nothing.
	c.heed(waits)
	if got := c.works["team/w"].object.ResourceVersion; got != runs.ResourceVersion {
		t.Errorf("version %s is known, want %s", got, runs.ResourceVersion)
	}
	// Nor does what is gone.
	c.lost(runs)
	c.forgetAll(t)
	c.heed(runs)
	if c.works["team/w"] != nil {
		t.Error("a Workload that was removed is known again")
	}
}

func (c *core) forgetAll(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.works {
		c.forget(id)
	}
}
