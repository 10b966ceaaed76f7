package scenarios

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// holdsSlice checks, from within the pod, that a program gets the 6Gi of slice and not a byte more.
// A kubelet that has just started may not serve exec yet.
func holdsSlice(t *testing.T, ctx context.Context, ns, name string) {
	t.Helper()
	err := testbed.Until(patient(t, ctx), "pod "+name+" to show that it is held to its slice", func() (bool, string, error) {
		_, err := bed.Cluster.Kubectl(ctx, "exec", "--namespace", ns, name, "--",
			"/usr/bin/cudaprobe", "alloc:6Gi=SUCCESS", "alloc:1=OUT_OF_MEMORY")
		if err != nil && strings.Contains(err.Error(), "unable to upgrade connection") {
			return false, err.Error(), nil
		}
		return err == nil, "", err
	})
	if err != nil {
		t.Error(err)
	}
}

// stays checks that the pod runs on, in the same containers, with the same share and held to it.
func stays(t *testing.T, ctx context.Context, ns, name string, before *corev1.Pod, share testbed.Share) {
	t.Helper()
	pod, err := bed.WaitPhase(patient(t, ctx), ns, name, corev1.PodRunning)
	if err != nil {
		t.Error(err)
		return
	}
	if pod.UID != before.UID || pod.Status.ContainerStatuses[0].RestartCount != before.Status.ContainerStatuses[0].RestartCount {
		t.Errorf("pod %s was restarted: %d restarts", name, pod.Status.ContainerStatuses[0].RestartCount)
	}
	shares, err := bed.Shares(ctx, ns, name)
	if err != nil || len(shares) != 1 || shares[0] != share {
		t.Errorf("pod %s had %+v, now has %+v (%v)", name, share, shares, err)
	}
	holdsSlice(t, ctx, ns, name)
}

// running starts a pod with a 6Gi slice on the node and returns it with its share.
func running(t *testing.T, ctx context.Context, ns, name, node string) (*corev1.Pod, testbed.Share) {
	t.Helper()
	share := only(t, runPod(t, ctx, ns, testbed.Pod(name, []string{"hold"}, testbed.OnNode(node), testbed.WithTemplate("slice"))))
	pod, err := bed.Client.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod, share
}

func slice(t *testing.T, ctx context.Context, ns string) {
	t.Helper()
	create(t, ctx, ns, testbed.Template("slice", testbed.Capacity{Memory: "6Gi"}))
}

func TestDriverRestartLeavesRunningPodsAloneAndServesNewOnes(t *testing.T) {
	ctx, ns := scenario(t)
	slice(t, ctx, ns)
	pod, share := running(t, ctx, ns, "before", dynamicNode)
	if err := bed.RestartDriver(ctx, dynamicNode); err != nil {
		t.Fatal(err)
	}
	stays(t, ctx, ns, "before", pod, share)
	_, other := running(t, ctx, ns, "after", dynamicNode)
	if other.ShareID == share.ShareID {
		t.Errorf("both pods have share %s", share.ShareID)
	}
}

func TestKubeletRestartLeavesRunningPodsAloneAndBringsTheSlicesBack(t *testing.T) {
	ctx, ns := scenario(t)
	slice(t, ctx, ns)
	pod, share := running(t, ctx, ns, "before", dynamicNode)
	devices, err := bed.Devices(ctx, dynamicNode)
	if err != nil {
		t.Fatal(err)
	}
	if err := bed.Cluster.Restart(ctx, "kubelet@"+dynamicNode); err != nil {
		t.Fatal(err)
	}
	err = testbed.Until(patient(t, ctx), "the node's devices to be published again", func() (bool, string, error) {
		now, err := bed.Devices(ctx, dynamicNode)
		return err == nil && fmt.Sprint(now) == fmt.Sprint(devices), fmt.Sprintf("published: %v (%v)", now, err), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	stays(t, ctx, ns, "before", pod, share)
	running(t, ctx, ns, "after", dynamicNode)
}

func TestAfterANodeRebootItsPodsRunAgainWithTheirShares(t *testing.T) {
	ctx, ns := scenario(t)
	slice(t, ctx, ns)
	again := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }
	share := only(t, runPod(t, ctx, ns, testbed.Pod("p", []string{"hold"}, testbed.OnNode(dynamicNode), testbed.WithTemplate("slice"), again)))
	if err := bed.Cluster.Reboot(ctx, dynamicNode); err != nil {
		t.Fatal(err)
	}
	err := testbed.Until(patient(t, ctx), "the pod's container to run in the new boot", func() (bool, string, error) {
		pod, err := bed.Client.CoreV1().Pods(ns).Get(ctx, "p", metav1.GetOptions{})
		if err != nil || len(pod.Status.ContainerStatuses) == 0 {
			return false, fmt.Sprint(err), nil
		}
		status := pod.Status.ContainerStatuses[0]
		return status.RestartCount > 0 && status.State.Running != nil, fmt.Sprintf("%d restarts, state %+v", status.RestartCount, status.State), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	shares, err := bed.Shares(ctx, ns, "p")
	if err != nil || only(t, shares) != share {
		t.Errorf("before the reboot %+v, after it %+v (%v)", share, shares, err)
	}
	holdsSlice(t, ctx, ns, "p")
	running(t, ctx, ns, "after", dynamicNode)
}

func TestDriverUpgradeLeavesRunningPodsAlone(t *testing.T) {
	ctx, ns := scenario(t)
	slice(t, ctx, ns)
	pod, share := running(t, ctx, ns, "before", dynamicNode)
	if err := bed.RollDriver(ctx); err != nil {
		t.Fatal(err)
	}
	stays(t, ctx, ns, "before", pod, share)
	running(t, ctx, ns, "after", dynamicNode)
}
