package scenarios

import (
	"context"
	"fmt"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// byMPS is a template of shares that MPS holds.
func byMPS(name string, capacity testbed.Capacity) *resourcev1.ResourceClaimTemplate {
	t := testbed.Template(name, capacity)
	t.Spec.Spec.Devices.Config = []resourcev1.DeviceClaimConfiguration{{DeviceConfiguration: resourcev1.DeviceConfiguration{
		Opaque: &resourcev1.OpaqueDeviceConfiguration{
			Driver:     testbed.DeviceClass,
			Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion": "gpu.sluice.dev/v1alpha1", "kind": "SliceConfig", "enforcement": "mps"}`)},
		},
	}}}
	return t
}

// onNode runs a shell script on the node.
func onNode(t *testing.T, ctx context.Context, node, script string) string {
	t.Helper()
	var out strings.Builder
	if err := bed.Cluster.NodeExec(ctx, node, nil, &out, &out, "sh", "-c", script); err != nil {
		t.Fatalf("%s on %s: %v: %s", script, node, err, out.String())
	}
	return strings.TrimSpace(out.String())
}

// daemons are the PIDs of the MPS control daemons on the node, as their own files say.
func daemons(t *testing.T, ctx context.Context, node string) string {
	t.Helper()
	return onNode(t, ctx, node, "cat /var/lib/kubelet/plugins/gpu.sluice.dev/mps/*/pipe/nvidia-cuda-mps-control.pid 2>/dev/null || true")
}

func TestSharesByMPSAreClientsOfOneDaemonWhichOutlivesTheDriver(t *testing.T) {
	ctx, ns := scenario(t)
	create(t, ctx, ns, byMPS("served", testbed.Capacity{Memory: "5Gi", Cores: "30"}))
	create(t, ctx, ns, testbed.Template("limited", testbed.Capacity{Memory: "5Gi"}))
	for _, name := range []string{"one", "two"} {
		create(t, ctx, ns, testbed.Pod(name, untilRefused, testbed.OnNode(dynamicNode), testbed.WithTemplate("served")))
	}
	for _, name := range []string{"one", "two"} {
		if sum := took(t, ctx, ns, name, "main"); sum != 5*gib {
			t.Errorf("%s took %d bytes of a share of %d", name, sum, 5*gib)
		}
	}
	daemon := daemons(t, ctx, dynamicNode)
	if daemon == "" || strings.Contains(daemon, "\n") {
		t.Fatalf("daemons: %q, want one", daemon)
	}

	// The card is theirs: a share that the limiter would hold is refused there, with the reason.
	create(t, ctx, ns, testbed.Pod("other", []string{"hold"}, testbed.OnNode(dynamicNode), testbed.WithTemplate("limited")))
	err := testbed.Until(patient(t, ctx), "the refusal of a share that the limiter holds", func() (bool, string, error) {
		events, err := bed.Events(ctx, ns, "other")
		return strings.Contains(strings.Join(events, "\n"), "while MPS serves a card, only its clients can use it"), fmt.Sprint(events), err
	})
	if err != nil {
		t.Error(err)
	}

	if err := bed.RestartDriver(ctx, dynamicNode); err != nil {
		t.Fatal(err)
	}
	if now := daemons(t, ctx, dynamicNode); now != daemon {
		t.Errorf("the daemon was %s and after the driver's restart it is %s; on the node\n%s", daemon, now, onNode(t, ctx, dynamicNode,
			"tail -n 20 /var/lib/kubelet/plugins/gpu.sluice.dev/mps/*/log/* /var/lib/kubelet/plugins/gpu.sluice.dev/mps/*/daemon.json; ps axo pid,ppid,sid,etimes,args"))
	}
	log := onNode(t, ctx, dynamicNode, "cat /var/lib/kubelet/plugins/gpu.sluice.dev/mps/*/log/control.log")
	if strings.Count(log, "client 0=5120M 30") != 2 || strings.Contains(log, "left") {
		t.Errorf("the daemon saw\n%s", log)
	}

	onNode(t, ctx, dynamicNode, "kill -9 "+daemon)
	err = testbed.Until(patient(t, ctx), "another daemon after the first one died", func() (bool, string, error) {
		now := daemons(t, ctx, dynamicNode)
		return now != "" && now != daemon, now, nil
	})
	if err != nil {
		t.Error(err)
	}
	create(t, ctx, ns, testbed.Pod("three", untilRefused, testbed.OnNode(dynamicNode), testbed.WithTemplate("served")))
	if sum := took(t, ctx, ns, "three", "main"); sum != 5*gib {
		t.Errorf("a client of the new daemon took %d bytes of a share of %d", sum, 5*gib)
	}

	if err := bed.DeletePods(ctx, ns); err != nil {
		t.Fatal(err)
	}
	err = testbed.Until(patient(t, ctx), "the daemon to end with its last share", func() (bool, string, error) {
		left := onNode(t, ctx, dynamicNode, "ls /var/lib/kubelet/plugins/gpu.sluice.dev/mps 2>/dev/null; ps ax | grep '[n]vidia-cuda-mps' || true; mount | grep sluice-mps || true")
		return left == "", left, nil
	})
	if err != nil {
		t.Error(err)
	}
	// The card is for everybody again.
	create(t, ctx, ns, testbed.Pod("last", untilRefused, testbed.OnNode(dynamicNode), testbed.WithTemplate("limited")))
	if sum := took(t, ctx, ns, "last", "main"); sum != 5*gib {
		t.Errorf("a limited pod took %d bytes of a share of %d", sum, 5*gib)
	}
}
