package scenarios

import (
	"bufio"
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// contextsCost makes every context on the node's cards cost that much until the test ends.
func contextsCost(t *testing.T, ctx context.Context, bytes uint64) {
	t.Helper()
	if err := bed.ContextsCost(ctx, dynamicNode, bytes); err != nil {
		t.Fatal(err)
	}
	forgetContexts(t, ctx)
}

// forgetContexts has the node forget at the end of the test what it learnt of contexts: what is
// taken past the limiter looks like them.
func forgetContexts(t *testing.T, ctx context.Context) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		if err := bed.DeletePods(ctx, namespaceOf(t)); err != nil {
			t.Error(err)
		}
		if err := bed.ContextsCost(ctx, dynamicNode, 0); err != nil {
			t.Error(err)
		}
	})
}

// metric returns the value of a share's metric, told by the driver of the dynamic node.
func metric(ctx context.Context, name, namespace, pod string) (float64, error) {
	pods, err := bed.Client.CoreV1().Pods(testbed.SystemNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=driver", FieldSelector: "spec.nodeName=" + dynamicNode,
	})
	if err != nil {
		return 0, err
	}
	for _, p := range pods.Items {
		if p.DeletionTimestamp != nil {
			continue
		}
		text, err := bed.Cluster.Kubectl(ctx, "get", "--raw", "/api/v1/namespaces/"+p.Namespace+"/pods/"+p.Name+":9402/proxy/metrics")
		if err != nil {
			return 0, err
		}
		lines := bufio.NewScanner(strings.NewReader(string(text)))
		for lines.Scan() {
			line := lines.Text()
			if strings.HasPrefix(line, name+"{") && strings.Contains(line, `namespace="`+namespace+`"`) && strings.Contains(line, `pod="`+pod+`"`) {
				return strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
			}
		}
	}
	return 0, fmt.Errorf("no metric %s of pod %s/%s", name, namespace, pod)
}

// wantMetric waits until the metric has the value.
func wantMetric(t *testing.T, ctx context.Context, name, namespace, pod string, want uint64) {
	t.Helper()
	err := testbed.Until(patient(t, ctx), fmt.Sprintf("%s of %s to be %d", name, pod, want), func() (bool, string, error) {
		got, err := metric(ctx, name, namespace, pod)
		return err == nil && got == float64(want), fmt.Sprintf("it is %.0f (%v)", got, err), nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestContextsCountAgainstTheSlice(t *testing.T) {
	ctx, ns := scenario(t)
	const cost = 300 << 20
	contextsCost(t, ctx, cost)
	create(t, ctx, ns, testbed.Template("slice", testbed.Capacity{Memory: "7Gi"}))
	// The node sees what a context takes while the first program works.
	first := append([]string{"alloc:1Gi", "sleep:3s"}, untilRefused...)
	create(t, ctx, ns, testbed.Pod("first", first, testbed.OnNode(dynamicNode), testbed.WithTemplate("slice")))
	if sum := took(t, ctx, ns, "first", "main"); sum != 7*gib-cost {
		t.Errorf("a program took %d bytes of a slice of %d in which its context takes %d", sum, 7*gib, cost)
	}
	// Those that follow are charged from their first call on.
	create(t, ctx, ns, testbed.Pod("next", untilRefused, testbed.OnNode(dynamicNode), testbed.WithTemplate("slice")))
	if sum := took(t, ctx, ns, "next", "main"); sum != 7*gib-cost {
		t.Errorf("the next program took %d bytes of a slice of %d in which its context takes %d", sum, 7*gib, cost)
	}
	for _, pod := range []string{"first", "next"} {
		for name, want := range map[string]uint64{
			"nvml_bytes": 7 * gib, "used_bytes": 7 * gib, "limit_bytes": 7 * gib, "above_limit_bytes": 0,
		} {
			wantMetric(t, ctx, "sluice_share_memory_"+name, ns, pod, want)
		}
		wantMetric(t, ctx, "sluice_share_contexts", ns, pod, 1)
		wantMetric(t, ctx, "sluice_share_context_overhead_bytes", ns, pod, cost)
	}
}

func TestMemoryTakenPastTheLimiterIsReported(t *testing.T) {
	ctx, ns := scenario(t)
	create(t, ctx, ns, testbed.Template("slice", testbed.Capacity{Memory: "7Gi"}))
	// The driver's private tables are a way that no wrapper sees.
	past := []string{"table:9Gi", "hold"}
	forgetContexts(t, ctx)
	create(t, ctx, ns, testbed.Pod("past", past, testbed.OnNode(dynamicNode), testbed.WithTemplate("slice")))
	create(t, ctx, ns, testbed.Pod("fair", untilRefused, testbed.OnNode(dynamicNode), testbed.WithTemplate("slice")))
	wantMetric(t, ctx, "sluice_share_memory_above_limit_bytes", ns, "past", 2*gib)
	wantMetric(t, ctx, "sluice_share_memory_above_limit_bytes", ns, "fair", 0)
	err := testbed.Until(patient(t, ctx), "an event on the pod", func() (bool, string, error) {
		events, err := bed.Events(ctx, ns, "past")
		return strings.Contains(strings.Join(events, "\n"), "MemoryAboveShare: The pod holds 9663676416 bytes"), fmt.Sprint(events), err
	})
	if err != nil {
		t.Error(err)
	}
	if events, err := bed.Events(ctx, ns, "fair"); err != nil || strings.Contains(strings.Join(events, "\n"), "MemoryAboveShare") {
		t.Errorf("the fair pod: %v %v", events, err)
	}
}

// compat puts the node's own driver libraries into the first container, where an image has those
// that it brings along.
func compat(p *corev1.Pod) {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "compat", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: "/run/nvidia/driver/usr/lib/x86_64-linux-gnu"},
	}})
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "compat", MountPath: "/opt/compat"})
}

func TestALibcudaOfTheImagesOwnIsLimitedToo(t *testing.T) {
	ctx, ns := scenario(t)
	create(t, ctx, ns, testbed.Template("slice", testbed.Capacity{Memory: "7Gi"}))
	args := append([]string{"--via", "dlopen", "--lib", "/opt/compat/libcuda.so.1"}, untilRefused...)
	create(t, ctx, ns, testbed.Pod("p", args, testbed.OnNode(dynamicNode), testbed.WithTemplate("slice"), compat))
	if sum := took(t, ctx, ns, "p", "main"); sum != 7*gib {
		t.Errorf("took %d bytes of a slice of %d", sum, 7*gib)
	}
}

func TestNvidiaSmiShowsTheSlice(t *testing.T) {
	ctx, ns := scenario(t)
	create(t, ctx, ns, testbed.Template("slice", testbed.Capacity{Memory: "7Gi"}))
	smi := func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"/usr/bin/nvidia-smi"} }
	create(t, ctx, ns, testbed.Pod("p", nil, testbed.OnNode(dynamicNode), testbed.WithTemplate("slice"), smi))
	if _, err := bed.WaitPhase(patient(t, ctx), ns, "p", corev1.PodSucceeded); err != nil {
		t.Fatal(err)
	}
	log, err := bed.Log(ctx, ns, "p", "main")
	if err != nil || !strings.Contains(log, "/   7168MiB") {
		t.Errorf("nvidia-smi says (%v)\n%s", err, log)
	}
}
