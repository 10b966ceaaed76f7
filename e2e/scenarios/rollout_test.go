package scenarios

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// What the API server makes of an allocation without a ticket.
const (
	granted = "granted"
	warned  = "granted with a warning"
	refused = "refused"
)

// warnings keeps what the API server warns of.
type warnings struct{ said []string }

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) { w.said = append(w.said, text) }

// withoutTicket tries to give a claim of the namespace what another holds, and changes nothing.
func withoutTicket(t *testing.T, ctx context.Context, held metav1.Object, ns string) (answer, said string) {
	t.Helper()
	config, err := bed.Cluster.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	config = rest.CopyConfig(config)
	heard := &warnings{}
	config.WarningHandler = heard
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	from, err := client.ResourceV1().ResourceClaims(held.GetNamespace()).Get(ctx, held.GetName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim, err := client.ResourceV1().ResourceClaims(ns).Get(ctx, "bare", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Status.Allocation = from.Status.Allocation.DeepCopy()
	claim.Status.Allocation.Devices.Results[0].ShareID = new(types.UID("6f1c8b1e-0000-4000-8000-000000000001"))
	_, err = client.ResourceV1().ResourceClaims(ns).UpdateStatus(ctx, claim, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
	said = strings.Join(heard.said, "; ")
	switch {
	case err != nil && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) && strings.Contains(err.Error(), "has no ticket"):
		return refused, err.Error()
	case err != nil:
		t.Fatal(err)
	case strings.Contains(said, "has no ticket"):
		return warned, said
	}
	return granted, said
}

// webhooksAnswer waits until the API server asks the webhooks that were installed again. Until it
// knows their new certificate it goes on without them.
func webhooksAnswer(t *testing.T, ctx context.Context, ns string) {
	t.Helper()
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	err := testbed.Until(patient(t, ctx), "the webhooks to answer", func() (bool, string, error) {
		pod, err := bed.Client.CoreV1().Pods(ns).Create(ctx, queued("dry"), dry)
		if err != nil {
			return false, "", err
		}
		_, err = bed.Client.ResourceV1().ResourceClaims(ns).Create(ctx, testbed.Claim("dry", testbed.Capacity{Memory: "900Gi"}), dry)
		return len(pod.Spec.SchedulingGates) > 0 && err != nil, fmt.Sprintf("gates %v, a claim for 900Gi: %v", pod.Spec.SchedulingGates, err), nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Budgets are introduced in a cluster whose pods use GPUs already, one step of the chart's
// quota.enforce after the other, and taken away again. Whoever runs, runs on through all of it.
func TestBudgetsComeStepByStepAndGoUnderRunningPods(t *testing.T) {
	ctx, ns := scenario(t)
	strict := "strict-" + runID
	if err := bed.CreateNamespace(ctx, strict, map[string]string{"quota.sluice.dev/enforce": "true"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := bed.Cluster.Kubectl(context.WithoutCancel(ctx), "delete", "namespace", strict, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	values := func(set ...string) {
		t.Helper()
		if err := bed.Install(ctx, set...); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		if err := bed.Install(ctx); err != nil {
			t.Error(err)
		}
		if err := bed.WaitDevices(patient(t, ctx)); err != nil {
			t.Error(err)
		}
		webhooksAnswer(t, ctx, ns)
	})
	answers := func(step, here, there string) {
		t.Helper()
		for namespace, want := range map[string]string{ns: here, strict: there} {
			runs, err := bed.Client.ResourceV1().ResourceClaims(ns).List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var held metav1.Object
			for i := range runs.Items {
				if runs.Items[i].Status.Allocation != nil {
					held = &runs.Items[i]
				}
			}
			if held == nil {
				t.Fatal("nobody holds a device")
			}
			err = testbed.Until(patient(t, ctx), fmt.Sprintf("%s: an allocation without a ticket in %s to be %s", step, namespace, want), func() (bool, string, error) {
				got, said := withoutTicket(t, ctx, held, namespace)
				return got == want, got + ": " + said, nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
	pod := func(name string) *corev1.Pod {
		return testbed.Pod(name, []string{"hold"}, testbed.WithTemplate("slice"), testbed.OnNode(dynamicNode))
	}
	stillRuns := func(step string, pods ...*corev1.Pod) {
		t.Helper()
		for _, p := range pods {
			now, err := bed.Client.CoreV1().Pods(ns).Get(ctx, p.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatalf("%s: %v", step, err)
			}
			if now.UID != p.UID || now.Status.Phase != corev1.PodRunning || now.DeletionTimestamp != nil || now.Status.ContainerStatuses[0].RestartCount > 0 {
				t.Errorf("%s: pod %s is %s, deleted %v, restarted %d times", step, p.Name, now.Status.Phase, now.DeletionTimestamp, now.Status.ContainerStatuses[0].RestartCount)
			}
		}
	}

	values("quota.enforce=off")
	template := testbed.Template("slice", testbed.Capacity{Memory: "2Gi"})
	create(t, ctx, ns, template, pod("runs"), testbed.Claim("bare", testbed.Capacity{Memory: "2Gi"}))
	create(t, ctx, strict, testbed.Claim("bare", testbed.Capacity{Memory: "2Gi"}))
	runs, err := bed.WaitPhase(patient(t, ctx), ns, "runs", corev1.PodRunning)
	if err != nil {
		t.Fatal(err)
	}
	answers("off", granted, granted)

	values("quota.enforce=audit")
	answers("audit", warned, warned)
	values("quota.enforce=namespaces")
	answers("namespaces", granted, refused)
	values("quota.enforce=all")
	answers("all", refused, refused)
	create(t, ctx, ns, pod("waits"))
	err = testbed.Until(patient(t, ctx), "a pod without a queue to be refused a device", func() (bool, string, error) {
		events, err := bed.Events(ctx, ns, "waits")
		said := strings.Join(events, "\n")
		return strings.Contains(said, "has no ticket"), said, err
	})
	if err != nil {
		t.Fatal(err)
	}
	stillRuns("all", runs)

	// Without quota there is nothing to wait for.
	values("quota.enabled=false")
	waits, err := bed.WaitPhase(patient(t, ctx), ns, "waits", corev1.PodRunning)
	if err != nil {
		t.Fatal(err)
	}
	if err := bed.Uninstall(ctx); err != nil {
		t.Fatal(err)
	}
	left, err := bed.Cluster.Kubectl(ctx, "get", "validatingadmissionpolicies,validatingadmissionpolicybindings,validatingwebhookconfigurations,mutatingwebhookconfigurations", "--output=name")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(left), "sluice") {
		t.Errorf("uninstalled, and the API server still asks:\n%s", left)
	}
	stillRuns("uninstalled", runs, waits)
}
