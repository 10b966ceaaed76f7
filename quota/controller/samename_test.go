package controller_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// A pod is deleted as its gate is about to be opened, and another of the same name made, as a
// StatefulSet does: that one was not admitted, and its gate stays closed.
func TestAGateIsOpenedForThePodThatWasAdmittedAndNotForOneOfItsName(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu-memory=20Gi")
	w.template(t, "t", "20Gi", "")
	w.template(t, "large", "60Gi", "")
	opening, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.startWith(t, "", func(c *rest.Config) {
		c.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return transport(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/pods/web-0") {
					once.Do(func() {
						close(opening)
						<-goOn
					})
				}
				return next.RoundTrip(r)
			})
		})
	})
	first := gated(withTemplate(pod("web-0", "queue-q"), "t"))
	w.create(t, first)
	select {
	case <-opening:
	case <-time.After(apitest.Patience):
		close(goOn)
		t.Fatal("no gate is opened")
	}
	if err := w.client.Delete(t.Context(), first, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	second := gated(withTemplate(pod("web-0", "queue-q"), "large"))
	w.create(t, second)
	close(goOn)
	w.waits(t, second, "60Gi")
	w.usage(t, queue, "nvidia.com/gpu-memory=0")
	holds(t, time.Second, "the gate of the second", func(ctx context.Context) error {
		now := &corev1.Pod{}
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(second), now); err != nil {
			return err
		}
		if now.UID != second.UID || !controller.HasGate(now) {
			return fmt.Errorf("gates %v", now.Spec.SchedulingGates)
		}
		return nil
	})
}
