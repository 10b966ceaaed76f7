package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

func TestWhatIsRemovedDoesNotComeBackByALateWriteOrList(t *testing.T) {
	c := loaded(t)
	a := &api{uid: "w"}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c", UID: "c", ResourceVersion: "7",
		Annotations: map[string]string{ticket.ByWorkload: "w"}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", UID: "p", ResourceVersion: "8",
		Labels: map[string]string{QueueLabel: "q"}}}
	gone := a.next(grant("q", 4), reserved, admittedCondition)
	gone.Name = nameOf(mustWorkload(t, c, pod)).Name
	gone.OwnerReferences = []metav1.OwnerReference{{UID: "p"}}
	claim.Annotations[ticket.ByWorkload] = gone.Name
	id := workloadID("team", gone.Name)
	c.saw(gone)
	c.saw(claim)
	c.saw(pod)
	if !c.inUse(id) || c.held(id) != "q/4" {
		t.Fatalf("in use %v, held %q", c.inUse(id), c.held(id))
	}
	c.lost(claim)
	c.lost(pod)
	c.lost(gone)
	// What a write returned that was under way, and what a list says that was
	// read before.
	late := claim.DeepCopy()
	late.ResourceVersion = "9"
	for _, o := range []any{late, claim, pod, gone} {
		c.saw(o)
	}
	if c.inUse(id) || c.held(id) != "" || len(c.claims) > 0 || len(c.pods) > 0 || len(c.works) > 0 {
		t.Errorf("in use %v, held %q, %d claims, %d pods, %d workloads", c.inUse(id), c.held(id), len(c.claims), len(c.pods), len(c.works))
	}
	// An object of the same name is another one.
	again := claim.DeepCopy()
	again.UID, again.ResourceVersion = "c2", "10"
	c.saw(again)
	if len(c.claims) != 1 {
		t.Error("a new claim under an old name is not taken in")
	}
}

func mustWorkload(t *testing.T, c *core, p *corev1.Pod) (id engine.WorkloadID) {
	t.Helper()
	if id = c.membership(p).workload; id == "" {
		t.Fatal("no workload")
	}
	return id
}

func TestRemovalsAreForgottenAfterAWhile(t *testing.T) {
	var g tombstones
	now := time.Unix(1000, 0)
	g.add("a", now)
	g.add("b", now.Add(goneFor/2))
	g.add("c", now.Add(goneFor+time.Second))
	if g.has("a") || !g.has("b") || !g.has("c") || len(g.order) != 2 {
		t.Errorf("a %v, b %v, c %v of %v", g.has("a"), g.has("b"), g.has("c"), g.order)
	}
}
