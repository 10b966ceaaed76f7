package controller_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// Two replicas; the leader is killed while it admits. Afterwards every workload
// has been admitted once, whatever both wrote, and the budget was never exceeded.
func TestALeaderKilledWhileItAdmitsIsFollowedWithoutAdmittingTwice(t *testing.T) {
	w := newWorld(t)
	const room, all = 12, 30
	w.node(t, "n1", 4, "80Gi", "", nil)
	w.node(t, "n2", 4, "80Gi", "", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), fmt.Sprintf("nvidia.com/gpu=%d", room))
	w.template(t, "t", "20Gi", "")

	following, stop := context.WithCancel(t.Context())
	defer stop()
	events := w.follow(following, t, &kueue.WorkloadList{})
	// seen follows every version of every Workload.
	type seen struct{ most, twice int }
	result := make(chan seen, 1)
	killNow := make(chan struct{})
	go func() {
		held, times := map[types.UID]bool{}, map[types.UID]int{}
		now, s := 0, seen{}
		for e := range events {
			wl, ok := e.Object.(*kueue.Workload)
			if !ok {
				continue
			}
			if holdsQuota(wl) == held[wl.UID] {
				continue
			}
			held[wl.UID] = holdsQuota(wl)
			if !held[wl.UID] {
				now--
				continue
			}
			now++
			if times[wl.UID]++; times[wl.UID] > 1 {
				s.twice++
			}
			s.most = max(s.most, now)
			if now == room/3 {
				close(killNow)
			}
		}
		result <- s
	}()

	leader := startReplica(t, w.Server, true, "")
	apitest.Eventually(t, apitest.Patience, "a leader", func(ctx context.Context) error {
		leases, err := w.Clients.CoordinationV1().Leases("sluice-system").List(ctx, metav1.ListOptions{})
		if err != nil || len(leases.Items) == 0 {
			return fmt.Errorf("%d leases, %v", len(leases.Items), err)
		}
		return nil
	})
	second := startReplica(t, w.Server, true, "")
	for i := range all {
		w.create(t, gated(withTemplate(pod(fmt.Sprintf("p-%d", i), "queue-q"), "t")))
	}
	select {
	case <-killNow:
	case <-time.After(apitest.Patience):
		t.Fatal("nothing was admitted")
	}
	leader.kill()
	w.usage(t, queue, fmt.Sprintf("nvidia.com/gpu=%d", room))
	w.boundCount(t, room)
	second.kill()
	stop()
	if s := <-result; s.most > room || s.twice > 0 {
		t.Errorf("%d held quota at once, of %d; %d were admitted again", s.most, room, s.twice)
	}
}

// Many pods come and go in every state; the budget is never exceeded and nothing
// is left of them.
func TestChurnNeverHoldsMoreThanThereIsAndLeavesNothing(t *testing.T) {
	w := newWorld(t)
	const room, all = 5, 40
	w.node(t, "n1", 4, "80Gi", "", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), fmt.Sprintf("nvidia.com/gpu=%d", room))
	w.template(t, "t", "10Gi", "")
	w.start(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	over := make(chan int, 1)
	go func() {
		for ctx.Err() == nil {
			var wls kueue.WorkloadList
			if w.client.List(ctx, &wls, client.InNamespace(w.ns)) != nil {
				continue
			}
			n := 0
			for i := range wls.Items {
				if holdsQuota(&wls.Items[i]) && !conditionIs(&wls.Items[i], kueue.WorkloadFinished) {
					n++
				}
			}
			if n > room {
				over <- n
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	for i := range all {
		p := gated(withTemplate(pod(fmt.Sprintf("p-%d", i), "queue-q"), "t"))
		w.create(t, p)
		// Some are deleted at once, some after a while, some end.
		switch i % 4 {
		case 0:
			if err := w.client.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
				t.Fatal(err)
			}
		case 1:
			go func() {
				time.Sleep(time.Duration(i) * 30 * time.Millisecond)
				_ = w.client.Delete(ctx, p, client.GracePeriodSeconds(0))
			}()
		case 2:
			go func() {
				time.Sleep(time.Duration(i) * 50 * time.Millisecond)
				_ = w.client.Status().Patch(ctx, p, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"phase":"Succeeded"}}`)))
			}()
		}
	}
	w.usage(t, queue, fmt.Sprintf("nvidia.com/gpu=%d", room))
	if err := w.client.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(w.ns), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	w.usage(t, queue, "nvidia.com/gpu=0")
	apitest.Eventually(t, apitest.Patience, "no Workload is left", func(ctx context.Context) error {
		var wls kueue.WorkloadList
		if err := w.client.List(ctx, &wls, client.InNamespace(w.ns)); err != nil || len(wls.Items) > 0 {
			return fmt.Errorf("%d Workloads, %v", len(wls.Items), err)
		}
		return nil
	})
	select {
	case n := <-over:
		t.Errorf("%d of %d held quota at once", n, room)
	default:
	}
}

func conditionIs(wl *kueue.Workload, kind string) bool {
	for _, c := range wl.Status.Conditions {
		if c.Type == kind {
			return c.Status == metav1.ConditionTrue
		}
	}
	return false
}

func TestALoadOfWorkloadsAloneStaysWithinItsCohorts(t *testing.T) {
	workloadsAlone(t, 240, "")
}

func TestALoadOfPodsOpensEveryGate(t *testing.T) {
	l := newLoad(t)
	if err := l.StartControllerManager("resourceclaim-controller"); err != nil {
		t.Fatal(err)
	}
	l.podBudget(t, 3, 8)
	r := startReplica(t, l.Server, false, "")
	const n = 60
	podsWithClaims(t, l, "p", n, 0)
	// Workload: made, admitted. Pod: nominated, opened. Claim: its ticket.
	if each := (r.writes(t) - l.events(t)) / n; each > 6 {
		t.Errorf("%.1f writes for each pod", each)
	}
}
