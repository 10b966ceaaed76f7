// Package testbed is a real cluster with simulated GPUs and Sluice installed on it, for the demo
// and for the end-to-end scenarios. It brings the cluster up, makes and loads the images, installs
// the chart, and offers what both need: objects to create, things to wait for, answers to read.
package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gpu/sluice/e2e/cluster"
	"github.com/sluice-gpu/sluice/e2e/product"
)

// SystemNamespace is where the chart is installed.
const SystemNamespace = "sluice-system"

// Options say which testbed to start.
type Options struct {
	// Name is the cluster's name.
	Name string
	// Reuse takes a running cluster of that name as it is, instead of failing on it.
	Reuse bool
	// Values are chart values on top of DefaultValues, as `--set` takes them.
	Values []string
	// Log is told what is going on.
	Log io.Writer
}

// Testbed is a cluster with Sluice on it.
type Testbed struct {
	Cluster *cluster.Cluster
	Client  kubernetes.Interface
	log     io.Writer
	// tag is that of the product's images, set the values of Options.
	tag string
	set []string
}

// DefaultNodes are the nodes of the demo: two of A100 cards, cut in fixed slices and as claims ask,
// and one of T4 cards. All carry the taint that keeps other pods away from GPUs.
func DefaultNodes() []cluster.Node {
	taint := []string{"nvidia.com/gpu=true:NoSchedule"}
	return []cluster.Node{
		{
			Name: "node-1", Taints: taint,
			Labels: map[string]string{"gpu-type": "a100", "slicing": "fixed"},
			GPUs:   []cluster.GPU{{Model: "A100-SXM4-80GB", Count: 4}},
		},
		{
			Name: "node-2", Taints: taint,
			Labels: map[string]string{"gpu-type": "a100", "slicing": "dynamic"},
			GPUs:   []cluster.GPU{{Model: "A100-SXM4-80GB", Count: 4}},
		},
		{
			Name: "node-3", Taints: taint,
			Labels: map[string]string{"gpu-type": "t4"},
			GPUs:   []cluster.GPU{{Model: "T4", Count: 2}},
		},
	}
}

// DefaultValues are the chart's values for DefaultNodes and images of the tag.
func DefaultValues(tag string) map[string]any {
	image := func(name string) map[string]any {
		return map[string]any{"repository": ImagePrefix + name, "tag": tag, "pullPolicy": "Never"}
	}
	return map[string]any{
		"driver": map[string]any{
			"image":      image("sluice-driver"),
			"driverRoot": cluster.DriverRoot,
			"bootIDFile": cluster.BootIDFile,
			"config": map[string]any{"nodeGroups": []any{
				// No node has these labels to begin with; scenarios put them on.
				map[string]any{"name": "whole", "nodeSelector": map[string]any{"slicing": "whole"}, "mode": "whole"},
				map[string]any{"name": "oversubscribed", "nodeSelector": map[string]any{"slicing": "oversubscribed"}, "oversubscription": 1.5},
				map[string]any{
					"name": "mig", "deviceSelector": map[string]any{"cel": `device.attributes["gpu.sluice.dev"].mig`},
					"mode": "mig",
				},
				map[string]any{
					"name": "a100-fixed", "nodeSelector": map[string]any{"gpu-type": "a100", "slicing": "fixed"},
					"mode": "fixed", "slices": 4, "memory": "20000Mi",
				},
				map[string]any{
					"name": "t4", "nodeSelector": map[string]any{"gpu-type": "t4"},
					"mode": "fixed", "slices": 2, "memory": "auto",
				},
				map[string]any{"name": "everything-else", "mode": "dynamic"},
			}},
		},
		"quota": map[string]any{
			"image":   image("sluice-quota"),
			"enforce": "namespaces",
			// All nodes of the testbed have GPUs, and with them the taint.
			"tolerations": []any{map[string]any{"key": "nvidia.com/gpu", "operator": "Exists"}},
		},
	}
}

// Start brings everything up. What it started before an error is left for Stop and for a look.
func Start(ctx context.Context, o Options) (*Testbed, error) {
	if o.Log == nil {
		o.Log = io.Discard
	}
	c, err := startCluster(ctx, o)
	if err != nil {
		return nil, err
	}
	b := &Testbed{Cluster: c, log: o.Log}
	if b.Client, err = c.Client(); err != nil {
		return b, err
	}
	if b.tag, err = b.loadImages(ctx); err != nil {
		return b, err
	}
	b.set = o.Values
	return b, b.Install(ctx)
}

// startCluster builds what is missing in the cache and brings the cluster up.
func startCluster(ctx context.Context, o Options) (*cluster.Cluster, error) {
	source, err := cluster.FindSource()
	if err != nil {
		return nil, err
	}
	if err := cluster.Build(ctx, source, o.Log); err != nil {
		return nil, err
	}
	c, err := openCluster(o)
	if err != nil {
		return nil, err
	}
	// What an interrupted run or a reboot of this machine has left would be in the way.
	if !o.Reuse || !runs(c) {
		if err := c.Down(ctx); err != nil {
			return nil, err
		}
	}
	err = c.Up(ctx, cluster.Config{Nodes: DefaultNodes()})
	if errors.Is(err, cluster.ErrUp) && o.Reuse {
		err = nil
	}
	return c, err
}

// runs says whether the cluster is up with all its daemons.
func runs(c *cluster.Cluster) bool {
	return c.IsUp() && !slices.ContainsFunc(c.Components(), func(s cluster.ComponentStatus) bool { return s.PID == 0 })
}

func openCluster(o Options) (*cluster.Cluster, error) {
	return cluster.Open(cluster.Options{Name: o.Name, Log: o.Log, Hardware: Hardware{}})
}

// Stop ends the cluster of that name, whatever state it is in, and leaves nothing of it.
func Stop(ctx context.Context, o Options) error {
	c, err := openCluster(o)
	if err != nil {
		return err
	}
	return c.Down(ctx)
}

// say tells the log one thing.
func (b *Testbed) say(format string, args ...any) {
	fmt.Fprintf(b.log, format+"\n", args...)
}

// Install installs the chart, or upgrades it, with further values as `--set` takes them, and waits
// until its pods are ready. Values of an earlier call are forgotten.
func (b *Testbed) Install(ctx context.Context, set ...string) error {
	b.say("installing the chart")
	root, err := product.Root()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sluice-values-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	values, err := yaml.Marshal(DefaultValues(b.tag))
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "values.yaml")
	if err := os.WriteFile(file, values, 0o600); err != nil {
		return err
	}
	args := []string{
		"upgrade", "--install", "sluice", filepath.Join(root, "deployments/helm/sluice"),
		"--namespace", SystemNamespace, "--create-namespace", "--values", file, "--timeout", "6m", "--wait",
	}
	for _, value := range slices.Concat(b.set, set) {
		args = append(args, "--set", value)
	}
	if _, err := b.Cluster.Helm(ctx, args...); err != nil {
		return fmt.Errorf("%w\n%s", err, b.Describe(ctx, SystemNamespace))
	}
	return nil
}

// Uninstall takes the chart away and waits until its pods are gone.
func (b *Testbed) Uninstall(ctx context.Context) error {
	_, err := b.Cluster.Helm(ctx, "uninstall", "sluice", "--namespace", SystemNamespace, "--timeout", "6m", "--wait")
	return err
}

// WaitDevices waits until every node of DefaultNodes has published its devices.
func (b *Testbed) WaitDevices(ctx context.Context) error {
	return Until(ctx, "every node's devices to be published", func() (bool, string, error) {
		var missing []string
		for _, node := range DefaultNodes() {
			devices, err := b.Devices(ctx, node.Name)
			if err != nil {
				return false, "", err
			}
			if len(devices) == 0 {
				missing = append(missing, node.Name)
			}
		}
		return len(missing) == 0, fmt.Sprintf("nothing of %v", missing), nil
	})
}

// Devices returns the names of the devices that the node publishes, in published order.
func (b *Testbed) Devices(ctx context.Context, node string) ([]string, error) {
	published, err := b.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, slice := range published.Items {
		for _, device := range slice.Spec.Devices {
			names = append(names, device.Name)
		}
	}
	return names, nil
}

// Create creates an object that the Kubernetes scheme knows, in the namespace.
func (b *Testbed) Create(ctx context.Context, namespace string, object any) error {
	typed, ok := object.(runtime.Object)
	if !ok {
		return fmt.Errorf("%T is no Kubernetes object", object)
	}
	kinds, _, err := scheme.Scheme.ObjectKinds(typed)
	if err != nil {
		return err
	}
	typed = typed.DeepCopyObject()
	typed.GetObjectKind().SetGroupVersionKind(kinds[0])
	manifest, err := json.Marshal(typed)
	if err != nil {
		return err
	}
	return b.CreateManifest(ctx, namespace, manifest)
}

// CreateManifest gives manifests to `kubectl create` in the namespace.
func (b *Testbed) CreateManifest(ctx context.Context, namespace string, manifests []byte) error {
	file, err := os.CreateTemp("", "sluice-manifest-*.yaml")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(manifests)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	_, err = b.Cluster.Kubectl(ctx, "create", "--namespace", namespace, "-f", file.Name())
	return err
}

// CreateNamespace makes a namespace with its default service account; one that is there is kept.
func (b *Testbed) CreateNamespace(ctx context.Context, name string, labels map[string]string) error {
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	_, err := b.Client.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return Until(ctx, "the default service account of "+name, func() (bool, string, error) {
		_, err := b.Client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, fmt.Sprint(err), nil
	})
}

// Describe tells what namespaces hold, what happened in them and what the product said, for the log
// of a failure.
func (b *Testbed) Describe(ctx context.Context, namespaces ...string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var text strings.Builder
	for _, namespace := range namespaces {
		fmt.Fprintf(&text, "--- namespace %s\n", namespace)
		for _, args := range [][]string{
			{"get", "pods,resourceclaims", "-o", "wide"},
			{"get", "events", "--sort-by=.metadata.creationTimestamp"},
		} {
			out, err := b.Cluster.Kubectl(ctx, append(args, "--namespace", namespace)...)
			if err != nil {
				fmt.Fprintln(&text, err)
			}
			text.Write(out)
		}
	}
	// What the product said is in logs that nobody can ask for when the cluster is gone.
	pods, _ := b.Client.CoreV1().Pods(SystemNamespace).List(ctx, metav1.ListOptions{})
	for i := range pods.Items {
		name := pods.Items[i].Name
		log, err := b.Log(ctx, SystemNamespace, name, "")
		fmt.Fprintf(&text, "--- log of %s on %s (%v)\n%s", name, pods.Items[i].Spec.NodeName, err, tail(log, 30))
	}
	return text.String()
}

func tail(text string, lines int) string {
	all := strings.SplitAfter(text, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}

// CommandPath fills dir with a kubectl and a helm that talk to the cluster, in the namespace
// unless told otherwise, and with the plugin "kubectl sluice" as it was built, for shells that put
// dir first in their PATH.
func (b *Testbed) CommandPath(dir, namespace string) (string, error) {
	config, err := clientcmd.LoadFromFile(b.Cluster.Kubeconfig())
	if err != nil {
		return "", err
	}
	for _, c := range config.Contexts {
		c.Namespace = namespace
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		return "", err
	}
	root, err := product.Root()
	if err != nil {
		return "", err
	}
	for name, program := range map[string]string{
		"kubectl": b.Cluster.Binary("kubectl"), "helm": b.Cluster.Binary("helm"),
		"kubectl-sluice": filepath.Join(root, "bin", "kubectl-sluice"),
	} {
		script := fmt.Sprintf("#!/bin/sh\nexport KUBECONFIG=%s\nexec nsenter --net=%s %s \"$@\"\n", kubeconfig, b.Cluster.NetworkNamespace(), program)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			return "", err
		}
	}
	return dir, nil
}
