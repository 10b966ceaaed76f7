package controller_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

// transport is a function that is an [http.RoundTripper].
type transport func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// holdTickets makes a file before each update of a claim, and waits until it is gone.
func holdTickets(file string) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return transport(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodPut || !strings.Contains(r.URL.Path, "/resourceclaims/") {
				return next.RoundTrip(r)
			}
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				return nil, err
			}
			for {
				if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
					return next.RoundTrip(r)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
}

// A leader is frozen as it is about to write a ticket. Meanwhile another leads, and takes the
// quota back; the claim has not changed. When the first one goes on, its ticket is not written.
func TestALeaderThatWasFrozenWritesNoTicketWhenItGoesOn(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu=1")
	w.template(t, "t", "20Gi", "")
	following, stop := context.WithCancel(t.Context())
	defer stop()
	events := w.follow(following, t, &resourceapi.ResourceClaimList{})
	tickets := make(chan int, 1)
	go func() {
		n := 0
		for e := range events {
			if claim, ok := e.Object.(*resourceapi.ResourceClaim); ok && ticket.Has(claim.Annotations) {
				n++
			}
		}
		tickets <- n
	}()
	leader := func() string {
		lease, err := w.Clients.CoordinationV1().Leases("sluice-system").Get(t.Context(), "sluice-quota", metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}

	hold := filepath.Join(t.TempDir(), "hold")
	before := leader()
	frozen := startReplicaWith(t, w.Server, replicaOrders{Elect: true, Hold: hold})
	p := gated(withTemplate(pod("p", "queue-q"), "t"))
	w.create(t, p)
	apitest.Eventually(t, apitest.Patience, "the leader to be about to write a ticket", func(context.Context) error {
		_, err := os.Stat(hold)
		return err
	})
	first := leader()
	if first == before {
		t.Fatalf("%q leads", first)
	}
	if err := frozen.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	wl := w.becomes(t, p, "is admitted", holdsQuota)
	if err := w.client.Patch(t.Context(), wl, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"active":false}}`))); err != nil {
		t.Fatal(err)
	}
	startReplica(t, w.Server, true, "")
	apitest.Eventually(t, apitest.Patience, "another to lead", func(context.Context) error {
		if now := leader(); now == first {
			return fmt.Errorf("%q leads", now)
		}
		return nil
	})
	w.becomes(t, p, "holds nothing", func(wl *kueue.Workload) bool { return !holdsQuota(wl) })
	w.usage(t, queue, "nvidia.com/gpu=0")

	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	if err := frozen.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- frozen.cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(apitest.Patience):
		t.Error("the leader that was frozen goes on")
	}
	holds(t, time.Second, "no ticket", func(ctx context.Context) error {
		claims := &resourceapi.ResourceClaimList{}
		if err := w.client.List(ctx, claims, client.InNamespace(w.ns)); err != nil {
			return err
		}
		for i := range claims.Items {
			if ticket.Has(claims.Items[i].Annotations) {
				return fmt.Errorf("%s has a ticket", claims.Items[i].Name)
			}
		}
		return nil
	})
	stop()
	if n := <-tickets; n > 0 {
		t.Errorf("%d versions of claims had a ticket", n)
	}
}
