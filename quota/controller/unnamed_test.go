package controller_test

import (
	"context"
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/jobs"
)

// withoutQueue is a job, or a pod, that names none.
func withoutQueue[T client.Object](o T) T {
	o.SetLabels(map[string]string{"app": o.GetName()})
	return o
}

// heldJob waits until a job is suspended, or not.
func (w *world) heldJob(t *testing.T, j *batchv1.Job, suspended bool) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, fmt.Sprintf("%s suspended: %v", j.Name, suspended), func(ctx context.Context) error {
		now := &batchv1.Job{}
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(j), now); err != nil {
			return err
		}
		if ptr.Deref(now.Spec.Suspend, false) != suspended {
			return fmt.Errorf("suspended %v", now.Spec.Suspend)
		}
		return nil
	})
}

// Where every job has to name a queue, so have pods that ask for devices; the
// others and other namespaces are left alone.
func TestJobsAndPodsWithoutAQueueAreHeldOrPutIntoTheDefaultOne(t *testing.T) {
	w := newWorld(t)
	w.node(t, "fixed", 2, "80000Mi", "20000Mi", nil)
	flavor := w.flavor(t, "a100", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu=8")
	c := w.startWith(t, "manageJobsWithoutQueueName: true\nlocalQueueDefaulting: true\nmanagedJobsNamespaceSelector: {matchLabels: {managed: "+w.ns+"}}\n")
	w.serveWebhook(t, c, "quota.config.manageJobsWithoutQueueName=true", "quota.config.localQueueDefaulting=true")
	bare := func(name, gpus string) *batchv1.Job {
		j := withoutQueue(job(name, "", 1, gpus))
		j.Spec.Suspend = nil
		return j
	}
	gates := func(name string) bool {
		t.Helper()
		p := &corev1.Pod{}
		if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: w.ns, Name: name}, p); err != nil {
			t.Fatal(err)
		}
		return controller.HasGate(p)
	}

	free := bare("elsewhere", "")
	w.create(t, free)
	w.create(t, withoutQueue(withLimit(pod("pod-elsewhere", ""), "1")))
	w.allBound(t, "elsewhere", 1)
	if gates("pod-elsewhere") {
		t.Error("a pod of another namespace is held")
	}

	manage := func(value string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"labels":{"managed":%s}}}`, value)
		if err := w.client.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	manage(`"` + w.ns + `"`)
	apitest.Eventually(t, apitest.Patience, "namespace managed", func(ctx context.Context) error {
		j := bare("probe", "1")
		j.Namespace = w.ns
		if err := w.client.Create(ctx, j, client.DryRunAll); err != nil {
			return err
		}
		if !ptr.Deref(j.Spec.Suspend, false) {
			return fmt.Errorf("a job is not suspended")
		}
		return nil
	})

	held := bare("held", "1")
	w.create(t, held)
	w.create(t, withoutQueue(withLimit(pod("pod-held", ""), "1")))
	w.create(t, withoutQueue(pod("pod-plain", "")))
	if !ptr.Deref(held.Spec.Suspend, false) || !gates("pod-held") || gates("pod-plain") {
		t.Errorf("job suspended %v, pod with a device gated %v, without one %v", held.Spec.Suspend, gates("pod-held"), gates("pod-plain"))
	}
	w.hearsAny(t, "Job", "held", "NotGoverned", "it names no queue")
	w.hearsAny(t, "Pod", "pod-held", "NotGoverned", "it names no queue")
	w.usage(t, queue, "nvidia.com/gpu=0")
	for _, o := range []client.Object{held, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "pod-held"}}} {
		if err := w.label(t, o, controller.QueueLabel, "queue-q"); err != nil {
			t.Fatal(err)
		}
	}
	w.allBound(t, "held", 1)
	w.bound(t, "pod-held")
	w.usage(t, queue, "nvidia.com/gpu=2")

	lq := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: controller.DefaultQueue}}
	lq.Spec.ClusterQueue = kueue.ClusterQueueReference(queue)
	if err := w.client.Create(t.Context(), lq); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, apitest.Patience, "default queue used", func(ctx context.Context) error {
		p := withoutQueue(withLimit(pod("probe", ""), "1"))
		p.Namespace = w.ns
		if err := w.client.Create(ctx, p, client.DryRunAll); err != nil {
			return err
		}
		if p.Labels[controller.QueueLabel] != controller.DefaultQueue {
			return fmt.Errorf("labels %v", p.Labels)
		}
		return nil
	})
	w.create(t, bare("defaulted", "1"))
	w.create(t, withoutQueue(withLimit(pod("pod-defaulted", ""), "1")))
	w.allBound(t, "defaulted", 1)
	w.bound(t, "pod-defaulted")
	w.usage(t, queue, "nvidia.com/gpu=4")

	// While no webhook runs the controller holds them, and lets them go when the
	// namespace is another's.
	w.hook.remove()
	w.hook = nil
	late := bare("late", "")
	w.create(t, late)
	w.heldJob(t, late, true)
	waiting := gated(withoutQueue(pod("pod-late", "")))
	waiting.Annotations = map[string]string{jobs.HeldAnnotation: "true"}
	w.create(t, waiting)
	w.hearsAny(t, "Pod", "pod-late", "NotGoverned", "it names no queue")
	manage("null")
	w.bound(t, "pod-late")
	w.heldJob(t, late, false)
}

// hearsAny waits until an object was told something.
func (w *world) hearsAny(t *testing.T, kind, name, reason, says string) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, kind+" "+name+" told "+says, func(ctx context.Context) error {
		return w.heard(ctx, kind, name, reason, says, 1)
	})
}
