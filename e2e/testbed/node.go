package testbed

import (
	"context"
	"fmt"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/cluster"
	"github.com/sluice-gpu/sluice/e2e/fakegpu"
)

// Published returns the devices that the node publishes, in published order.
func (b *Testbed) Published(ctx context.Context, node string) ([]resourcev1.Device, error) {
	list, err := b.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, err
	}
	var devices []resourcev1.Device
	for _, slice := range list.Items {
		devices = append(devices, slice.Spec.Devices...)
	}
	return devices, nil
}

// WaitPublished waits until the node's devices are as check wants them.
func (b *Testbed) WaitPublished(ctx context.Context, node, what string, check func([]resourcev1.Device) bool) ([]resourcev1.Device, error) {
	var devices []resourcev1.Device
	err := Until(ctx, what+" on "+node, func() (bool, string, error) {
		var err error
		devices, err = b.Published(ctx, node)
		var words []string
		for _, d := range devices {
			memory := d.Capacity["memory"]
			words = append(words, fmt.Sprintf("%s memory %s taints %v", d.Name, memory.Value.String(), d.Taints))
		}
		return err == nil && check(devices), "published: " + strings.Join(words, "; "), err
	})
	return devices, err
}

// Label sets labels of the node; an empty value takes one away.
func (b *Testbed) Label(ctx context.Context, node, key, value string) error {
	change := key + "=" + value
	if value == "" {
		change = key + "-"
	}
	_, err := b.Cluster.Kubectl(ctx, "label", "--overwrite", "node", node, change)
	return err
}

// Foreign runs cudaprobe on the node and outside of every pod, as what somebody
// started by hand, until the returned function is called.
func (b *Testbed) Foreign(ctx context.Context, node string, args ...string) (stop func() error, err error) {
	built, err := buildSimulation()
	if err != nil {
		return nil, err
	}
	in := fakegpu.Open(cluster.DriverRoot, cluster.HardwareDir, built)
	const pid = "/run/foreign.pid"
	script := fmt.Sprintf("%s nohup %s %s >/run/foreign.log 2>&1 & echo $! > %s",
		strings.Join(in.Env(), " "), in.Program(fakegpu.Probe), strings.Join(args, " "), pid)
	run := func(script string) error {
		var words strings.Builder
		if err := b.Cluster.NodeExec(context.WithoutCancel(ctx), node, nil, &words, &words, "sh", "-c", script); err != nil {
			return fmt.Errorf("%s on %s: %w: %s", script, node, err, words.String())
		}
		return nil
	}
	if err := run(script); err != nil {
		return nil, err
	}
	return func() error { return run("kill $(cat " + pid + ") && rm " + pid) }, nil
}

// Configure replaces the configuration of the drivers, and has the kubelets bring
// it to them at once instead of within a minute.
func (b *Testbed) Configure(ctx context.Context, change func(text string) string) error {
	const name = "sluice-driver"
	maps := b.Client.CoreV1().ConfigMaps(SystemNamespace)
	m, err := maps.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	m.Data["driver.yaml"] = change(m.Data["driver.yaml"])
	if _, err := maps.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
		return err
	}
	_, err = b.Cluster.Kubectl(ctx, "annotate", "--overwrite", "--namespace", SystemNamespace, "pods", "-l", driverSelector,
		"example.com/configured="+m.ResourceVersion)
	return err
}
