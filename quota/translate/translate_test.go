package translate

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gpu/sluice/quota/engine"
)

func TestAmountsAreThousandthsOfACPUAndWholeUnitsOfTheRest(t *testing.T) {
	for _, c := range []struct {
		resource corev1.ResourceName
		quantity string
		want     engine.Amount
	}{
		{corev1.ResourceCPU, "1500m", 1500},
		{corev1.ResourceCPU, "64", 64000},
		{corev1.ResourceCPU, "10000P", engine.Unlimited},
		{"nvidia.com/gpu-memory", "20Gi", 20 << 30},
		{"nvidia.com/gpu", "1500m", 2}, // a share is never divided
		{"nvidia.com/gpu", "9223372036854775807", engine.Unlimited},
		{"nvidia.com/gpu", "10E", engine.Unlimited},
	} {
		if got := Amount(c.resource, resource.MustParse(c.quantity)); got != c.want {
			t.Errorf("%s of %s is %d, want %d", c.quantity, c.resource, got, c.want)
		}
	}
}

func TestAQuantityReadsBackAsTheSameAmount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.SampledFrom([]engine.Resource{"cpu", "memory", "nvidia.com/gpu", "nvidia.com/gpu-memory"}).Draw(t, "resource")
		a := engine.Amount(rapid.Int64Range(0, math.MaxInt64/2000).Draw(t, "amount"))
		if got := Amount(corev1.ResourceName(r), Quantity(r, a)); got != a {
			t.Fatalf("%d of %s came back as %d", a, r, got)
		}
	})
}

func TestAnAdmissionInTheAPIIsTheEnginesAssignment(t *testing.T) {
	given := engine.Assignment{
		Queue: "training-cq",
		PodSets: []engine.PodSetAssignment{{
			Name: "main", Count: 4,
			Flavors: map[engine.Resource]engine.FlavorName{"nvidia.com/gpu": "a100", "cpu": "a100"},
			Usage:   engine.Amounts{"nvidia.com/gpu": 4, "cpu": 400},
		}},
	}
	if diff := cmp.Diff(given, Assignment(Admission(given))); diff != "" {
		t.Errorf("after writing and reading (-want +got):\n%s", diff)
	}
}

func TestEveryLimitAndPolicyOfAClusterQueueReachesTheEngine(t *testing.T) {
	var cq kueue.ClusterQueue
	err := yaml.UnmarshalStrict([]byte(`
metadata: {name: research}
spec:
  cohortName: lab
  queueingStrategy: StrictFIFO
  stopPolicy: Hold
  namespaceSelector: {matchLabels: {team: research}}
  fairSharing: {weight: "2"}
  flavorFungibility: {whenCanBorrow: TryNextFlavor, whenCanPreempt: MayStopSearch}
  preemption: {withinClusterQueue: LowerPriority, reclaimWithinCohort: Any, borrowWithinCohort: {policy: LowerPriority, maxPriorityThreshold: 7}}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: a100, resources: [{name: nvidia.com/gpu, nominalQuota: 8, borrowingLimit: 4, lendingLimit: 2}]}]
`), &cq)
	if err != nil {
		t.Fatal(err)
	}
	q := ClusterQueue(&cq)
	if q.Name != "research" || q.Cohort != "lab" || q.Strategy != engine.StrictFIFO || q.Stop != engine.Hold || q.Inactive != "" {
		t.Errorf("queue: %+v", q)
	}
	if q.Preemption.WithinQueue != engine.LowerPriority || q.Preemption.Reclaim != engine.AnyPriority ||
		q.Preemption.BorrowWithin != engine.LowerPriority || ptr.Deref(q.Preemption.BorrowThreshold, 0) != 7 {
		t.Errorf("preemption: %+v", q.Preemption)
	}
	quota := q.Groups[0].Flavors[0].Quotas[0]
	if quota.Nominal != 8 || ptr.Deref(quota.Borrow, 0) != 4 || ptr.Deref(quota.Lend, 0) != 2 {
		t.Errorf("quota: %+v", quota)
	}
}

func TestWhatNobodyHereDoesMakesAQueueInactiveByName(t *testing.T) {
	cq := &kueue.ClusterQueue{}
	cq.Spec.ConcurrentAdmissionPolicy = &kueue.ConcurrentAdmissionPolicy{}
	if reason := ClusterQueue(cq).Inactive; !strings.Contains(reason, "concurrentAdmissionPolicy") {
		t.Errorf("the queue is inactive because of %q, want the field named", reason)
	}
	wl := &kueue.Workload{}
	wl.Spec.PodSets = []kueue.PodSet{{Name: "main", TopologyRequest: &kueue.PodSetTopologyRequest{}}}
	if reason := Unsupported(wl); !strings.Contains(reason, "topologyRequest") {
		t.Errorf("the workload is refused because of %q, want the field named", reason)
	}
}

func TestPodsThatAreDoneAreNotCharged(t *testing.T) {
	wl := &kueue.Workload{}
	wl.Status.Admission = Admission(engine.Assignment{Queue: "q", PodSets: []engine.PodSetAssignment{{
		Name: "main", Count: 4, Flavors: map[engine.Resource]engine.FlavorName{"r": "f"}, Usage: engine.Amounts{"r": 12},
	}}})
	wl.Status.Admission.PodSetAssignments[0].ResourceUsage["bound-only"] = *resource.NewQuantity(8, resource.DecimalSI)
	wl.Status.ReclaimablePods = []kueue.ReclaimablePod{{Name: "main", Count: 3}}
	set := Charge(wl).PodSets[0]
	if set.Count != 1 || len(set.Usage) != 1 || set.Usage["r"] != 3 {
		t.Errorf("charged %+v", set)
	}
}
