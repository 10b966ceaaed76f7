package scenarios

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// later is a gate of somebody else's, which holds a pod between its admission and the scheduler.
const later = "example.com/later"

// heldBack is a pod with a slice that waits for the budget, and for later after it.
func heldBack(name, template string, options ...testbed.PodOption) *corev1.Pod {
	return testbed.Pod(name, []string{"hold"}, append(options, testbed.WithTemplate(template), testbed.WithLabel("kueue.x-k8s.io/queue-name", "queue"), func(p *corev1.Pod) {
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: later})
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}
	})...)
}

// nominated waits until a pod is past the budget's gate and meant to go to the node.
func nominated(t *testing.T, ctx context.Context, ns, name, node string) {
	t.Helper()
	err := testbed.Until(patient(t, ctx), fmt.Sprintf("pod %s to be nominated to %s", name, node), func() (bool, string, error) {
		p, err := bed.Client.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		open := !slices.Contains(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "quota.sluice.dev/admission"})
		return open && p.Status.NominatedNodeName == node, fmt.Sprintf("gates %v, nominated to %q", p.Spec.SchedulingGates, p.Status.NominatedNodeName), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// letGo takes the other gate from a pod.
func letGo(t *testing.T, ctx context.Context, ns, name string) {
	t.Helper()
	if _, err := bed.Cluster.Kubectl(ctx, "patch", "pod", name, "--namespace", ns, "--type=json", "--patch", `[{"op": "remove", "path": "/spec/schedulingGates"}]`); err != nil {
		t.Fatal(err)
	}
}

// runsOn lets a pod go to the scheduler and waits until it runs on the node.
func runsOn(t *testing.T, ctx context.Context, ns, name, node string) {
	t.Helper()
	letGo(t, ctx, ns, name)
	p, err := bed.WaitPhase(patient(t, ctx), ns, name, corev1.PodRunning)
	if err != nil {
		t.Fatal(err)
	}
	if p.Spec.NodeName != node {
		t.Errorf("pod %s runs on %s, want %s", name, p.Spec.NodeName, node)
	}
}

func cordon(t *testing.T, ctx context.Context, node string, on bool) {
	t.Helper()
	if _, err := bed.Cluster.Kubectl(ctx, "patch", "node", node, "--patch", fmt.Sprintf(`{"spec": {"unschedulable": %v}}`, on)); err != nil {
		t.Fatal(err)
	}
}

// TestAPodWhoseNodeWillNotDoAnyMoreGoesToAnother: between its admission and the scheduler the node
// that it was meant for is cordoned, or filled by pods of others, or goes down and is deleted.
func TestAPodWhoseNodeWillNotDoAnyMoreGoesToAnother(t *testing.T) {
	ctx, ns := scenario(t)
	first, second := withoutQuota(t, ctx)
	budgetOn(t, ctx, ns, 10, "")
	create(t, ctx, ns, testbed.Template("any", testbed.Capacity{}))
	either := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpIn, Values: []string{first, second}}}}}}}}
	}
	for _, node := range []string{first, second} {
		t.Cleanup(func() {
			cordon(t, context.WithoutCancel(ctx), node, false)
		})
	}
	names := []string{"cordoned", "filled", "down"}
	cordon(t, ctx, second, true)
	for _, name := range names {
		create(t, ctx, ns, heldBack(name, "any", either))
		nominated(t, ctx, ns, name, first)
	}
	cordon(t, ctx, second, false)

	cordon(t, ctx, first, true)
	nominated(t, ctx, ns, "cordoned", second)
	runsOn(t, ctx, ns, "cordoned", second)
	cordon(t, ctx, first, false)
	cordon(t, ctx, second, true)
	// Those that were not scheduled may be meant for either by now.
	for _, name := range names[1:] {
		nominated(t, ctx, ns, name, first)
	}
	cordon(t, ctx, second, false)

	fill(t, ctx, ns, "filler", first)
	runsOn(t, ctx, ns, "filled", second)
	// A node with free cards and no free CPU is none for those who come anew, too.
	create(t, ctx, ns, heldBack("new", "any", either))
	nominated(t, ctx, ns, "new", second)
	if err := bed.Client.CoreV1().Pods(ns).Delete(ctx, "filler", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	cordon(t, ctx, second, true)
	nominated(t, ctx, ns, "down", first)
	cordon(t, ctx, second, false)

	off(t, ctx, first)
	nominated(t, ctx, ns, "down", second)
	runsOn(t, ctx, ns, "down", second)
}

// withoutQuota are two nodes with GPUs on which the quota controller does not run.
func withoutQuota(t *testing.T, ctx context.Context) (first, second string) {
	t.Helper()
	pods, err := bed.Client.CoreV1().Pods(testbed.SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=quota"})
	if err != nil {
		t.Fatal(err)
	}
	nodes := []string{t4Node, fixedNode, dynamicNode}
	for _, p := range pods.Items {
		nodes = slices.DeleteFunc(nodes, func(name string) bool { return name == p.Spec.NodeName })
	}
	if len(nodes) < 2 {
		t.Fatalf("the quota controller is on all nodes but %v", nodes)
	}
	return nodes[0], nodes[1]
}

// fill has a pod of nobody's budget take all of the CPU that is left of a node.
func fill(t *testing.T, ctx context.Context, ns, name, node string) {
	t.Helper()
	o, err := bed.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	left := o.Status.Allocatable[corev1.ResourceCPU]
	pods, err := bed.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, c := range p.Spec.Containers {
			left.Sub(c.Resources.Requests[corev1.ResourceCPU])
		}
	}
	left.Sub(resource.MustParse("20m"))
	// Not by the scheduler, which keeps what nominated pods need. Its program ends at once, having no
	// card, and is started again and again: the pod keeps what it asks for.
	create(t, ctx, ns, testbed.Pod(name, []string{"hold"}, func(p *corev1.Pod) {
		p.Spec.NodeName, p.Spec.RestartPolicy = node, corev1.RestartPolicyAlways
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: left}
	}))
	if _, err := bed.WaitPhase(patient(t, ctx), ns, name, corev1.PodRunning); err != nil {
		t.Fatal(err)
	}
}

// off cuts a node's power and deletes it, as a cloud does; it comes back when the test ends.
func off(t *testing.T, ctx context.Context, node string) {
	t.Helper()
	if err := bed.Cluster.PowerOff(ctx, node); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		if err := bed.Cluster.PowerOn(ctx, node); err != nil {
			t.Error(err)
		}
		if err := bed.WaitDevices(ctx); err != nil {
			t.Error(err)
		}
	})
	if _, err := bed.Cluster.Kubectl(ctx, "delete", "node", node); err != nil {
		t.Fatal(err)
	}
}

// TestASecondPodWaitsWhereTheSchedulersOrderDecides: of two cards one has 40Gi left and the other
// 20Gi. Whoever asks for 20Gi is given the first, so he comes after the one who asks for 40Gi.
func TestASecondPodWaitsWhereTheSchedulersOrderDecides(t *testing.T) {
	ctx, ns := scenario(t)
	budgetOn(t, ctx, ns, 10, "{slicing: dynamic}")
	cards, err := bed.Published(ctx, dynamicNode)
	if err != nil {
		t.Fatal(err)
	}
	memory := cards[0].Capacity["memory"]
	card := memory.Value.Value() >> 20
	claims := map[string]string{"most": mi(card - 40<<10), "more": mi(card - 20<<10), "whole": mi(card), "forty": mi(40 << 10), "twenty": mi(20 << 10)}
	for name, size := range claims {
		create(t, ctx, ns, testbed.Template(name, testbed.Capacity{Memory: size}))
	}
	for _, name := range []string{"most", "more", "whole", "whole"} {
		o := testbed.Pod("", []string{"hold"}, testbed.WithTemplate(name), testbed.WithLabel("kueue.x-k8s.io/queue-name", "queue"))
		o.GenerateName = name + "-"
		p, err := bed.Client.CoreV1().Pods(ns).Create(ctx, o, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bed.WaitPhase(patient(t, ctx), ns, p.Name, corev1.PodRunning); err != nil {
			t.Fatal(err)
		}
	}
	create(t, ctx, ns, heldBack("forty", "forty"))
	nominated(t, ctx, ns, "forty", dynamicNode)
	create(t, ctx, ns, testbed.Pod("twenty", []string{"hold"}, testbed.WithTemplate("twenty"), testbed.WithLabel("kueue.x-k8s.io/queue-name", "queue")))
	err = testbed.Until(patient(t, ctx), "the second pod to say why it waits", func() (bool, string, error) {
		events, err := bed.Events(ctx, ns, "twenty")
		said := strings.Join(events, "\n")
		return strings.Contains(said, "in another order"), said, err
	})
	if err != nil {
		t.Fatal(err)
	}
	runsOn(t, ctx, ns, "forty", dynamicNode)
	if _, err := bed.WaitPhase(patient(t, ctx), ns, "twenty", corev1.PodRunning); err != nil {
		t.Fatal(err)
	}
}
