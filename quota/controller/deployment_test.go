package controller_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// servers is the template of pods that serve, each with a GPU.
func servers(name string) corev1.PodTemplateSpec {
	p := withLimit(pod(name, "queue-q"), "1")
	p.Labels["app"] = name
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels}, Spec: p.Spec}
}

// kubelet runs and ends pods as kubelets would until the test ends, so that
// controllers which wait for that go on.
func (w *world) kubelet(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			var pods corev1.PodList
			if w.client.List(ctx, &pods, client.InNamespace(w.ns)) == nil {
				for i := range pods.Items {
					p := &pods.Items[i]
					switch {
					case p.DeletionTimestamp != nil:
						_ = w.client.Delete(ctx, p, client.GracePeriodSeconds(0))
					case p.Spec.NodeName != "" && p.Status.Phase == corev1.PodPending:
						patch := `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`
						_ = w.client.Status().Patch(ctx, p, client.RawPatch("application/merge-patch+json", []byte(patch)))
					}
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
}

// serve waits until a set of pods has so many on nodes and so many at their gates.
func (w *world) serve(t *testing.T, app string, on, held int) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, fmt.Sprintf("%d pods of %s on nodes, %d held", on, app, held), func(ctx context.Context) error {
		run, wait := 0, 0
		for _, p := range w.podsOf(t, ctx, app) {
			switch {
			case p.DeletionTimestamp != nil:
			case p.Spec.NodeName != "":
				run++
			case controller.HasGate(&p):
				wait++
			}
		}
		if run != on || wait != held {
			return fmt.Errorf("%d on nodes, %d held", run, wait)
		}
		return nil
	})
}

func (w *world) scale(t *testing.T, o client.Object, n int) {
	t.Helper()
	if err := w.client.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n))); err != nil {
		t.Fatal(err)
	}
}

func (w *world) rollOut(t *testing.T, o client.Object) {
	t.Helper()
	if err := w.client.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"template":{"metadata":{"annotations":{"version":"2"}}}}}`))); err != nil {
		t.Fatal(err)
	}
}

// rolledOut waits until all pods of an application are of the second version.
func (w *world) rolledOut(t *testing.T, app string, n int) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, app+" rolled out", func(ctx context.Context) error {
		pods := w.podsOf(t, ctx, app)
		if len(pods) != n {
			return fmt.Errorf("%d pods", len(pods))
		}
		for _, p := range pods {
			if p.Annotations["version"] != "2" || p.Spec.NodeName == "" || p.DeletionTimestamp != nil {
				return fmt.Errorf("pod %s is of version %q on node %q", p.Name, p.Annotations["version"], p.Spec.NodeName)
			}
		}
		return nil
	})
}

// With the real controllers of both. Each pod is charged by itself, and by nothing
// twice while pods take the places of others.
func TestDeploymentsAndStatefulSetsAreGovernedThroughTheirPods(t *testing.T) {
	w := newWorld(t)
	w.node(t, "fixed", 1, "80000Mi", "10000Mi", nil)
	flavor := w.flavor(t, "a100", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu=4")
	w.serveWebhook(t, w.start(t))
	w.kubelet(t)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: servers("web"),
		Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromInt32(1))}},
	}}
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{
		Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, Template: servers("db"), ServiceName: "db",
		PodManagementPolicy: appsv1.ParallelPodManagement,
	}}
	// One has the label on its pods, the other on itself.
	s.Labels = map[string]string{controller.QueueLabel: "queue-q"}
	delete(s.Spec.Template.Labels, controller.QueueLabel)
	w.create(t, d)
	w.create(t, s)
	t.Cleanup(func() {
		for _, o := range []client.Object{d, s} {
			_ = w.client.Delete(context.Background(), o, client.PropagationPolicy(metav1.DeletePropagationBackground))
		}
	})
	w.serve(t, "web", 2, 0)
	w.serve(t, "db", 2, 0)
	w.usage(t, queue, "nvidia.com/gpu=4")

	// The queue is full: more of them wait, and the others run.
	w.scale(t, d, 4)
	w.serve(t, "web", 2, 2)
	w.scale(t, s, 3)
	w.serve(t, "db", 2, 1)
	w.usage(t, queue, "nvidia.com/gpu=4")

	// What one gives up another gets.
	w.scale(t, s, 1)
	w.serve(t, "web", 3, 1)
	w.serve(t, "db", 1, 0)
	w.usage(t, queue, "nvidia.com/gpu=4")
	w.scale(t, d, 3)
	w.serve(t, "web", 3, 0)

	// In a full queue each new pod takes the quota of one that went before it.
	w.rollOut(t, d)
	w.rolledOut(t, "web", 3)
	w.rollOut(t, s)
	w.rolledOut(t, "db", 1)
	w.usage(t, queue, "nvidia.com/gpu=4")

	w.scale(t, d, 0)
	w.scale(t, s, 0)
	w.usage(t, queue, "nvidia.com/gpu=0")
}
