package controller

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/config"
	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// loaded is a core that has taken in all that there is.
func loaded(t testing.TB) *core {
	t.Helper()
	cfg, err := config.Decode(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := newCore(cfg)
	c.caughtUp = true
	return c
}

// api makes the versions of one Workload that the API shows one after another.
type api struct {
	uid     types.UID
	version int
}

// grant is an admission to a queue of so many devices.
func grant(queue string, devices int64) *kueue.Admission {
	return translate.Admission(engine.Assignment{Queue: engine.QueueName(queue), PodSets: []engine.PodSetAssignment{{
		Name: mainSet, Count: 1,
		Flavors: map[engine.Resource]engine.FlavorName{pricing.ResourceDevices: "gpu"},
		Usage:   engine.Amounts{pricing.ResourceDevices: engine.Amount(devices)},
	}}})
}

// next is the next version, with an admission and conditions that are true.
func (a *api) next(given *kueue.Admission, conditions ...string) *kueue.Workload {
	a.version++
	wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "w", UID: a.uid, Generation: 1, ResourceVersion: fmt.Sprint(100 + a.version),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "owner", UID: "owner", Controller: ptr.To(true)}},
	}}
	wl.Spec.PodSets = []kueue.PodSet{{Name: mainSet, Count: 1}}
	wl.Spec.Priority = ptr.To(int32(0))
	wl.Status.Admission = given
	for _, kind := range conditions {
		wl.Status.Conditions = append(wl.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue})
	}
	return wl
}

// held is what the engine counts, as "queue/devices", "" for nothing.
func (c *core) held(id engine.WorkloadID) string {
	a, ok := c.engine.Holding(id)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s/%d", a.Queue, a.PodSets[0].Usage[pricing.ResourceDevices])
}

// leaving is how many workloads of a queue count as being evicted.
func (c *core) leaving(queue engine.QueueName) int {
	s, _ := c.engine.QueueStatus(queue)
	return s.Leaving
}

const reserved, admittedCondition, evicted = kueue.WorkloadQuotaReserved, kueue.WorkloadAdmitted, kueue.WorkloadEvicted

func TestAReplicaThatOnlyWatchesFollowsReleasesAndNewAdmissions(t *testing.T) {
	c := loaded(t)
	for _, q := range []engine.QueueName{"q", "other"} {
		c.engine.Apply(engine.QueueChanged{Queue: engine.ClusterQueue{Name: q}})
	}
	a := &api{uid: "u"}
	for i, step := range []struct {
		shows   *kueue.Workload
		held    string
		leaving string
	}{
		{a.next(nil), "", ""},
		{a.next(grant("q", 4), reserved, admittedCondition), "q/4", ""},
		{a.next(grant("q", 4), reserved, evicted), "q/4", "q"},
		{a.next(nil), "", ""},
		{a.next(grant("other", 2), reserved, admittedCondition), "other/2", ""},
		{a.next(grant("other", 1), reserved, admittedCondition), "other/1", ""},
		// The watch breaks, and what was in between is never seen.
		{a.next(grant("other", 1), reserved, evicted), "other/1", "other"},
		{a.next(grant("q", 3), reserved, admittedCondition), "q/3", ""},
		{a.next(grant("q", 3), reserved, evicted), "q/3", "q"},
		{a.next(grant("q", 3), reserved, admittedCondition), "q/3", ""},
	} {
		c.saw(step.shows)
		if got := c.held("team/w"); got != step.held {
			t.Errorf("step %d: the engine counts %q as held, want %q", i, got, step.held)
		}
		for _, q := range []engine.QueueName{"q", "other"} {
			want := 0
			if step.leaving == string(q) {
				want = 1
			}
			if n := c.leaving(q); n != want {
				t.Errorf("step %d: %d workloads leave %s, want %d", i, n, q, want)
			}
		}
	}
}

func TestAnAdmissionThatIsNotWrittenYetOutlivesOlderNews(t *testing.T) {
	c := loaded(t)
	a := &api{uid: "u"}
	c.saw(a.next(nil))
	// Decided here, and on its way to the API.
	c.engine.Apply(engine.Admitted{ID: "team/w", Assignment: translate.Assignment(grant("q", 4))})
	c.works["team/w"].admit = &engine.Admit{ID: "team/w"}
	c.saw(a.next(nil))
	if c.held("team/w") != "q/4" || c.works["team/w"].admit == nil {
		t.Errorf("held %q, to be written %v", c.held("team/w"), c.works["team/w"].admit != nil)
	}
}
