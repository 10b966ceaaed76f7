package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/pricing"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

// told waits for an event on a pod or job.
func (w *world) told(t *testing.T, name, reason, says string) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, "event "+reason+" on "+name, func(ctx context.Context) error {
		var events corev1.EventList
		if err := w.client.List(ctx, &events, client.InNamespace(w.ns)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.HasPrefix(e.InvolvedObject.Name, name) && e.Reason == reason && strings.Contains(e.Message, says) {
				return nil
			}
		}
		return fmt.Errorf("%d events", len(events.Items))
	})
}

// tickets sums the tickets and counts the allocations of the namespace.
func (w *world) tickets(ctx context.Context) (pricing.Price, error) {
	var sum pricing.Price
	var claims resourceapi.ResourceClaimList
	if err := w.client.List(ctx, &claims, client.InNamespace(w.ns)); err != nil {
		return sum, err
	}
	for i := range claims.Items {
		tick, err := ticket.Read(claims.Items[i].Annotations)
		if err != nil {
			return sum, err
		}
		if tick != nil {
			sum = sum.Add(tick.Price)
		}
	}
	return sum, nil
}

// neverMore watches for a while that tickets stay within what was admitted.
func (w *world) neverMore(t *testing.T, d time.Duration, most pricing.Price) {
	t.Helper()
	holds(t, d, "tickets stay within the admission", func(ctx context.Context) error {
		sum, err := w.tickets(ctx)
		if err == nil && !most.Covers(sum) {
			err = fmt.Errorf("tickets for %v, admitted %v", sum, most)
		}
		return err
	})
}

// wholeCards is a claim for several whole cards.
func wholeCards(n int64) resourceapi.ResourceClaimSpec {
	spec := claimSpec("", "")
	spec.Devices.Requests[0].Exactly.Count = n
	return spec
}

func claimingJob(name, template string, pods int32) *batchv1.Job {
	j := job(name, "queue-q", pods, "")
	j.Spec.Template.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
	j.Spec.Template.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	return j
}

// swap puts another request under the name of a template.
func (w *world) swap(t *testing.T, name string, spec resourceapi.ResourceClaimSpec) {
	t.Helper()
	x := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	if err := w.client.Delete(t.Context(), x); err != nil {
		t.Fatal(err)
	}
	x = &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	x.Spec.Spec = spec
	w.create(t, x)
}

func (w *world) parallel(t *testing.T, name string, n int32) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"parallelism":%d}}`, n)
	if err := w.client.Patch(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		t.Fatal(err)
	}
}

func TestATemplateSwappedAfterAdmissionBuysNothingMore(t *testing.T) {
	for _, queue := range [][]string{
		{"nvidia.com/gpu=100", "nvidia.com/gpu-memory=2Gi", "nvidia.com/gpu-core-percent=1000"},
		// What the queue does not cover stays as it was admitted.
		{"nvidia.com/gpu=2"},
	} {
		t.Run(fmt.Sprint(len(queue)), func(t *testing.T) {
			w := newWorld(t)
			w.node(t, "n1", 4, "80Gi", "", nil)
			w.queue(t, "q", w.flavor(t, "gpu", nil), queue...)
			w.template(t, "t", "1Gi", "")
			w.start(t)
			j := claimingJob("train", "t", 1)
			j.Spec.Completions, j.Spec.BackoffLimit = ptr.To[int32](2), ptr.To[int32](6)
			w.create(t, j)
			first := w.allBound(t, "train", 1)
			w.swap(t, "t", wholeCards(1))
			w.end(t, &first[0])
			w.told(t, "train-", "TicketRefused", "was admitted with")
			w.neverMore(t, 2*time.Second, pricing.Price{Devices: 1, Memory: 1 << 30})
		})
	}
}

func TestAClaimMadeBeforehandForAPodIsNotTicketedBeyondItsAdmission(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 8, "80Gi", "", nil)
	w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu-memory=1Gi")
	w.start(t)
	p := gated(withTemplate(pod("sly", "queue-q"), "late"))
	w.create(t, p)
	big := &resourceapi.ResourceClaim{Spec: wholeCards(8)}
	big.Name = "big"
	big.Annotations = map[string]string{"resource.kubernetes.io/pod-claim-name": "gpu"}
	big.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(p, corev1.SchemeGroupVersion.WithKind("Pod"))}
	w.create(t, big)
	// Kubernetes' controller makes another one if it sees the template first.
	apitest.Eventually(t, patience, "the claim is the pod's", func(ctx context.Context) error {
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		if len(p.Status.ResourceClaimStatuses) == 0 {
			return fmt.Errorf("it has none")
		}
		return nil
	})
	w.template(t, "late", "1Gi", "")
	w.told(t, "sly", "TicketRefused", "was admitted with")
	w.neverMore(t, 2*time.Second, pricing.Price{})
}

func TestAPodThatPosesAsAJobsGetsNoMoreThanThatJobsPods(t *testing.T) {
	w := newWorld(t)
	w.node(t, "fixed", 8, "80000Mi", "20000Mi", nil)
	w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu=1")
	// Kubernetes' own controller, which may end either of two pods of a job that
	// wants one, leaves this job to somebody else.
	j := job("train", "queue-q", 1, "1")
	j.Spec.ManagedBy = ptr.To("example.com/nobody")
	w.create(t, j)
	sly := gated(withLimit(pod("sly", "queue-q"), "8"))
	sly.Labels["batch.kubernetes.io/controller-uid"] = string(j.UID)
	sly.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(j, batchv1.SchemeGroupVersion.WithKind("Job"))}
	w.create(t, sly)
	c := w.start(t)
	w.serveWebhook(t, c)
	w.told(t, "sly", "TicketRefused", "1 nvidia.com/gpu for each pod of set \"main\", and this pod's claims ask for 8")
	w.neverMore(t, 2*time.Second, pricing.Price{Devices: 1, Memory: 20000 << 20})
	if err := w.unbound("sly")(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAJobWhoseTemplateGrewBeforeItsStartIsAdmittedAnew(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 4, "80Gi", "", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu-memory=100Gi")
	w.template(t, "t", "1Gi", "")
	w.start(t)
	w.create(t, claimingJob("runs", "t", 1))
	w.allBound(t, "runs", 1)
	// Suspended by hand, it keeps its admission; the controller starts it again.
	w.swap(t, "t", claimSpec("30Gi", ""))
	w.create(t, claimingJob("late", "t", 1))
	w.allBound(t, "late", 1)
	w.usage(t, queue, "nvidia.com/gpu-memory=31Gi")
	suspend := []byte(`{"spec":{"suspend":true}}`)
	if err := w.client.Patch(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "runs"}}, client.RawPatch("application/merge-patch+json", suspend)); err != nil {
		t.Fatal(err)
	}
	w.told(t, "runs", "Outgrown", "30Gi nvidia.com/gpu-memory are asked for, 1Gi were admitted")
	for _, p := range w.podsOf(t, t.Context(), "runs") {
		if err := w.client.Delete(t.Context(), &p, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}
	w.usage(t, queue, "nvidia.com/gpu-memory=60Gi")
}

func TestAPodThatHidesFromTheCountLeavesItsTicketCharged(t *testing.T) {
	for name, patch := range map[string]string{
		"another set":      `{"metadata":{"labels":{"quota.sluice.dev/podset":"x"}}}`,
		"another workload": `{"metadata":{"labels":{"quota.sluice.dev/workload":"x"}}}`,
		"no owner":         `{"metadata":{"ownerReferences":null,"labels":{"batch.kubernetes.io/controller-uid":"x","controller-uid":"x"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.node(t, "n1", 4, "80Gi", "", nil)
			w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu-memory=10Gi")
			w.template(t, "t", "10Gi", "")
			w.start(t)
			w.create(t, claimingJob("train", "t", 1))
			first := w.allBound(t, "train", 1)[0]
			w.parallel(t, "train", 2)
			// A tenant; the policy may refuse what only the controller writes.
			tenant, err := client.New(w.As("tenant", "system:masters"), client.Options{Scheme: controller.Scheme()})
			if err != nil {
				t.Fatal(err)
			}
			if err := tenant.Patch(t.Context(), &first, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
				t.Logf("refused: %v", err)
			}
			w.neverMore(t, 4*time.Second, pricing.Price{Devices: 1, Memory: 10 << 30})
		})
	}
}
