package controller

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

func TestOnlyWhoDecidesTakesAnAdmissionForLate(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*desk)
		held   string
		late   bool
	}{
		"one that nobody here decided":       {func(d *desk) { d.decides = true }, "", true},
		"what a leader wrote, to a follower": {func(*desk) {}, "q/4", false},
		"of what is in use":                  {func(d *desk) { d.decides = true; d.saw(ticketed("c", "w")) }, "q/4", false},
	} {
		t.Run(name, func(t *testing.T) {
			a := &api{uid: "u"}
			waits, admitted := a.next(nil), a.next(grant("q", 4), reserved, admittedCondition)
			d := newDesk(t, admitted)
			d.saw(waits)
			test.change(d)
			d.saw(admitted.DeepCopy())
			if got := d.held("team/w"); got != test.held {
				t.Errorf("held %q, want %q", got, test.held)
			}
			if got := d.counted(admitted); got == test.late {
				t.Errorf("counted: %v", got)
			}
			if _, err := d.place("team/w", mainSet, "p"); (err == errWait) != test.late {
				t.Errorf("place: %v", err)
			}
			d.reconcile("w")
			if got := d.stored("w").Status.Admission == nil; got != test.late {
				t.Errorf("taken back: %v", got)
			}
			if got := d.held("team/w"); test.late && got != "" {
				t.Errorf("held %q afterwards", got)
			}
		})
	}
}

// What was decided here is on its way, and something else lands before it: the
// decision cannot be written any more, and what landed does not count for it.
func TestALateAdmissionToAnotherFlavorDoesNotStandForWhatWasDecided(t *testing.T) {
	a := &api{uid: "u"}
	waits, late := a.next(nil), a.next(grant("q", 4), reserved, admittedCondition)
	d := newDesk(t, late)
	d.decides = true
	d.saw(waits)
	decided := engine.Assignment{Queue: "q", PodSets: []engine.PodSetAssignment{{
		Name: mainSet, Count: 1, Flavors: map[engine.Resource]engine.FlavorName{pricing.ResourceDevices: "other"}, Usage: engine.Amounts{pricing.ResourceDevices: 4},
	}}}
	d.engine.Apply(engine.Admitted{ID: "team/w", Assignment: decided})
	d.works["team/w"].admit = &engine.Admit{ID: "team/w", Assignment: decided}
	d.saw(late.DeepCopy())
	if got := d.held("team/w"); got != "" || d.counted(late) {
		t.Errorf("held %q, counted %v", got, d.counted(late))
	}
	d.reconcile("w")
	if d.stored("w").Status.Admission != nil {
		t.Error("not taken back")
	}
}

func TestATicketOfAWorkloadThatHoldsNothingIsTakenBack(t *testing.T) {
	a := &api{uid: "u"}
	claim := ticketed("c", "w")
	d := newDesk(t, a.next(nil), claim)
	d.take("w")
	d.saw(claim.DeepCopy())
	d.reconcile("w")
	if d.inUse("team/w") {
		t.Error("the ticket stands")
	}
}

// The caches may show a late admission to the job's reconciler first.
func TestNoJobIsStartedByAnAdmissionThatIsNotCounted(t *testing.T) {
	a := &api{uid: "u"}
	waits, admitted := a.next(nil), a.next(grant("q", 4), reserved, admittedCondition)
	for name, test := range map[string]struct {
		feed   func(*desk)
		starts bool
	}{
		"late":              {func(d *desk) { d.decides = true; d.saw(waits.DeepCopy()); d.saw(admitted.DeepCopy()) }, false},
		"not taken in yet":  {func(d *desk) { d.decides = true; d.saw(waits.DeepCopy()) }, false},
		"read at the start": {func(d *desk) { d.saw(admitted.DeepCopy()) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			job := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"namespace": "team", "name": "owner", "uid": "owner"},
				"spec": map[string]any{"suspend": true, "template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}}},
			}}
			d := newDesk(t, admitted, job.DeepCopy())
			d.sawFlavor(gpuFlavor())
			test.feed(d)
			r := &jobReconciler{live: d.client, sources: &sources{core: d.core, client: d.client, recorder: events.NewFakeRecorder(10), metrics: newMetrics(prometheus.NewRegistry())}}
			if err := d.client.Get(t.Context(), types.NamespacedName{Namespace: "team", Name: "owner"}, job); err != nil {
				t.Fatal(err)
			}
			kind := d.kinds.Find("batch/v1", "Job")
			if _, err := r.follow(t.Context(), kind, job, admitted); err != nil {
				t.Fatal(err)
			}
			if err := d.client.Get(t.Context(), types.NamespacedName{Namespace: "team", Name: "owner"}, job); err != nil {
				t.Fatal(err)
			}
			if got := !kind.Suspended(job); got != test.starts {
				t.Errorf("started: %v", got)
			}
		})
	}
}

func gpuFlavor() *kueue.ResourceFlavor {
	return &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
}
