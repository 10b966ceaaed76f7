package controller

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/config"
	"github.com/sluice-gpu/sluice/quota/fit"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

func TestTheLocalQueuesPlacementGoesBeforeTheClusterQueues(t *testing.T) {
	s := newStage(t, 1)
	wl := s.workload("w", 1, false)
	local := s.locals[types.NamespacedName{Namespace: "team", Name: "lq"}].DeepCopy()
	cluster := s.queues["q"].DeepCopy()
	set := func(o metav1.Object, policy string) {
		o.SetAnnotations(map[string]string{PlacementAnnotation: policy})
		o.SetResourceVersion(s.next())
	}
	is := func(want fit.Policy) {
		t.Helper()
		s.decide()
		if got := s.fit.PolicyOf(workloadID("team", wl.Name)); got != want {
			t.Errorf("placed by %q, want %q", got, want)
		}
	}
	is(fit.BinPack)
	set(cluster, "spread")
	s.saw(cluster.DeepCopy())
	is(fit.Spread)
	set(local, "nvlink")
	s.saw(local.DeepCopy())
	is(fit.NVLink)
	set(local, "tight")
	s.saw(local.DeepCopy())
	is(fit.Spread)
}

func TestOnlyTheStockSchedulersPodsAreNominated(t *testing.T) {
	s := newStage(t, 1)
	wl := s.workload("w", 1, false)
	given := &kueue.PodSetAssignment{Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{"nvidia.com/gpu": "gpu"}}
	s.decide()
	for name, want := range map[string]bool{"": true, "default-scheduler": true, "volcano": false} {
		if got := s.nominates(&corev1.Pod{Spec: corev1.PodSpec{SchedulerName: name}}, wl, given); got != want {
			t.Errorf("scheduler %q: %v", name, got)
		}
	}
	s.fit.SetWorkload(workloadID("team", wl.Name), nil, fit.None)
	if s.nominates(&corev1.Pod{}, wl, given) {
		t.Error("placement none nominates")
	}
	for i := range ticket.MaxPools {
		o := s.slices["n1"].DeepCopy()
		o.Name, o.ResourceVersion = fmt.Sprintf("more-%d", i), s.next()
		o.Spec.Pool.Name, o.Spec.NodeName = o.Name, &o.Name
		s.saw(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: o.Name, ResourceVersion: s.next()}})
		s.saw(o)
	}
	if !s.nominates(&corev1.Pod{}, wl, given) {
		t.Error("the scheduler may choose among more nodes than the ticket names")
	}
}

func TestOnAnElasticFlavorTheBudgetAloneAdmits(t *testing.T) {
	s := newStage(t, 1)
	first := s.workload("first", 1, true)
	s.pod(first, "has", "n1", false)
	s.given(first, "has", "n1", "gpu-0")
	second := s.workload("second", 1, false)
	if got := s.admits(); len(got) > 0 {
		t.Fatal(got)
	}
	grown := &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "gpu", Annotations: map[string]string{ElasticAnnotation: "true"}}}
	s.saw(grown)
	if got := s.admits(); len(got) != 1 || got[0] != "second" {
		t.Fatalf("admitted %v, want second: %s", got, s.why("second"))
	}
	given := &kueue.PodSetAssignment{Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{"nvidia.com/gpu": "gpu"}}
	if !s.grows(given) {
		t.Error("its gate does not open before a node is there")
	}
	_ = second
	// Without a node there is no card to go by, unless the flavor tells.
	s.lost(s.nodes["n1"])
	s.workload("third", 1, false)
	if got := s.admits(); len(got) > 0 {
		t.Fatalf("admitted %v at no price", got)
	}
	grown = grown.DeepCopy()
	grown.Annotations[ElasticCardAnnotation] = "10Gi"
	s.saw(grown)
	if got := s.admits(); len(got) != 1 || got[0] != "third" {
		t.Fatalf("admitted %v, want third: %s", got, s.why("third"))
	}
}

var two = resource.MustParse("2")

// keeping is a stage whose controller keeps places after ten minutes.
func keeping(t *testing.T, now *time.Time) *stage {
	t.Helper()
	s := newStage(t, 2)
	cfg, err := config.Decode([]byte("holeReserveAfter: 10m"))
	if err != nil {
		t.Fatal(err)
	}
	s.core = newCore(cfg)
	s.caughtUp, s.synced = true, true
	s.now = func() time.Time { return *now }
	s.furnish(2)
	return s
}

// A pod of two cards waits while jobs of one card come and go and always leave
// one in use. After ten minutes the place is kept for it, also if the controller
// was replaced meanwhile.
func TestAPlaceIsKeptForWhoHasWaitedAlsoAcrossARestart(t *testing.T) {
	now := time.Unix(100_000, 0)
	s := keeping(t, &now)
	small := s.workload("small-0", 1, true)
	s.pod(small, "small-0", "n1", false)
	s.given(small, "small-0", "n1", "gpu-0")
	large := s.workload("large", 1, false).DeepCopy()
	large.Generation, large.ResourceVersion = 2, s.next()
	large.Spec.PodSets[0].Template.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"] = two
	s.saw(large)
	if got := s.admits(); len(got) > 0 {
		t.Fatal(got)
	}
	// The reconciler writes this with the reason to wait.
	large = large.DeepCopy()
	large.ResourceVersion = s.next()
	large.Status.Conditions = append(large.Status.Conditions, metav1.Condition{Type: RoomAwaited, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)})

	now = now.Add(9 * time.Minute)
	old := s
	s = keeping(t, &now)
	s.version = old.version
	s.saw(small)
	s.pod(small, "small-0", "n1", false)
	s.given(small, "small-0", "n1", "gpu-0")
	s.saw(large)
	if got := s.admits(); len(got) > 0 {
		t.Fatal(got)
	}
	now = now.Add(time.Minute + time.Second)
	s.decide()
	s.workload("small-1", 1, false)
	if got := s.admits(); len(got) > 0 {
		t.Fatalf("%v got the card that is kept for the pod of two", got)
	}
	done := s.pod(small, "small-0", "n1", false)
	s.lost(s.claims[types.NamespacedName{Namespace: "team", Name: "small-0"}])
	s.lost(done)
	if got := s.admits(); len(got) != 1 || got[0] != "large" {
		t.Fatalf("admitted %v, want large: %s", got, s.why("large"))
	}
}

func TestRoomIsMeasured(t *testing.T) {
	s := newStage(t, 2)
	s.workload("one", 1, false)
	s.workload("three", 3, false)
	s.decide()
	registry := prometheus.NewRegistry()
	registry.MustRegister(roomMetrics{s.core})
	all, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range all {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += "/" + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"sluice_fit_refusals_total/cards":      1,
		"sluice_flavor_nodes/gpu":              1,
		"sluice_node_devices/n1":               2,
		"sluice_flavor_free_memory_bytes/gpu":  10 << 30,
		"sluice_flavor_largest_hole_bytes/gpu": 10 << 30,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}

func TestEachPodThatArrivesDoesNotHaveAllOthersLookedAt(t *testing.T) {
	now := time.Unix(100_000, 0)
	s := keeping(t, &now)
	wl := s.workload("runs", 2, true)
	s.pod(wl, "one", "", false)
	s.pod(wl, "two", "", false)
	s.decide()
	s.open(t, wl, "one")
	s.open(t, wl, "two")
	looks := 0
	s.tellPod = func(types.NamespacedName) { looks++ }
	now = now.Add(time.Second)
	for i := range 10 {
		s.room = true
		s.decide()
		if i == 0 && looks != 2 {
			t.Fatalf("%d pods are looked at when room changes, want 2", looks)
		}
	}
	if looks != 2 {
		t.Errorf("%d looks within one second", looks)
	}
	now = now.Add(time.Second)
	if at, due := s.nextLook(); !due || at.After(now) {
		t.Errorf("those that were put off are due at %v", at)
	}
	if s.decide(); looks != 4 {
		t.Errorf("%d looks after a second, want those that were put off", looks)
	}
}
