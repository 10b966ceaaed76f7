package controller

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/ticket"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// desk is a workload reconciler over an API in memory.
type desk struct {
	*workloads
	t *testing.T
}

func newDesk(t *testing.T, objects ...client.Object) *desk {
	t.Helper()
	api := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(objects...).WithStatusSubresource(&kueue.Workload{}).Build()
	c := loaded(t)
	w := &workloads{
		sources: &sources{core: c, client: api, recorder: events.NewFakeRecorder(100), metrics: newMetrics(prometheus.NewRegistry())},
		live:    api, ledger: newLedger(c, api),
	}
	w.reasons = newReasons(w)
	t.Cleanup(w.reasons.queue.ShutDown)
	return &desk{t: t, workloads: w}
}

// stored is a Workload as the API keeps it, nil if it is gone.
func (d *desk) stored(name string) *kueue.Workload {
	d.t.Helper()
	wl := &kueue.Workload{}
	if err := d.client.Get(d.t.Context(), types.NamespacedName{Namespace: "team", Name: name}, wl); client.IgnoreNotFound(err) != nil {
		d.t.Fatal(err)
	} else if err != nil {
		return nil
	}
	return wl
}

// take takes in what the API has.
func (d *desk) take(name string) *kueue.Workload {
	d.t.Helper()
	wl := d.stored(name)
	if wl != nil {
		d.saw(wl.DeepCopy())
	}
	return wl
}

func (d *desk) reconcile(name string) {
	d.t.Helper()
	if _, err := d.Reconcile(d.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: name}}); err != nil {
		d.t.Fatal(err)
	}
}

func ticketed(name, workload string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: name, UID: types.UID(name), Annotations: map[string]string{ticket.ByWorkload: workload},
	}}
}

func TestNothingIsReleasedBeforeAllIsKnown(t *testing.T) {
	wl := (&api{uid: "u"}).next(grant("q", 4), reserved, evicted)
	claim := ticketed("c", "w")
	d := newDesk(t, wl, claim)
	d.caughtUp = false
	d.take("w")
	d.reconcile("w")
	if d.stored("w").Status.Admission == nil {
		t.Fatal("released while claims may not have been taken in")
	}
	if _, err := d.place("team/w", mainSet, "p"); err != errWait {
		t.Errorf("opened before all is known: %v", err)
	}
	// The caches are full but show the claim late: the live list has it.
	d.caughtUp = true
	d.reconcile("w")
	if d.stored("w").Status.Admission == nil {
		t.Fatal("released although a claim has its ticket")
	}
	if err := d.client.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	d.reconcile("w")
	if d.stored("w").Status.Admission != nil || d.held("team/w") != "" {
		t.Errorf("not released: held %q", d.held("team/w"))
	}
}

func TestCatchingUpTakesInWhatTheCachesDoNotShow(t *testing.T) {
	wl := (&api{uid: "u"}).next(grant("q", 4), reserved, admittedCondition)
	d := newDesk(t, wl, ticketed("c", "w"))
	d.caughtUp = false
	if !d.holds("team/w") {
		t.Error("before: counts as free")
	}
	if err := d.catchUp(t.Context(), d.live); err != nil {
		t.Fatal(err)
	}
	if !d.inUse("team/w") || d.held("team/w") != "q/4" || d.holds("team/other") {
		t.Errorf("after: in use %v, held %q", d.inUse("team/w"), d.held("team/w"))
	}
}

// gone says whether the API has removed a Workload; if so, its watch says so too.
func (d *desk) gone(name string, last *kueue.Workload) bool {
	d.t.Helper()
	if d.stored(name) != nil {
		return false
	}
	d.lost(last)
	return true
}

func TestADeletedWorkloadStaysUntilNothingIsHeld(t *testing.T) {
	wl := (&api{uid: "u"}).next(grant("q", 4), reserved, admittedCondition)
	claim := ticketed("c", "w")
	d := newDesk(t, wl, claim)
	d.take("w")
	d.reconcile("w")
	if got := d.take("w"); len(got.Finalizers) != 1 {
		t.Fatalf("finalizers of a Workload that holds quota: %v", got.Finalizers)
	}
	if err := d.client.Delete(t.Context(), wl); err != nil {
		t.Fatal(err)
	}
	// A controller that starts now, and is slow to take in the claim.
	last := d.take("w")
	d.reconcile("w")
	if d.gone("w", last) || d.held("team/w") != "q/4" {
		t.Fatalf("the object is gone or held is %q while a claim has its ticket", d.held("team/w"))
	}
	if _, run := admitted(last); !run {
		t.Error("what runs by it is stopped although only the object was deleted")
	}
	d.saw(claim)
	d.reconcile("w")
	if d.gone("w", last) {
		t.Fatal("gone while a claim has its ticket")
	}
	if err := d.client.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	d.lost(claim)
	d.reconcile("w")
	if !d.gone("w", last) || d.held("team/w") != "" {
		t.Errorf("still there, held %q", d.held("team/w"))
	}
}

func TestAWorkloadThatHoldsNothingGoesWhenItIsDeleted(t *testing.T) {
	for name, wl := range map[string]*kueue.Workload{
		"finished": (&api{uid: "u"}).next(grant("q", 4), reserved, admittedCondition, kueue.WorkloadFinished),
		"evicted":  (&api{uid: "u"}).next(grant("q", 4), reserved, evicted),
		"waiting":  (&api{uid: "u"}).next(nil),
	} {
		wl.Finalizers = []string{Finalizer}
		d := newDesk(t, wl)
		d.take("w")
		if err := d.client.Delete(t.Context(), wl); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			d.take("w")
			d.reconcile("w")
		}
		if got := d.stored("w"); got != nil {
			t.Errorf("%s: finalizers %v", name, got.Finalizers)
		}
	}
}

func TestTheFinalizerIsThereBeforeTheReservation(t *testing.T) {
	d := newDesk(t, (&api{uid: "u"}).next(nil))
	d.take("w")
	given := translate.Assignment(grant("q", 4))
	d.engine.Apply(engine.Admitted{ID: "team/w", Assignment: given})
	d.works["team/w"].admit, d.works["team/w"].decided = &engine.Admit{ID: "team/w", Assignment: given}, 1
	d.reconcile("w")
	if got := d.stored("w"); len(got.Finalizers) != 1 || got.Status.Admission == nil {
		t.Errorf("finalizers %v, admission %v", got.Finalizers, got.Status.Admission)
	}
}

func TestAnAdmissionIsNotWrittenOnASpecThatWasNotDecidedOn(t *testing.T) {
	for name, told := range map[string]bool{"no news of the change": false, "the change is known": true} {
		t.Run(name, func(t *testing.T) { admitChanged(t, told) })
	}
}

func admitChanged(t *testing.T, told bool) {
	wl := (&api{uid: "u"}).next(nil)
	d := newDesk(t, wl)
	d.saw(&kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "gpu", UID: "f"}})
	d.engine.Apply(engine.QueueChanged{Queue: engine.ClusterQueue{Name: "q", Namespaces: engine.Selector{Everything: true}}})
	d.engine.Apply(engine.LocalQueueChanged{LocalQueue: engine.LocalQueue{Name: engine.LocalQueueName{Namespace: "team"}, Queue: "q"}})
	d.saw(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n"}})
	d.take("w")
	d.decide()
	if d.works["team/w"].admit == nil {
		t.Fatalf("not admitted: %s", d.engine.Why("team/w").String())
	}
	// Ten times as many pods.
	changed := d.stored("w")
	changed.Spec.PodSets[0].Count, changed.Generation = 10, 2
	if err := d.client.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	if told {
		// The engine hears of it, but the decision stands until it fails.
		d.take("w")
		d.decide()
	}
	d.reconcile("w")
	if d.stored("w").Status.Admission != nil || d.works["team/w"].admit != nil || d.held("team/w") != "" {
		t.Fatalf("one pod was decided on, ten are admitted: held %q", d.held("team/w"))
	}
	d.take("w")
	d.decide()
	d.reconcile("w")
	if got := d.stored("w"); got.Status.Admission == nil || *got.Status.Admission.PodSetAssignments[0].Count != 10 {
		t.Errorf("then admitted: %v", got.Status.Admission)
	}
}

func TestAWorkloadMadeAgainHalfwayGetsItsQuotaBack(t *testing.T) {
	old := (&api{uid: "u"}).next(grant("q", 4), reserved, admittedCondition)
	d := newDesk(t, (&api{uid: "u2", version: 5}).next(nil))
	claim := ticketed("c", "w")
	d.saw(claim)
	d.saw(old)
	d.lost(old)
	// Made again, but the status was not written before its maker failed.
	d.take("w")
	d.reconcile("w")
	if got := d.stored("w"); got.Status.Admission == nil || len(got.Finalizers) != 1 || d.held("team/w") != "q/4" {
		t.Fatalf("admission %v, finalizers %v, held %q", got.Status.Admission, got.Finalizers, d.held("team/w"))
	}
}

func TestAWorkloadMadeAgainHoldsNothingOnceNothingIsInUse(t *testing.T) {
	old := (&api{uid: "u"}).next(grant("q", 4), reserved, admittedCondition)
	d := newDesk(t, (&api{uid: "u2", version: 5}).next(nil))
	claim := ticketed("c", "w")
	d.saw(claim)
	d.saw(old)
	d.lost(old)
	d.take("w")
	d.lost(claim)
	d.reconcile("w")
	if got := d.stored("w"); got.Status.Admission != nil || d.held("team/w") != "" {
		t.Errorf("admission %v, held %q", got.Status.Admission, d.held("team/w"))
	}
}
