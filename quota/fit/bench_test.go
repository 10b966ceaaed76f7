package fit

import (
	"fmt"
	"math/rand"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// crowd is a cluster of 1,000 nodes with 8 cards of 80Gi each, on which 32,000
// shares of 1 to 28Gi are held, and a pod for every share.
func crowd(policy Policy) *State {
	const nodes, cards, shares = 1000, 8, 32_000
	s := world(policy)
	rnd := rand.New(rand.NewSource(1))
	free := map[string]int64{}
	for n := range nodes {
		name := fmt.Sprintf("node-%04d", n)
		addNode(s, name, nil, 80, 80, 80, 80, 80, 80, 80, 80)
		for c := range cards {
			free[fmt.Sprintf("%s/gpu-%d", name, c)] = 80
		}
	}
	for i := range shares {
		node, card := fmt.Sprintf("node-%04d", i%nodes), fmt.Sprintf("gpu-%d", i/nodes%cards)
		at := node + "/" + card
		gi := min(1+rnd.Int63n(28), free[at])
		if gi == 0 {
			continue
		}
		free[at] -= gi
		s.SetClaim(allocated(fmt.Sprintf("c%d", i), node, card, gi), engine.WorkloadID(fmt.Sprintf("ns/w%d", i)))
		s.SetPod(bound(fmt.Sprintf("p%d", i), node, "100m"), engine.WorkloadID(fmt.Sprintf("ns/w%d", i)))
	}
	s.reindex()
	return s
}

func bound(name, node, cpu string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
		Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}},
	}}}}
}

// BenchmarkDecision places workloads of one pod, of sizes that have room and of
// sizes that have none, and takes the place: one decision.
func BenchmarkDecision(b *testing.B) {
	s := crowd(BinPack)
	rnd := rand.New(rand.NewSource(2))
	took := newTimes(b)
	none := 0
	for i := range b.N {
		id := engine.WorkloadID(fmt.Sprintf("ns/new-%d", i))
		gi := []int64{1, 2, 5, 10, 20, 40, 70, 80}[rnd.Intn(8)]
		w, a := ask(s, id, 1, gi, func(p *corev1.PodSpec) {
			p.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("100m")}
		})
		none += took.decision(s, w, a)
		// Room stays as it is.
		s.RemoveWorkload(id)
		s.reindex()
	}
	took.report()
	b.ReportMetric(100*float64(none)/float64(b.N), "refused-percent")
}

// BenchmarkIndexUpdate takes in one event and puts its node into order.
func BenchmarkIndexUpdate(b *testing.B) {
	s := crowd(BinPack)
	var rewritten []*resourceapi.ResourceSlice
	for i := range 2000 {
		slice := s.slices[fmt.Sprintf("node-%04d", i%1000)].DeepCopy()
		slice.Spec.Devices[i/1000].Taints = []resourceapi.DeviceTaint{{Key: "sick", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		slice.Spec.Pool.Generation += int64(i / 1000)
		rewritten = append(rewritten, slice)
	}
	for _, kind := range []struct {
		name  string
		event func(i int)
	}{
		{"claim", func(i int) {
			c := allocated(fmt.Sprintf("extra-%d", i/2%500), fmt.Sprintf("node-%04d", i/2%1000), "gpu-3", 1)
			if i%2 == 0 {
				s.SetClaim(c, "ns/extra")
			} else {
				s.RemoveClaim(c.UID)
			}
		}},
		{"pod", func(i int) {
			p := bound(fmt.Sprintf("extra-%d", i/2%500), fmt.Sprintf("node-%04d", i/2%1000), "1")
			if i%2 == 0 {
				s.SetPod(p, "ns/extra")
			} else {
				s.RemovePod(p.UID)
			}
		}},
		{"node", func(i int) {
			n := s.nodes[fmt.Sprintf("node-%04d", i%1000)].object.DeepCopy()
			n.Spec.Unschedulable = i/1000%2 == 0
			s.SetNode(n)
		}},
		// A card becomes sick, and another well.
		{"slice", func(i int) { s.SetSlice(rewritten[i%2000]) }},
	} {
		b.Run(kind.name, func(b *testing.B) {
			took := newTimes(b)
			for i := range b.N {
				took.time(func() {
					kind.event(i)
					s.reindex()
				})
			}
			took.report()
		})
	}
}

// BenchmarkGang places a workload of 1,000 like pods on an empty cluster.
func BenchmarkGang(b *testing.B) {
	s := world(BinPack)
	for n := range 1000 {
		addNode(s, fmt.Sprintf("node-%04d", n), nil, 80, 80, 80, 80, 80, 80, 80, 80)
	}
	w, a := ask(s, "ns/gang", 1000, 40, nil)
	took := newTimes(b)
	for range max(1, b.N/300) {
		took.time(func() {
			if _, no := s.Place(w, a, nil); no != nil {
				b.Fatal(no)
			}
		})
	}
	took.report()
}
