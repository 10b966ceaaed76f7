package scenarios

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

const gib = uint64(1) << 30

// untilRefused are cudaprobe's steps that take all memory and then ask for one byte more.
var untilRefused = testbed.UntilRefused

// took waits for the end of untilRefused in the container, checks that the byte above was refused,
// and returns what was taken before.
func took(t *testing.T, ctx context.Context, ns, pod, container string) uint64 {
	t.Helper()
	sum, refusal, err := bed.TakenUntilRefused(patient(t, ctx), ns, pod, container)
	if err != nil {
		t.Fatal(err)
	}
	if refusal != "CUDA_ERROR_OUT_OF_MEMORY" {
		t.Errorf("%s/%s: one byte above the slice gave %s", pod, container, refusal)
	}
	return sum
}

func TestAProgramIsRefusedAtTheFirstByteAboveItsSlice(t *testing.T) {
	ctx, ns := scenario(t)
	create(t, ctx, ns, testbed.Template("slice", testbed.Capacity{Memory: "7Gi"}))
	ways := map[string][]string{
		"linked": {"--via", "link"}, "dlopen": {"--via", "dlopen"}, "procaddress": {"--via", "procaddress"},
		"cleared-environment": {"--clear-env"},
	}
	for name, way := range ways {
		create(t, ctx, ns, testbed.Pod(name, append(way, untilRefused...), testbed.OnNode(dynamicNode), testbed.WithTemplate("slice")))
	}
	for name := range ways {
		if sum := took(t, ctx, ns, name, "main"); sum != 7*gib {
			t.Errorf("%s took %d bytes of a slice of %d", name, sum, 7*gib)
		}
	}
}

func TestTwoContainersOfOneClaimShareOneLimit(t *testing.T) {
	ctx, ns := scenario(t)
	create(t, ctx, ns, testbed.Claim("shared", testbed.Capacity{Memory: "20Gi"}))
	create(t, ctx, ns, testbed.Pod("first", []string{"alloc:12Gi", "hold"}, testbed.OnNode(dynamicNode),
		testbed.WithContainer("beside", "info", "hold"), testbed.WithClaim("shared")))
	if _, err := bed.WaitProbe(patient(t, ctx), ns, "first", "main", "hold"); err != nil {
		t.Fatal(err)
	}
	create(t, ctx, ns, testbed.Pod("second", []string{"alloc:12Gi", "alloc:8Gi", "alloc:1", "hold"}, testbed.WithClaim("shared")))
	if _, err := bed.WaitProbe(patient(t, ctx), ns, "second", "main", "hold"); err != nil {
		t.Fatal(err)
	}
	steps, err := bed.Probe(ctx, ns, "second", "main")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"CUDA_ERROR_OUT_OF_MEMORY", "CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY"}
	for i, result := range want {
		if steps[i].Result != result {
			t.Errorf("the second pod's %s gave %s, want %s, as the first holds 12Gi of 20Gi", steps[i].Step, steps[i].Result, result)
		}
	}
}

func TestTwoSharesOfOneCardInAContainerAddUp(t *testing.T) {
	ctx, ns := scenario(t)
	create(t, ctx, ns,
		testbed.Template("ten", testbed.Capacity{Memory: "10Gi"}),
		testbed.Template("five", testbed.Capacity{Memory: "5Gi"}))
	shares := runPod(t, ctx, ns, testbed.Pod("p", untilRefused, testbed.OnNode(dynamicNode),
		testbed.WithTemplate("ten"), testbed.WithTemplate("five")))
	if len(shares) != 2 || shares[0].Device != shares[1].Device {
		t.Fatalf("want two shares of one card, got %+v", shares)
	}
	if sum := took(t, ctx, ns, "p", "main"); sum != 15*gib {
		t.Errorf("took %d bytes with shares of 10Gi and 5Gi", sum)
	}
}

func TestAFullSliceLeavesItsNeighbourUnharmed(t *testing.T) {
	ctx, ns := scenario(t)
	create(t, ctx, ns, testbed.Template("slice", testbed.Capacity{Memory: "20Gi"}))
	a := only(t, runPod(t, ctx, ns, testbed.Pod("greedy", untilRefused, testbed.OnNode(dynamicNode), testbed.WithTemplate("slice"))))
	took(t, ctx, ns, "greedy", "main")
	b := only(t, runPod(t, ctx, ns, testbed.Pod("neighbour", untilRefused, testbed.OnNode(dynamicNode), testbed.WithTemplate("slice"))))
	if a.Device != b.Device {
		t.Fatalf("the slices are on %s and %s, so this shows nothing", a.Device, b.Device)
	}
	if sum := took(t, ctx, ns, "neighbour", "main"); sum != 20*gib {
		t.Errorf("the neighbour took %d of its %d bytes", sum, 20*gib)
	}
}

func TestAKilledProgramGivesAllItsMemoryBack(t *testing.T) {
	ctx, ns := scenario(t)
	create(t, ctx, ns, testbed.Template("slice", testbed.Capacity{Memory: "20Gi"}))
	again := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }
	runPod(t, ctx, ns, testbed.Pod("victim", untilRefused, testbed.OnNode(dynamicNode), testbed.WithTemplate("slice"), again))
	took(t, ctx, ns, "victim", "main")
	var out, errors strings.Builder
	kill := `for p in /proc/[0-9]*; do [ "$(readlink $p/exe)" = /usr/bin/cudaprobe ] && kill -KILL ${p#/proc/}; done; true`
	if err := bed.Cluster.NodeExec(ctx, dynamicNode, nil, &out, &errors, "sh", "-c", kill); err != nil {
		t.Fatal(err, errors.String())
	}
	err := testbed.Until(patient(t, ctx), "the killed container to run again", func() (bool, string, error) {
		pod, err := bed.Client.CoreV1().Pods(ns).Get(ctx, "victim", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		status := pod.Status.ContainerStatuses[0]
		return status.RestartCount > 0 && status.State.Running != nil, status.State.String(), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if sum := took(t, ctx, ns, "victim", "main"); sum != 20*gib {
		t.Errorf("after its predecessor was killed the program took %d of %d bytes", sum, 20*gib)
	}
}

func TestTheLimitHoldsForAnyUserOnAReadOnlyRoot(t *testing.T) {
	ctx, ns := scenario(t)
	create(t, ctx, ns, testbed.Template("slice", testbed.Capacity{Memory: "7Gi"}))
	hardened := func(p *corev1.Pod) {
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
			RunAsUser: new(int64(4242)), RunAsGroup: new(int64(4242)), RunAsNonRoot: new(true),
			ReadOnlyRootFilesystem: new(true), AllowPrivilegeEscalation: new(false),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
	}
	create(t, ctx, ns, testbed.Pod("p", untilRefused, testbed.OnNode(dynamicNode), testbed.WithTemplate("slice"), hardened))
	if sum := took(t, ctx, ns, "p", "main"); sum != 7*gib {
		t.Errorf("took %d bytes of a slice of %d", sum, 7*gib)
	}
}

// The loader finds the image's own driver first, so nothing but the hook stands between a program
// that is linked with libcuda and a card without a limit; the guard sees only those that open it.
func TestADriverInTheImageDoesNotLeadPastTheLimit(t *testing.T) {
	ctx, ns := scenario(t)
	create(t, ctx, ns, testbed.Template("slice", testbed.Capacity{Memory: "7Gi"}))
	own := func(p *corev1.Pod) {
		p.Spec.Containers[0].Image = testbed.CompatImage
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "LD_LIBRARY_PATH", Value: testbed.CompatFolder}}
	}
	ways := []string{"link", "dlopen", "procaddress"}
	for _, via := range ways {
		args := append([]string{"--via", via}, untilRefused...)
		create(t, ctx, ns, testbed.Pod(via, args, testbed.OnNode(dynamicNode), testbed.WithTemplate("slice"), own))
	}
	for _, via := range ways {
		if sum := took(t, ctx, ns, via, "main"); sum != 7*gib {
			t.Errorf("%s took %d bytes of a slice of %d", via, sum, 7*gib)
		}
	}
}
