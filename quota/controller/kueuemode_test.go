package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

// besideKueue makes a namespace of its own in the cluster in which the real manager
// of Kueue admits. The controller does not run yet.
func besideKueue(t *testing.T) (w *world, uninstall func()) {
	t.Helper()
	s := apitest.SharedWithKueue(t, func(s *apitest.Server) error {
		s.Apply(t, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: sluice-system}\n"))
		s.Apply(t, apitest.Render(t, []string{"quota-policies.yaml", "quota-rbac.yaml", "deviceclasses.yaml"}, "quota.enforce=all", "quota.config.engine=kueue"))
		return s.StartControllers()
	})
	w = worldOn(t, s)
	uninstall = s.StartKueue(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kueue: %s", s.Log(apitest.Kueue))
		}
	})
	check := &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: "cards"}, Spec: kueue.AdmissionCheckSpec{ControllerName: controller.CheckController}}
	if err := w.client.Create(t.Context(), check); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	return w, uninstall
}

// checked makes a queue whose workloads are asked for room, and may evict those
// of lower priority.
func (w *world) checked(t *testing.T, name, flavor string, quotas ...string) string {
	t.Helper()
	cq := w.queue(t, name, flavor, quotas...)
	apitest.Eventually(t, patience, "checks of "+cq, func(ctx context.Context) error {
		q := &kueue.ClusterQueue{}
		if err := w.client.Get(ctx, client.ObjectKey{Name: cq}, q); err != nil {
			return err
		}
		q.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{AdmissionChecks: []kueue.AdmissionCheckStrategyRule{{Name: "cards"}}}
		q.Spec.Preemption = &kueue.ClusterQueuePreemption{WithinClusterQueue: kueue.PreemptionPolicyLowerPriority}
		return w.client.Update(ctx, q)
	})
	return cq
}

// ours makes a pod one that Sluice governs beside Kueue.
func ours(p *corev1.Pod) *corev1.Pod {
	p.Labels = map[string]string{controller.BesideQueueLabel: p.Labels[controller.QueueLabel]}
	return gated(p)
}

// workload waits until the Workload of an object is as wanted.
func (w *world) workload(t *testing.T, owner client.Object, what string, as func(*kueue.Workload) bool) *kueue.Workload {
	t.Helper()
	var wl *kueue.Workload
	apitest.Eventually(t, patience, owner.GetName()+": "+what, func(ctx context.Context) (err error) {
		if wl, err = w.workloadOf(ctx, owner); err != nil {
			return err
		}
		if !as(wl) {
			return fmt.Errorf("conditions %v, checks %v", wl.Status.Conditions, wl.Status.AdmissionChecks)
		}
		return nil
	})
	return wl
}

func TestBesideKueueItAdmitsWhatCardsHaveRoomFor(t *testing.T) {
	w, uninstall := besideKueue(t)
	w.startWith(t, "engine: kueue")
	w.node(t, "a", 2, "80Gi", "", nil)
	f := w.flavor(t, "f", nil)
	big := w.checked(t, "big", f, "nvidia.com/gpu=3", "nvidia.com/gpu-memory=160Gi")
	w.checked(t, "small", f, "nvidia.com/gpu=1", "nvidia.com/gpu-memory=100Gi")
	w.template(t, "half", "50Gi", "")
	w.template(t, "part", "20Gi", "")
	classes := &kueue.WorkloadPriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "urgent"}, Value: 1000}
	if err := w.client.Create(t.Context(), classes); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}

	// Kueue reserves quota, cards have room: both run, one on each card.
	first, second := ours(withTemplate(pod("first", "queue-big"), "half")), ours(withTemplate(pod("second", "queue-big"), "half"))
	w.create(t, first)
	w.create(t, second)
	first, _ = w.bound(t, "first"), w.bound(t, "second")
	wl := w.workload(t, first, "admitted", func(wl *kueue.Workload) bool {
		return meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadAdmitted)
	})
	usage := wl.Status.Admission.PodSetAssignments[0].ResourceUsage
	if n, m := usage["nvidia.com/gpu"], usage["nvidia.com/gpu-memory"]; n.Value() != 1 || m.Cmp(resource.MustParse("50Gi")) != 0 {
		t.Errorf("Kueue counts %v", usage)
	}

	// The budget allows a third, no card does.
	third := ours(withTemplate(pod("third", "queue-big"), "half"))
	w.create(t, third)
	w.workload(t, third, "waits for a card", func(wl *kueue.Workload) bool {
		c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted)
		return c != nil && c.Reason == kueue.WorkloadEvictedByAdmissionCheck && strings.Contains(c.Message, "no card has 50Gi free; largest holes 30Gi on")
	})

	// A smaller one behind it does fit; the next is over its budget, by Kueue's decision.
	low := ours(withTemplate(pod("low", "queue-small"), "part"))
	w.create(t, low)
	low = w.bound(t, "low")
	over := ours(withTemplate(pod("over", "queue-small"), "part"))
	w.create(t, over)
	wl = w.workload(t, over, "made", func(*kueue.Workload) bool { return true })
	w.queueSays(t, wl.Name, "Pending", "insufficient unused quota for nvidia.com/gpu in flavor")

	// A whole card by a limit costs all of its memory, which the budget does not have.
	whole := ours(withLimit(pod("whole", "queue-big"), "1"))
	w.create(t, whole)
	wl = w.workload(t, whole, "made", func(*kueue.Workload) bool { return true })
	w.queueSays(t, wl.Name, "Pending", "quota for nvidia.com/gpu-memory in flavor")
	if got := wl.Spec.PodSets[0].Template.Spec.Containers[0].Resources.Requests["nvidia.com/gpu-memory"]; got.Cmp(resource.MustParse("80Gi")) != 0 {
		t.Errorf("a whole card is told to Kueue as %s", got.String())
	}
	if err := w.client.Delete(t.Context(), whole, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}

	// Whoever does not ask gets nothing.
	sneak := withTemplate(pod("sneak", ""), "part")
	sneak.Labels = nil
	w.create(t, sneak)

	// A job of higher priority: Kueue evicts, Sluice carries it out.
	job := w.besideJob("urgent", "queue-small", "part")
	w.create(t, job)
	apitest.Eventually(t, patience, "low is told to go", func(ctx context.Context) error {
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(low), low); err != nil {
			return err
		}
		if low.DeletionTimestamp == nil {
			return fmt.Errorf("it is not being deleted")
		}
		return nil
	})
	// Its devices are in use until it is gone, and so is its quota.
	if wl, err := w.workloadOf(t.Context(), low); err != nil || wl.Status.Admission == nil {
		t.Errorf("the quota of a pod that runs yet was given back: %v", err)
	}
	if err := w.client.Delete(t.Context(), low, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	w.jobRuns(t, "urgent")

	// Kueue's own integration goes on with what has Kueue's label.
	w.queue(t, "cpu", w.flavor(t, "cpu", nil), "cpu=4")
	plain := w.besideJob("plain", "queue-cpu", "")
	plain.Labels = map[string]string{controller.QueueLabel: "queue-cpu"}
	w.create(t, plain)
	w.jobRuns(t, "plain")
	var all kueue.WorkloadList
	if err := w.client.List(t.Context(), &all, client.InNamespace(w.ns)); err != nil {
		t.Fatal(err)
	}
	for i := range all.Items {
		if o := metav1.GetControllerOf(&all.Items[i]); o != nil && o.UID == plain.UID && all.Items[i].Annotations != nil {
			t.Errorf("Workload %s of Kueue's job was made here: %v", all.Items[i].Name, all.Items[i].Annotations)
		}
	}

	// Both labels, and no webhook that would take one off: Kueue's word alone counts,
	// and gives no device.
	both := w.besideJob("both", "queue-cpu", "part")
	both.Labels[controller.QueueLabel] = "queue-cpu"
	w.create(t, both)
	w.queueSays(t, "both", "NotGoverned", "only one can start it")

	// Room: the one that waited for it runs, though nobody touched it.
	w.end(t, first)
	w.bound(t, "third")
	w.usage(t, big, "nvidia.com/gpu=2", "nvidia.com/gpu-memory=100Gi")
	w.withoutTicket(t, "sneak", "over")

	// Kueue goes, its kinds stay: the embedded engine takes over.
	w.halt()
	uninstall()
	apitest.Eventually(t, patience, "the embedded engine may start", func(context.Context) error { return w.setup(t, "") })
	w.start(t)
	cq := &kueue.ClusterQueue{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: big}, cq); err != nil {
		t.Fatal(err)
	}
	cq.Spec.AdmissionChecksStrategy = nil
	if err := w.client.Update(t.Context(), cq); err != nil {
		t.Fatal(err)
	}
	w.create(t, gated(withTemplate(pod("later", "queue-big"), "part")))
	w.bound(t, "later")
	w.usage(t, big, "nvidia.com/gpu=3", "nvidia.com/gpu-memory=120Gi")
}

// besideJob is a suspended job of one pod.
func (w *world) besideJob(name, queue, template string) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{controller.BesideQueueLabel: queue, controller.PriorityLabel: "urgent"}}}
	p := pod(name, queue)
	p.Labels = nil
	if template != "" {
		withTemplate(p, template)
	}
	j.Spec = batchv1.JobSpec{Suspend: ptr.To(true), Template: corev1.PodTemplateSpec{Spec: p.Spec}}
	return j
}

// jobRuns waits until the pod of a job is on a node.
func (w *world) jobRuns(t *testing.T, name string) {
	t.Helper()
	apitest.Eventually(t, patience, "job "+name+" runs", func(ctx context.Context) error {
		var pods corev1.PodList
		if err := w.client.List(ctx, &pods, client.InNamespace(w.ns), client.MatchingLabels{batchv1.JobNameLabel: name}); err != nil {
			return err
		}
		for i := range pods.Items {
			if pods.Items[i].Spec.NodeName != "" {
				return nil
			}
		}
		return fmt.Errorf("%d pods, none on a node", len(pods.Items))
	})
}

// withoutTicket asserts that the claims of pods have neither ticket nor devices.
func (w *world) withoutTicket(t *testing.T, pods ...string) {
	t.Helper()
	var claims resourceapi.ResourceClaimList
	if err := w.client.List(t.Context(), &claims, client.InNamespace(w.ns)); err != nil {
		t.Fatal(err)
	}
	for _, name := range pods {
		seen := false
		for i := range claims.Items {
			c := &claims.Items[i]
			if o := metav1.GetControllerOf(c); o == nil || o.Name != name {
				continue
			}
			seen = true
			if ticket.Has(c.Annotations) || c.Status.Allocation != nil {
				t.Errorf("pod %s was not admitted, and its claim has ticket %v, devices %v", name, ticket.Has(c.Annotations), c.Status.Allocation != nil)
			}
		}
		if !seen {
			t.Errorf("pod %s has no claim", name)
		}
	}
}
