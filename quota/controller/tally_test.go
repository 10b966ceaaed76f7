package controller

import (
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/quota/engine"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// What was counted one by one is what a count of all says, also where amounts are
// so large that sums of them are saturated.
func TestQueuesAreCountedOneByOneAsAllAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := newCounts()
		works := map[engine.WorkloadID]*kueue.Workload{}
		for range rapid.IntRange(1, 60).Draw(t, "changes") {
			name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name")
			id := workloadID("team", name)
			if rapid.IntRange(0, 4).Draw(t, "gone") == 0 {
				now.set(id, nil)
				delete(works, id)
				continue
			}
			var given *kueue.Admission
			var conditions []string
			if rapid.Bool().Draw(t, "reserved") {
				n := rapid.SampledFrom([]int64{0, 1, 7, 1 << 62, int64(engine.Unlimited)}).Draw(t, "devices")
				given = grant(rapid.SampledFrom([]string{"q", "r"}).Draw(t, "queue"), n)
				if rapid.Bool().Draw(t, "admitted") {
					conditions = append(conditions, admittedCondition)
				}
			}
			if rapid.IntRange(0, 4).Draw(t, "finished") == 0 {
				conditions = append(conditions, kueue.WorkloadFinished)
			}
			wl := (&api{uid: types.UID(name)}).next(given, conditions...)
			wl.Name, wl.Spec.QueueName = name, kueue.LocalQueueName(rapid.SampledFrom([]string{"l", "m"}).Draw(t, "local"))
			now.set(id, wl)
			works[id] = wl
		}
		anew := newCounts()
		for id, wl := range works {
			anew.set(id, wl)
		}
		same(t, now.queues, anew.queues)
		same(t, now.locals, anew.locals)
	})
}

func same[K comparable](t *rapid.T, a, b map[K]tally) {
	t.Helper()
	equal := func(x, y tally) bool {
		return x.pending == y.pending && x.reserving == y.reserving && x.admitted == y.admitted && maps.Equal(x.reserved, y.reserved) && maps.Equal(x.used, y.used)
	}
	if !maps.EqualFunc(a, b, equal) {
		t.Fatalf("counted one by one %+v, all at once %+v", a, b)
	}
}
