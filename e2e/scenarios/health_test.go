package scenarios

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// hasTaints waits until the taints of the node's device are those, as key=effect.
func hasTaints(t *testing.T, ctx context.Context, node, device, want string) {
	t.Helper()
	err := testbed.Until(patient(t, ctx), fmt.Sprintf("the taints of %s to be %q", device, want), func() (bool, string, error) {
		slices, err := bed.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return false, err.Error(), nil
		}
		got := "no such device"
		for _, s := range slices.Items {
			for _, d := range s.Spec.Devices {
				if d.Name != device {
					continue
				}
				var taints []string
				for _, taint := range d.Taints {
					taints = append(taints, strings.TrimPrefix(taint.Key, "gpu.sluice.dev/")+"="+string(taint.Effect))
				}
				got = strings.Join(taints, " ")
			}
		}
		return got == want, got, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// fault writes the node's faults as its simulated hardware reads them.
func fault(t *testing.T, ctx context.Context, node, lines string) {
	t.Helper()
	onNode(t, ctx, node, "printf '"+lines+"' > /run/fakegpu/faults")
}

func TestADeadCardsPodsLeaveItAndItIsOfferedAgainWhenItIsBack(t *testing.T) {
	ctx, ns := scenario(t)
	slice(t, ctx, ns)
	t.Cleanup(func() { fault(t, context.Background(), dynamicNode, "") })
	_, share := running(t, ctx, ns, "p", dynamicNode)
	// The first card of the node is the first that is filled.
	fault(t, ctx, dynamicNode, `xid 0 13\n`)
	stays := func() bool {
		_, err := bed.Client.CoreV1().Pods(ns).Get(ctx, "p", metav1.GetOptions{})
		return err == nil
	}
	hasTaints(t, ctx, dynamicNode, share.Device, "")
	if !stays() {
		t.Fatal("a fault of a program's own took its pod away")
	}
	fault(t, ctx, dynamicNode, `xid 0 13\nxid 0 79\nlost 0\n`)
	hasTaints(t, ctx, dynamicNode, share.Device, "faulty=NoExecute")
	err := testbed.Until(patient(t, ctx), "the pod to leave the dead card", func() (bool, string, error) {
		pod, err := bed.Client.CoreV1().Pods(ns).Get(ctx, "p", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, "", nil
		}
		return false, fmt.Sprint(pod.Status.Conditions, err), nil
	})
	if err != nil {
		t.Error(err)
	}
	_, other := running(t, ctx, ns, "next", dynamicNode)
	if other.Device == share.Device {
		t.Error("another pod was placed on the dead card")
	}
	fault(t, ctx, dynamicNode, "")
	hasTaints(t, ctx, dynamicNode, share.Device, "")
}

func TestAPodIsToldWhyItsCardIsUnhealthy(t *testing.T) {
	ctx, ns := scenario(t)
	// It tolerates the fault, and so stays to be told. The effect must be named: without it the
	// claim is tolerated by the scheduler and not by the eviction.
	template := testbed.Template("slice", testbed.Capacity{Memory: "6Gi"})
	template.Spec.Spec.Devices.Requests[0].Exactly.Tolerations = []resourcev1.DeviceToleration{{Key: "gpu.sluice.dev/faulty", Operator: resourcev1.DeviceTolerationOpExists, Effect: resourcev1.DeviceTaintEffectNoExecute}}
	create(t, ctx, ns, template)
	t.Cleanup(func() { fault(t, context.Background(), dynamicNode, "") })
	running(t, ctx, ns, "p", dynamicNode)
	fault(t, ctx, dynamicNode, `lost 0\n`)
	health := func(want corev1.ResourceHealthStatus, message string) {
		t.Helper()
		err := testbed.Until(patient(t, ctx), "the pod's status to say that its card is "+string(want), func() (bool, string, error) {
			pod, err := bed.Client.CoreV1().Pods(ns).Get(ctx, "p", metav1.GetOptions{})
			if err != nil || len(pod.Status.ContainerStatuses) == 0 {
				return false, fmt.Sprint(err), nil
			}
			said := fmt.Sprintf("%+v", pod.Status.ContainerStatuses[0].AllocatedResourcesStatus)
			for _, r := range pod.Status.ContainerStatuses[0].AllocatedResourcesStatus {
				for _, h := range r.Resources {
					if h.Health == want && (message == "" || h.Message != nil && strings.Contains(*h.Message, message)) {
						return true, "", nil
					}
				}
			}
			return false, said, nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	health(corev1.ResourceHealthStatusUnhealthy, "the card cannot be read: no handle: card is lost")
	fault(t, ctx, dynamicNode, "")
	health(corev1.ResourceHealthStatusHealthy, "")
}

// TestANodeThatWasCutOffGivesNoMemoryTwice: while it is away its pod is deleted by force, and the
// scheduler gives the memory again; the containers run on until the kubelet hears of it.
func TestANodeThatWasCutOffGivesNoMemoryTwice(t *testing.T) {
	ctx, ns := scenario(t)
	create(t, ctx, ns, testbed.Template("half", testbed.Capacity{Memory: "50Gi"}))
	var old []string
	for i := range 4 { // on each card of the node
		old = append(old, fmt.Sprint("old-", i))
		create(t, ctx, ns, testbed.Pod(old[i], []string{"alloc:49Gi", "hold"}, testbed.OnNode(dynamicNode), testbed.WithTemplate("half")))
	}
	for _, name := range old {
		if _, err := bed.WaitPhase(patient(t, ctx), ns, name, corev1.PodRunning); err != nil {
			t.Fatal(err)
		}
	}
	if err := bed.Cluster.Cut(ctx, dynamicNode); err != nil {
		t.Fatal(err)
	}
	healed := false
	t.Cleanup(func() {
		if !healed {
			_ = bed.Cluster.Heal(context.Background(), dynamicNode)
		}
	})
	for _, name := range old {
		if _, err := bed.Cluster.Kubectl(ctx, "delete", "pod", "--namespace", ns, name, "--grace-period=0", "--force"); err != nil {
			t.Fatal(err)
		}
	}
	create(t, ctx, ns, testbed.Pod("new", []string{"alloc:49Gi=SUCCESS", "hold"}, testbed.OnNode(dynamicNode), testbed.WithTemplate("half")))
	err := testbed.Until(patient(t, ctx), "the scheduler to give the memory again", func() (bool, string, error) {
		shares, err := bed.Shares(ctx, ns, "new")
		return err == nil && len(shares) == 1, fmt.Sprint(shares, err), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := bed.Cluster.Heal(ctx, dynamicNode); err != nil {
		t.Fatal(err)
	}
	healed = true
	// Whoever was first, the new pod runs only when the old program has given its memory back.
	if _, err := bed.WaitPhase(patient(t, ctx), ns, "new", corev1.PodRunning); err != nil {
		t.Fatal(err)
	}
	if step, err := bed.WaitProbe(patient(t, ctx), ns, "new", "main", "alloc:49Gi"); err != nil || step.Result != "CUDA_SUCCESS" {
		t.Errorf("the new program was told %+v (%v)", step, err)
	}
}

// TestASliceHoldsBesideAMonitorClaim: the monitor opens every card of the node, without a limit. A
// container that has a slice as well is refused CUDA, in whatever order it names the claims, since it
// sees cards that it has no share of; in containers of their own each is what it was asked to be.
func TestASliceHoldsBesideAMonitorClaim(t *testing.T) {
	ctx, ns := scenario(t)
	labels := []byte(`{"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}`)
	if _, err := bed.Cluster.Kubectl(ctx, "patch", "namespace", ns, "--patch", string(labels)); err != nil {
		t.Fatal(err)
	}
	slice(t, ctx, ns)
	watch := testbed.Template("watch", testbed.Capacity{})
	watch.Spec.Spec.Devices.Requests[0].Exactly = &resourcev1.ExactDeviceRequest{
		DeviceClassName: "monitor.gpu.sluice.dev", AdminAccess: new(true),
	}
	create(t, ctx, ns, watch)
	for name, order := range map[string][]string{"slice-last": {"watch", "slice"}, "slice-first": {"slice", "watch"}} {
		create(t, ctx, ns, testbed.Pod(name, []string{"info", "hold"}, testbed.OnNode(dynamicNode), testbed.WithTemplate(order[0]), testbed.WithTemplate(order[1])))
		step, err := bed.WaitProbe(patient(t, ctx), ns, name, "main", "info")
		if err != nil {
			t.Fatal(err)
		}
		log, err := bed.Log(ctx, ns, name, "main")
		if err != nil || step.Result != "CUDA_ERROR_NOT_PERMITTED" || !strings.Contains(log, "is visible, but no share") {
			t.Errorf("%s: %s, %v, and says\n%s", name, step.Result, err, log)
		}
	}
	apart := testbed.Pod("apart", untilRefused, testbed.OnNode(dynamicNode), testbed.WithContainer("watch", "info", "hold"),
		testbed.WithTemplate("slice"), testbed.WithTemplate("watch"))
	for i, claim := range []string{"slice", "watch"} {
		apart.Spec.Containers[i].Resources.Claims = []corev1.ResourceClaim{{Name: claim}}
	}
	create(t, ctx, ns, apart)
	if sum := took(t, ctx, ns, "apart", "main"); sum != 6*gib {
		t.Errorf("beside a monitor a program took %d bytes of a slice of %d", sum, 6*gib)
	}
	step, err := bed.WaitProbe(patient(t, ctx), ns, "apart", "watch", "info")
	if err != nil || step.Result != "CUDA_SUCCESS" || step.Total <= 6*gib {
		t.Errorf("the monitor beside a slice sees %+v, %v", step, err)
	}
}
