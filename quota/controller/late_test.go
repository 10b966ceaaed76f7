package controller_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// wire is what a controller's requests go through. It can lose the answers of
// those that admit a Workload, and keep them back, as a network does whose peer
// dies: the API server carries them out later.
type wire struct {
	http.RoundTripper
	mu sync.Mutex
	// lose says that requests which admit are kept back and answered with an
	// error, hold that those about the named Workload wait until it is closed.
	lose bool
	kept []*http.Request
	name string
	hold chan struct{}
}

func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body == nil || !strings.Contains(req.URL.Path, "/workloads/") || req.Method == http.MethodGet {
		return w.RoundTripper.RoundTrip(req)
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	_ = req.Body.Close()
	req.Body = io.NopCloser(bytes.NewReader(body))
	w.mu.Lock()
	if w.lose && bytes.Contains(body, []byte(`"admission":{`)) {
		later := req.Clone(context.Background())
		later.Body = io.NopCloser(bytes.NewReader(body))
		w.kept = append(w.kept, later)
		w.mu.Unlock()
		return nil, errors.New("the connection was lost before an answer came")
	}
	held := w.hold
	if w.name == "" || !strings.Contains(req.URL.Path, "/"+w.name+"/") {
		held = nil
	}
	w.mu.Unlock()
	if held != nil {
		<-held
	}
	return w.RoundTripper.RoundTrip(req)
}

// deliver carries out what was kept back, and says how the API server answered.
func (w *wire) deliver(t *testing.T) int {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.kept) == 0 {
		t.Fatal("nothing was kept back")
	}
	answer, err := w.RoundTripper.RoundTrip(w.kept[0])
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}

func (w *wire) lost() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.kept)
}

// through has a controller's requests go through a wire.
func through(to *wire) func(*rest.Config) {
	return func(c *rest.Config) {
		c.Wrap(func(rt http.RoundTripper) http.RoundTripper {
			to.mu.Lock()
			defer to.mu.Unlock()
			to.RoundTripper = rt
			return to
		})
	}
}

// The leader dies with an admission on its way. The next gives the quota to
// another; then the API server carries the old request out.
func TestAnAdmissionThatArrivesAfterItsLeaderOpensNothingAndIsTakenBack(t *testing.T) {
	for name, made := range map[string]func(*world) client.Object{
		"of a pod": func(w *world) client.Object { return gated(withTemplate(pod("first", "queue-q"), "t")) },
		"of a job": func(w *world) client.Object {
			j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "first", Labels: map[string]string{controller.QueueLabel: "queue-q"}}}
			j.Spec.Suspend = ptr.To(true)
			j.Spec.Template.Spec = withTemplate(pod("x", ""), "t").Spec
			return j
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.node(t, "n1", 2, "80Gi", "", nil)
			queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu=1")
			w.template(t, "t", "20Gi", "")
			first := made(w)
			w.create(t, first)

			old := &wire{lose: true}
			w.startWith(t, "", through(old))
			apitest.Eventually(t, patience, "the first is being admitted", func(context.Context) error {
				if old.lost() == 0 {
					return errors.New("not yet")
				}
				return nil
			})
			// One that goes before it comes a moment later.
			class := &kueue.WorkloadPriorityClass{ObjectMeta: metav1.ObjectMeta{Name: w.ns + "-high"}, Value: 100}
			if err := w.client.Create(t.Context(), class); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = w.client.Delete(context.Background(), class) })
			second := gated(withTemplate(pod("second", "queue-q"), "t"))
			second.Labels[controller.PriorityLabel] = class.Name
			w.create(t, second)
			apitest.Eventually(t, patience, "the second is queued", func(ctx context.Context) error {
				_, err := w.workloadOf(ctx, second)
				return err
			})
			w.halt()
			late, err := w.workloadOf(t.Context(), first)
			if err != nil {
				t.Fatal(err)
			}

			// The new leader has not come to writing anything about the first.
			next := &wire{name: late.Name, hold: make(chan struct{})}
			release := sync.OnceFunc(func() { close(next.hold) })
			t.Cleanup(release)
			w.startWith(t, "", through(next))
			w.bound(t, "second")
			w.usage(t, queue, "nvidia.com/gpu=1")
			opened := w.watchOpen(t, first)
			if code := old.deliver(t); code != http.StatusOK {
				t.Fatalf("the late request was answered with %d", code)
			}
			release()
			apitest.Eventually(t, patience, "the late admission is taken back", func(ctx context.Context) error {
				wl, err := w.workloadOf(ctx, first)
				if err != nil {
					return err
				}
				if wl.ResourceVersion == late.ResourceVersion || wl.Status.Admission != nil {
					return fmt.Errorf("admission %v", wl.Status.Admission)
				}
				return nil
			})
			w.usage(t, queue, "nvidia.com/gpu=1")
			if what := opened(); what != "" {
				t.Errorf("by the late admission %s", what)
			}
			// It is not lost: when there is quota it is admitted as any other.
			w.end(t, w.bound(t, "second"))
			apitest.Eventually(t, patience, "the first is admitted in its turn", func(ctx context.Context) error {
				wl, err := w.workloadOf(ctx, first)
				if err != nil {
					return err
				}
				if !conditionIs(wl, kueue.WorkloadAdmitted) {
					return fmt.Errorf("conditions %v", wl.Status.Conditions)
				}
				return nil
			})
		})
	}
}

// watchOpen says afterwards what was opened or started of an object.
func (w *world) watchOpen(t *testing.T, o client.Object) func() string {
	t.Helper()
	live, err := client.NewWithWatch(w.Admin, client.Options{Scheme: w.client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := live.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(w.ns))
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := live.Watch(t.Context(), &batchv1.JobList{}, client.InNamespace(w.ns))
	if err != nil {
		t.Fatal(err)
	}
	found := make(chan string, 1)
	go func() {
		what := ""
		for e := range pods.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok && p.Name != "second" && !controller.HasGate(p) {
				what = "pod " + p.Name + " was opened"
			}
		}
		for e := range jobs.ResultChan() {
			if j, ok := e.Object.(*batchv1.Job); ok && !ptr.Deref(j.Spec.Suspend, false) {
				what = "job " + j.Name + " was started"
			}
		}
		found <- what
	}()
	return func() string {
		pods.Stop()
		jobs.Stop()
		return <-found
	}
}
