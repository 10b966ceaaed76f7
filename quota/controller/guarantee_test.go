package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

// holds watches for a while that something stays so.
func holds(t *testing.T, d time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err := check(t.Context()); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

func (w *world) unbound(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		p := &corev1.Pod{}
		if err := w.client.Get(ctx, client.ObjectKey{Namespace: w.ns, Name: name}, p); err != nil {
			return err
		}
		if p.Spec.NodeName != "" {
			return fmt.Errorf("pod %s is on %s", name, p.Spec.NodeName)
		}
		return nil
	}
}

// refusedByPolicy waits until the scheduler reports the policy's message on a pod.
func (w *world) refusedByPolicy(t *testing.T, name, says string) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, "the policy's message on pod "+name, func(ctx context.Context) error {
		p := &corev1.Pod{}
		if err := w.client.Get(ctx, client.ObjectKey{Namespace: w.ns, Name: name}, p); err != nil {
			return err
		}
		if p.Spec.NodeName != "" {
			t.Fatalf("pod %s got its device and is on %s", name, p.Spec.NodeName)
		}
		for _, c := range p.Status.Conditions {
			if strings.Contains(c.Message, says) {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", p.Status.Conditions)
	})
}

func TestARestartKeepsUsageAndAdmitsNothingTwice(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu-memory=50Gi")
	w.template(t, "t", "20Gi", "")
	w.start(t)
	finished := gated(withTemplate(pod("finished", "queue-q"), "t"))
	w.create(t, finished)
	w.end(t, w.bound(t, "finished"))
	w.usage(t, queue, "nvidia.com/gpu-memory=0")
	for _, name := range []string{"running-1", "running-2"} {
		w.create(t, gated(withTemplate(pod(name, "queue-q"), "t")))
		w.bound(t, name)
	}
	pending := gated(withTemplate(pod("pending", "queue-q"), "t"))
	w.create(t, pending)
	w.waits(t, pending, "20Gi")
	w.usage(t, queue, "nvidia.com/gpu-memory=40Gi")

	versions := func() map[string]string {
		all := map[string]string{}
		var wls kueue.WorkloadList
		if err := w.client.List(t.Context(), &wls, client.InNamespace(w.ns)); err != nil {
			t.Fatal(err)
		}
		for i := range wls.Items {
			wl := &wls.Items[i]
			all[wl.Name] = fmt.Sprint(wl.UID, wl.Status.Admission != nil, len(wl.Status.Conditions))
		}
		return all
	}
	before := versions()
	w.halt()
	w.start(t)
	holds(t, 3*time.Second, "after the restart", func(ctx context.Context) error {
		if after := versions(); fmt.Sprint(after) != fmt.Sprint(before) {
			return fmt.Errorf("workloads were %v, are %v", before, after)
		}
		return w.unbound("pending")(ctx)
	})
	w.usage(t, queue, "nvidia.com/gpu-memory=40Gi")
}

func TestWithoutTheControllerNothingIsOverAdmittedAndOthersRun(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	w.queue(t, "q", flavor, "nvidia.com/gpu-memory=50Gi")
	w.template(t, "t", "20Gi", "")
	// Nothing of ours runs: neither controller nor webhook.
	plain := pod("plain", "")
	plain.Labels = nil
	plain.Spec.NodeSelector = map[string]string{"team": w.ns}
	w.create(t, plain)
	w.bound(t, "plain")
	w.create(t, withTemplate(pod("wants-gpu", "queue-q"), "t"))
	w.refusedByPolicy(t, "wants-gpu", "has no ticket")
	holds(t, 2*time.Second, "no device without a ticket", w.unbound("wants-gpu"))
	// It is picked up when the controller is back.
	w.start(t)
	w.bound(t, "wants-gpu")
}

func TestGoingAroundTheGateGetsNoDevice(t *testing.T) {
	w := newWorld(t)
	node := w.node(t, "n1", 1, "80Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu-memory=10Gi")
	w.template(t, "t", "20Gi", "")
	c := w.start(t)
	w.serveWebhook(t, c)

	// No label at all.
	unlabelled := withTemplate(pod("unlabelled", ""), "t")
	unlabelled.Labels = nil
	w.create(t, unlabelled)
	w.refusedByPolicy(t, "unlabelled", "has no ticket")

	// A node of one's own choice: no scheduler, so no allocation, and no kubelet
	// would start it.
	named := withTemplate(pod("named", "queue-q"), "t")
	named.Spec.NodeName = node
	w.create(t, named)
	holds(t, 2*time.Second, "no claim of the pod is allocated", func(ctx context.Context) error {
		var claims resourceapi.ResourceClaimList
		if err := w.client.List(ctx, &claims, client.InNamespace(w.ns)); err != nil {
			return err
		}
		for i := range claims.Items {
			if claims.Items[i].Status.Allocation != nil || ticket.Has(claims.Items[i].Annotations) {
				return fmt.Errorf("claim %s: %v", claims.Items[i].Name, claims.Items[i].Annotations)
			}
		}
		return nil
	})

	// Nothing is reserved for it, or for a claim that only it waits for.
	claim := &resourceapi.ResourceClaim{Spec: claimSpec("5Gi", "")}
	claim.Name = "by-name"
	w.create(t, claim)
	small := withClaim(pod("small", "queue-q"), "by-name")
	small.Spec.NodeName = node
	w.template(t, "fits", "1Gi", "")
	fits := withTemplate(pod("fits", "queue-q"), "fits")
	fits.Spec.NodeName = node
	w.create(t, small)
	w.create(t, fits)
	w.told(t, "fits", "NotAdmitted", "without spec.nodeName")
	pinned := claimingJob("pinned", "fits", 1)
	pinned.Spec.Template.Spec.NodeName = node
	w.create(t, pinned)
	w.waits(t, pinned, "leave out spec.nodeName")
	holds(t, 2*time.Second, "nothing is reserved", func(ctx context.Context) error {
		var all kueue.WorkloadList
		if err := w.client.List(ctx, &all, client.InNamespace(w.ns)); err != nil {
			return err
		}
		for i := range all.Items {
			if a := all.Items[i].Status.Admission; a != nil && len(a.PodSetAssignments[0].ResourceUsage) > 0 {
				return fmt.Errorf("%s holds %v", all.Items[i].Name, a.PodSetAssignments[0].ResourceUsage)
			}
		}
		return nil
	})

	// The gate taken off by hand is the policy's matter; see package ticket.
	over := withTemplate(pod("over", "queue-q"), "t")
	w.create(t, over)
	w.waits(t, over, "20Gi")
	w.usage(t, queue, "nvidia.com/gpu-memory=0")
}

func TestAClaimSharedByManyPodsIsChargedOnce(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	own := w.queue(t, "own", flavor, "nvidia.com/gpu-memory=50Gi")
	other := w.queue(t, "other", flavor, "nvidia.com/gpu-memory=50Gi")
	w.start(t)
	claim := &resourceapi.ResourceClaim{Spec: claimSpec("30Gi", "")}
	claim.Name = "shared"
	claim.Labels = map[string]string{controller.QueueLabel: "queue-own"}
	w.create(t, claim)
	for i := range 5 {
		queue := "queue-own"
		if i%2 == 1 {
			queue = "queue-other"
		}
		w.create(t, gated(withClaim(pod(fmt.Sprintf("user-%d", i), queue), "shared")))
	}
	for i := range 5 {
		w.bound(t, fmt.Sprintf("user-%d", i))
	}
	w.usage(t, own, "nvidia.com/gpu-memory=30Gi")
	w.usage(t, other, "nvidia.com/gpu-memory=0")
}

func TestAReleasedClaimsOldTicketAdmitsNobody(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu-memory=50Gi")
	w.start(t)
	claim := &resourceapi.ResourceClaim{Spec: claimSpec("30Gi", "")}
	claim.Name = "shared"
	w.create(t, claim)
	w.create(t, gated(withClaim(pod("first", "queue-q"), "shared")))
	w.end(t, w.bound(t, "first"))
	apitest.Eventually(t, apitest.Patience, "ticket gone with the release", func(ctx context.Context) error {
		now := &resourceapi.ResourceClaim{}
		if err := w.client.Get(ctx, types.NamespacedName{Namespace: w.ns, Name: "shared"}, now); err != nil {
			return err
		}
		if now.Status.Allocation != nil || ticket.Has(now.Annotations) {
			return fmt.Errorf("allocated %v, annotations %v", now.Status.Allocation != nil, now.Annotations)
		}
		return nil
	})
	w.usage(t, queue, "nvidia.com/gpu-memory=0")
	stranger := withClaim(pod("stranger", ""), "shared")
	stranger.Labels = nil
	w.create(t, stranger)
	w.refusedByPolicy(t, "stranger", "has no ticket")
}

func TestAQueueWithoutDeviceQuotaAdmitsNoDevice(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	w.queue(t, "cpu", flavor, "cpu=100")
	w.template(t, "t", "20Gi", "")
	w.start(t)
	p := gated(withTemplate(pod("gpu", "queue-cpu"), "t"))
	w.create(t, p)
	w.waits(t, p, "nvidia.com/gpu")
	plain := gated(pod("plain", "queue-cpu"))
	plain.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1")}
	w.create(t, plain)
	w.bound(t, "plain")
}

func TestAbsurdRequestsAreRefusedWithAReason(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu=8", "nvidia.com/gpu-memory=100Gi")
	w.start(t)
	huge := claimSpec("1Gi", "")
	huge.Devices.Requests[0].Exactly.Count = 1<<63 - 1
	for name, spec := range map[string]struct {
		spec resourceapi.ResourceClaimSpec
		says string
	}{
		"negative": {claimSpec("-1Gi", ""), "more than zero"},
		"too-big":  {claimSpec("90Gi", ""), "80Gi"},
		"overflow": {claimSpec("9223372036854775807", ""), "larger than can be counted"},
		"count":    {huge, "9223372036854775807 devices asked"},
	} {
		x := &resourceapi.ResourceClaimTemplate{}
		x.Name = name
		x.Spec.Spec = spec.spec
		w.create(t, x)
		p := gated(withTemplate(pod(name, "queue-q"), name))
		w.create(t, p)
		w.waits(t, p, spec.says)
	}
	w.usage(t, queue, "nvidia.com/gpu=0", "nvidia.com/gpu-memory=0")
}

func TestAWorkloadDeletedByMistakeIsMadeAgainWithItsQuota(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu-memory=30Gi")
	w.template(t, "t", "20Gi", "")
	w.start(t)
	p := gated(withTemplate(pod("runs", "queue-q"), "t"))
	w.create(t, p)
	w.bound(t, "runs")
	old, err := w.workloadOf(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.client.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	holds(t, 2*time.Second, "the deleted Workload stays while its pod runs", func(ctx context.Context) error {
		now, err := w.workloadOf(ctx, p)
		if err != nil {
			return err
		}
		if now.UID != old.UID || now.DeletionTimestamp == nil || now.Status.Admission == nil {
			return fmt.Errorf("uid %s, deleted %v, admission %v", now.UID, now.DeletionTimestamp, now.Status.Admission)
		}
		return nil
	})
	// Taken away by force it is made again.
	force := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
	if err := w.client.Patch(t.Context(), old, force); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, apitest.Patience, "made again", func(ctx context.Context) error {
		now, err := w.workloadOf(ctx, p)
		if err != nil {
			return err
		}
		if now.UID == old.UID || now.Status.Admission == nil {
			return fmt.Errorf("uid %s, admission %v", now.UID, now.Status.Admission)
		}
		return nil
	})
	w.usage(t, queue, "nvidia.com/gpu-memory=20Gi")
	second := gated(withTemplate(pod("second", "queue-q"), "t"))
	w.create(t, second)
	w.waits(t, second, "20Gi")
}

func TestARestartBetweenAdmissionAndOpenGatesKeepsThePlaces(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu-memory=500Gi")
	w.template(t, "t", "50Gi", "")
	w.start(t)
	// Admitted, but its gate cannot open: another gate holds its claim's pod back
	// from the scheduler, so nothing is allocated when the controller stops.
	first := gated(withTemplate(pod("first", "queue-q"), "t"))
	first.Spec.SchedulingGates = append(first.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "example.com/later"})
	w.create(t, first)
	w.usage(t, queue, "nvidia.com/gpu-memory=50Gi")
	w.halt()
	w.start(t)
	second := gated(withTemplate(pod("second", "queue-q"), "t"))
	w.create(t, second)
	w.waits(t, second, "no card has 50Gi free")
	w.usage(t, queue, "nvidia.com/gpu-memory=50Gi")
}
