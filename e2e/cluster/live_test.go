package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-gpu/sluice/e2e/images"
)

// The live tests share one cluster of two nodes with simulated hardware, which the first of them
// brings up. They need root and the programs of `cluster build`.

const agentImage = "localhost/sluice/agent:test"

var shared struct {
	once  sync.Once
	c     *Cluster
	start error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.c != nil {
		if err := shared.c.Down(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// sharedCluster is the live tests' cluster, up.
func sharedCluster(t *testing.T) *Cluster {
	t.Helper()
	shared.once.Do(func() { shared.c, shared.start = startShared(context.Background()) })
	if shared.start != nil {
		t.Fatal(shared.start)
	}
	return shared.c
}

func startShared(ctx context.Context) (*Cluster, error) {
	c, err := Open(Options{Name: "clt", Log: os.Stderr, Hardware: testHardware{}})
	if err != nil {
		return nil, err
	}
	if err := c.Down(ctx); err != nil { // of a run that was killed
		return nil, err
	}
	if err := c.Up(ctx, testConfig()); err != nil {
		return c, err
	}
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		return c, err
	}
	defer os.RemoveAll(dir)
	archive, err := agentArchive(ctx, dir)
	if err != nil {
		return c, err
	}
	return c, c.LoadImage(ctx, archive)
}

func testConfig() Config {
	return Config{Nodes: []Node{
		{
			Name: "node-1", GPUs: []GPU{{Model: "T4", Count: 2}}, Taints: []string{"nvidia.com/gpu=true:NoSchedule"},
			Labels: map[string]string{"gpu-type": "t4", "topology.kubernetes.io/zone": "a", "example.kubernetes.io/x": "y"},
		},
		{Name: "node-2"},
	}}
}

// testHardware puts in one file and one device node of each kind.
type testHardware struct{}

func (testHardware) Install(_ context.Context, n HardwareNode) error {
	dev := filepath.Join(n.DriverRoot, "dev")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		return err
	}
	for i := range n.GPUs[0].Count {
		if err := makeNode(filepath.Join(dev, fmt.Sprintf("nvidia%d", i)), unix.S_IFCHR|0o666, unix.Mkdev(1, 3)); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(n.State, "card"), []byte(n.GPUs[0].Model), 0o666)
}

// agentArchive builds the tests' program and an image of it in a folder.
func agentArchive(ctx context.Context, dir string) (string, error) {
	program := filepath.Join(dir, "agent")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", program, "./testdata/agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build agent: %w: %s", err, out)
	}
	archive := filepath.Join(dir, "agent.tar")
	return archive, images.Write(archive, agentImage, images.Image{Entrypoint: []string{"/agent"}, Files: map[string]string{"/agent": program}})
}

// pod is a manifest of a pod that runs the agent on a node.
func pod(name, node, extra string, args ...string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %s}
  tolerations: [{operator: Exists}]
  %s
  containers:
  - name: main
    image: %s
    imagePullPolicy: Never
    args: [%s]
`, name, name, node, extra, agentImage, strings.Join(args, ", "))
}

// apply makes objects that are deleted when the test ends.
func apply(t *testing.T, c *Cluster, manifests string) {
	t.Helper()
	if err := c.Apply(t.Context(), []byte(manifests)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd := exec.Command(c.Binary("kubectl"), "delete", "--ignore-not-found", "--wait", "--timeout="+testPatience.String(), "-f", "-")
		if _, err := c.output(cmd, []byte(manifests)); err != nil {
			t.Error(err)
		}
	})
}

func kubectl(t *testing.T, c *Cluster, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func waitPod(t *testing.T, c *Cluster, name, condition string) {
	t.Helper()
	if _, err := c.Kubectl(t.Context(), "wait", "pod/"+name, "--for="+condition, "--timeout="+testPatience.String()); err != nil {
		described, _ := c.Kubectl(context.Background(), "describe", "pod", name)
		t.Fatalf("%v\n%s", err, described)
	}
}

func onNode(t *testing.T, c *Cluster, node string, argv ...string) string {
	t.Helper()
	var out, msg bytes.Buffer
	if err := c.NodeExec(t.Context(), node, nil, &out, &msg, argv...); err != nil {
		t.Fatalf("%s: %v: %v: %s", node, argv, err, msg.String())
	}
	return strings.TrimSpace(out.String())
}

func TestUpAgainSaysThatItIsUp(t *testing.T) {
	c := sharedCluster(t)
	if err := c.Up(t.Context(), testConfig()); err == nil || !strings.Contains(err.Error(), "cluster clt: the cluster is up already") {
		t.Errorf("second up: %v", err)
	}
}

func TestNodesHaveTheirLabelsAndTaintsFromTheStart(t *testing.T) {
	c := sharedCluster(t)
	got := kubectl(t, c, "get", "node", "node-1", "-o", "jsonpath={.metadata.labels.gpu-type} {.metadata.labels.topology\\.kubernetes\\.io/zone} {.metadata.labels.example\\.kubernetes\\.io/x} {.spec.taints[*].key}={.spec.taints[*].value}:{.spec.taints[*].effect}")
	if want := "t4 a y nvidia.com/gpu=true:NoSchedule"; got != want {
		t.Errorf("node-1: %s, want %s", got, want)
	}
}

func TestPodReachesTheAPIServerByTheServiceAddress(t *testing.T) {
	c := sharedCluster(t)
	for name, extra := range map[string]string{"pod-network": "restartPolicy: Never", "host-network": "restartPolicy: Never\n  hostNetwork: true"} {
		t.Run(name, func(t *testing.T) {
			apply(t, c, pod(name, "node-1", extra, "api"))
			waitPod(t, c, name, "jsonpath={.status.phase}=Succeeded")
			if log := kubectl(t, c, "logs", name); !strings.HasPrefix(log, "10.96.0.1:443 200 OK") {
				t.Errorf("the pod printed %s", log)
			}
		})
	}
}

func TestPodIsToldAtOnceThatThereIsNoDNS(t *testing.T) {
	c := sharedCluster(t)
	apply(t, c, pod("lookup", "node-2", "restartPolicy: Never", "lookup"))
	waitPod(t, c, "lookup", "jsonpath={.status.phase}=Succeeded")
	if log := kubectl(t, c, "logs", "lookup"); !strings.HasPrefix(log, "true ") || !strings.HasSuffix(log, "connection refused") {
		t.Errorf("the pod printed %s", log)
	}
	if events := kubectl(t, c, "get", "events", "--field-selector", "reason=MissingClusterDNS"); events != "" {
		t.Errorf("events: %s", events)
	}
}

func TestAPIServerReachesAWebhookInAPod(t *testing.T) {
	c := sharedCluster(t)
	ca, err := newAuthority("webhook", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.issue(identity{user: "refuse", names: []string{"refuse.default.svc"}})
	if err != nil {
		t.Fatal(err)
	}
	manifests := pod("refuse", "node-2", "", "webhook") + fmt.Sprintf(`
    readinessProbe: {tcpSocket: {port: 8443}, periodSeconds: 1}
    env: [{name: CERT, value: %q}, {name: KEY, value: %q}]
---
apiVersion: v1
kind: Service
metadata: {name: refuse}
spec:
  selector: {app: refuse}
  ports: [{port: 443, targetPort: 8443}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: refuse}
webhooks:
- name: refuse.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {caBundle: %s, service: {namespace: default, name: refuse}}
  objectSelector: {matchLabels: {refuse: me}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
`, pair.cert, pair.key, base64Of(ca.pem))
	apply(t, c, manifests)
	waitPod(t, c, "refuse", "condition=Ready")
	object := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: refused, labels: {refuse: me}}\n"
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	err = until(ctx, 200*time.Millisecond, func(ctx context.Context) error {
		err := c.Apply(ctx, []byte(object))
		if err == nil {
			_, _ = c.Kubectl(ctx, "delete", "configmap", "refused")
			return fmt.Errorf("the webhook was not asked")
		}
		if !strings.Contains(err.Error(), "refused by the pod") {
			return err // the endpoint may not be known yet
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestHardwareIsTheNodesAndItsFolderEveryContainers(t *testing.T) {
	c := sharedCluster(t)
	if got := onNode(t, c, "node-1", "ls", "/run/nvidia/driver/dev"); got != "nvidia0\nnvidia1" {
		t.Errorf("driver root of node-1 has devices %q", got)
	}
	if got := onNode(t, c, "node-1", "sh", "-c", "ls /dev | grep nvidia; stat -c %t:%T:%a /dev/nvidia0"); got != "nvidia0\nnvidia1\n1:3:666" {
		t.Errorf("/dev of node-1: %q", got)
	}
	if got := onNode(t, c, "node-2", "sh", "-c", "ls /dev | grep -c nvidia || true"); got != "0" {
		t.Errorf("/dev of node-2, which has no cards, has %s of them", got)
	}
	apply(t, c, pod("first", "node-1", "securityContext: {runAsUser: 1000}", "sleep")+"---"+pod("second", "node-1", "", "sleep"))
	waitPod(t, c, "first", "condition=Ready")
	waitPod(t, c, "second", "condition=Ready")
	if got := kubectl(t, c, "exec", "first", "--", "/agent", "cat", "/run/fakegpu/card"); got != "T4" {
		t.Errorf("the container reads %q", got)
	}
	kubectl(t, c, "exec", "first", "--", "/agent", "write", "/run/fakegpu/used", "by first")
	if got := kubectl(t, c, "exec", "second", "--", "/agent", "cat", "/run/fakegpu/used"); got != "by first" {
		t.Errorf("the other container reads %q", got)
	}
	if _, err := c.Kubectl(t.Context(), "exec", "first", "--", "/agent", "cat", "/dev/nvidia0"); err == nil {
		t.Error("a container without a device has one")
	}
	path, err := c.NodePath("node-1", HardwareDir)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(path, "used")); err != nil || string(data) != "by first" {
		t.Errorf("seen from outside: %q, %v", data, err)
	}
}

func TestRestartOfAComponentKeepsContainersRunning(t *testing.T) {
	c := sharedCluster(t)
	apply(t, c, pod("stays", "node-2", "", "sleep"))
	waitPod(t, c, "stays", "condition=Ready")
	for _, name := range []string{"etcd", "apiserver", "controller-manager", "scheduler", "containerd@node-2", "kubelet@node-2"} {
		t.Run(name, func(t *testing.T) {
			before := componentPIDs(c)
			if err := c.Restart(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			for component, pid := range componentPIDs(c) {
				changed := pid != before[component]
				if restarted := component == name || component == name+"@"+ControlPlane; changed != restarted || pid == 0 {
					t.Errorf("%s: process %d before, %d after", component, before[component], pid)
				}
			}
		})
	}
	if err := c.waitNodes(t.Context(), c.nodeNames()); err != nil {
		t.Fatal(err)
	}
	got := kubectl(t, c, "get", "pod", "stays", "-o", "jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}")
	if got != "Running 0" {
		t.Errorf("the pod is %s", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	err := until(ctx, 200*time.Millisecond, func(ctx context.Context) error { // the kubelet learns of its pods a moment after it answers
		_, err := c.Kubectl(ctx, "exec", "stays", "--", "/agent", "cat", "/etc/passwd")
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := c.Restart(t.Context(), "kube-proxy@node-2"); err == nil || !strings.Contains(err.Error(), "it has containerd, kubelet") {
		t.Errorf("restart of an unknown component: %v", err)
	}
}

func componentPIDs(c *Cluster) map[string]int {
	pids := map[string]int{}
	for _, s := range c.Components() {
		pids[s.Component+"@"+s.Machine] = s.PID
	}
	return pids
}

func TestCutNodeIsUnreachableUntilHealed(t *testing.T) {
	c := sharedCluster(t)
	reach := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		conn, err := c.DialContext(ctx, "tcp", nodeIP(2).String()+":10250")
		if err == nil {
			conn.Close()
		}
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	reached := func() error {
		return until(ctx, 100*time.Millisecond, func(context.Context) error { return reach() })
	}
	if err := reached(); err != nil {
		t.Fatal(err)
	}
	if err := c.Cut(t.Context(), "node-2"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Heal(context.Background(), "node-2") }) //nolint:errcheck // only if the test failed
	if err := reach(); err == nil {
		t.Error("the node that was cut off is reached")
	}
	if status, err := c.Status(t.Context()); err != nil || strings.Count(status, "cut off") != 1 {
		t.Errorf("status: %v\n%s", err, status)
	}
	if err := c.Heal(t.Context(), "node-2"); err != nil {
		t.Fatal(err)
	}
	if err := reached(); err != nil {
		t.Error(err)
	}
}

func TestRebootLosesRunAndContainersAndKeepsVarLib(t *testing.T) {
	c := sharedCluster(t)
	apply(t, c, pod("again", "node-1", "", "sleep"))
	waitPod(t, c, "again", "condition=Ready")
	onNode(t, c, "node-1", "sh", "-c", "touch /var/run/cdi/lost /run/fakegpu/lost /dev/lost /var/lib/kept")
	before := onNode(t, c, "node-1", "cat", BootIDFile)
	container := kubectl(t, c, "get", "pod", "again", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
	start := time.Now()
	if err := c.Reboot(t.Context(), "node-1"); err != nil {
		t.Fatal(err)
	}
	t.Logf("rebooted in %s", time.Since(start).Round(100*time.Millisecond))
	if got := onNode(t, c, "node-1", "sh", "-c", "ls /var/run/cdi /run/fakegpu /dev/lost /var/lib/kept 2>/dev/null || true"); got != "/var/lib/kept\n\n/run/fakegpu:\ncard\n\n/var/run/cdi:" {
		t.Errorf("after the reboot there is %q", got)
	}
	after := onNode(t, c, "node-1", "cat", BootIDFile)
	if after == before {
		t.Errorf("boot id %s as before", after)
	}
	if got := onNode(t, c, "node-1", "cat", "/proc/sys/kernel/random/boot_id"); got != after {
		t.Errorf("the kernel's boot id is %s, want %s", got, after)
	}
	if got := kubectl(t, c, "get", "node", "node-1", "-o", "jsonpath={.status.nodeInfo.bootID}"); got != after {
		t.Errorf("the node object's boot id is %s, want %s", got, after)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	err := until(ctx, 200*time.Millisecond, func(ctx context.Context) error {
		got, err := c.Kubectl(ctx, "get", "pod", "again", "-o", "jsonpath={.status.containerStatuses[0].ready} {.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].containerID}")
		if err == nil && (!strings.HasPrefix(string(got), "true 1 ") || strings.Contains(string(got), container)) {
			err = fmt.Errorf("the pod's container: %s, want one that is ready, was restarted once and is not %s", got, container)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
