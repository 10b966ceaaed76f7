package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// ErrUp is returned by Up when the cluster is up already.
var ErrUp = errors.New("the cluster is up already")

// upPatience is how long the API server and then the nodes may take to become ready.
const upPatience = 4 * time.Minute

// Up brings the cluster up and waits until all its nodes are ready. What an earlier Up that failed
// or was interrupted has left has to be removed by Down first.
func (c *Cluster) Up(ctx context.Context, config Config) error {
	start := time.Now()
	if err := config.Validate(); err != nil {
		return err
	}
	if err := requireRoot(); err != nil {
		return err
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if c.IsUp() {
		return fmt.Errorf("cluster %s: %w", c.name, ErrUp)
	}
	if left, err := c.leftovers(); err != nil {
		return err
	} else if len(left) > 0 {
		return fmt.Errorf("cluster %s is there in part, from a start that did not come to its end: remove it with `cluster --name %s down`\nfound: %s",
			c.name, c.name, strings.Join(left, ", "))
	}
	paths, err := preflight(c.bin, filepath.Dir(c.dir), len(config.Nodes))
	if err != nil {
		return err
	}
	groups, err := readCgroups()
	if err != nil {
		return err
	}
	if err := c.build(ctx, config, paths, groups); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("cluster %s: interrupted: %w", c.name, err)
		}
		return fmt.Errorf("%w\nwhat was started is left for a look; remove it with `cluster --name %s down`", err, c.name)
	}
	c.logf("cluster %s: %d nodes ready after %.1fs", c.name, len(config.Nodes), time.Since(start).Seconds())
	return nil
}

// build makes the whole cluster, of which nothing is there.
func (c *Cluster) build(ctx context.Context, config Config, paths runtimePaths, groups cgroups) error {
	start := time.Now()
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	if err := c.saveConfig(config); err != nil {
		return err
	}
	pause, err := c.pauseImage(ctx)
	if err != nil {
		return err
	}
	pki, err := newPKI(c.name, config, time.Now())
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.Kubeconfig(), pki.admin, 0o600); err != nil {
		return err
	}
	c.logf("network: %d machines on a bridge, in network namespaces %s*", len(config.Nodes)+1, netnsPrefix(c.name))
	for _, command := range networkPlan(c.name, config) {
		if err := command.run(ctx); err != nil {
			return err
		}
	}

	// The nodes' runtimes start while the API server does; only the kubelets need it.
	ready := make(chan struct{})
	fail := make([]error, len(config.Nodes)+1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		if fail[0] = c.startControlPlane(ctx, pki); fail[0] != nil {
			cancel()
			return
		}
		c.logf("control plane: ready after %.1fs", time.Since(start).Seconds())
		close(ready)
	})
	for i, n := range config.Nodes {
		wg.Go(func() {
			if err := c.startNode(ctx, i+1, n, pki, paths, groups, pause, ready); err != nil {
				fail[i+1] = err
				cancel()
			}
		})
	}
	wg.Wait()
	if err := firstCauses(fail); err != nil {
		return err
	}
	if err := c.waitNodes(ctx, c.nodeNames()); err != nil {
		return err
	}
	if err := c.setLabels(ctx); err != nil {
		return err
	}
	return os.WriteFile(c.path(upMark), nil, 0o644)
}

// firstCauses joins errors, without those that only say that another error ended the work.
func firstCauses(errs []error) error {
	var causes []error
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			causes = append(causes, err)
		}
	}
	if len(causes) == 0 && slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return context.Canceled
	}
	return errors.Join(causes...)
}

func (c *Cluster) startControlPlane(ctx context.Context, pki *pki) error {
	m := c.machine(ControlPlane)
	if err := writeFiles(filepath.Join(m.varLib(), filepath.Base(confDir)), pki.controlPlane); err != nil {
		return err
	}
	if err := m.boot(); err != nil {
		return err
	}
	components := controlPlaneComponents(c.config)
	for _, component := range components[:2] {
		if err := m.start(component); err != nil {
			return err
		}
	}
	if err := c.waitAPIServer(ctx); err != nil {
		return err
	}
	for _, component := range components[2:] {
		if err := m.start(component); err != nil {
			return err
		}
	}
	return nil
}

// waitAPIServer waits until the API server says that it is ready.
func (c *Cluster) waitAPIServer(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	m := c.machine(ControlPlane)
	ctx, cancel := context.WithTimeout(ctx, upPatience)
	defer cancel()
	return until(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		for _, name := range []string{"etcd", "apiserver"} {
			if err := m.check(name); err != nil {
				return &fatalError{err}
			}
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		body, err := client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Raw()
		if err != nil {
			return fmt.Errorf("API server is not ready: %s; the end of its log:\n%s", failedChecks(body, err), logTail(m.logFile("apiserver"), 5))
		}
		return nil
	})
}

// failedChecks names the checks that an answer of /readyz marks as failed; without such an answer
// it is the error.
func failedChecks(body []byte, err error) string {
	var failed []string
	for line := range strings.Lines(string(body)) {
		if name, ok := strings.CutPrefix(line, "[-]"); ok {
			failed = append(failed, strings.Fields(name)[0])
		}
	}
	if len(failed) == 0 {
		return err.Error()
	}
	return "waits for " + strings.Join(failed, ", ")
}

func (c *Cluster) startNode(ctx context.Context, i int, n Node, pki *pki, paths runtimePaths, groups cgroups, pause string, apiReady <-chan struct{}) error {
	m := c.machine(n.Name)
	files, err := nodeFiles(c.name, c.config, i, paths)
	if err != nil {
		return err
	}
	for name, data := range pki.nodes[n.Name] {
		files[name] = data
	}
	if err := writeFiles(filepath.Join(m.varLib(), filepath.Base(confDir)), files); err != nil {
		return err
	}
	if err := c.bootNode(ctx, m, i, groups); err != nil {
		return err
	}
	if err := m.importImage(ctx, pause); err != nil {
		return err
	}
	select {
	case <-apiReady:
	case <-ctx.Done():
		return ctx.Err()
	}
	return m.start(nodeComponents(c.config, i)[1])
}

// bootNode boots a node up to its container runtime.
func (c *Cluster) bootNode(ctx context.Context, m *machine, i int, groups cgroups) error {
	n := c.config.Nodes[i-1]
	if err := groups.create(cgroupPath(c.name, n.Name)); err != nil {
		return err
	}
	if err := m.boot(); err != nil {
		return err
	}
	if err := c.installHardware(ctx, m, n); err != nil {
		return err
	}
	if err := m.writeBaseSpec(ctx); err != nil {
		return err
	}
	if err := m.start(nodeComponents(c.config, i)[0]); err != nil {
		return err
	}
	return m.waitContainerd(ctx)
}

// writeBaseSpec makes the specification that all containers of the node start from.
func (m *machine) writeBaseSpec(ctx context.Context) error {
	var out, msg bytes.Buffer
	if err := m.run(ctx, nil, &out, &msg, "ctr", "oci", "spec"); err != nil {
		return fmt.Errorf("%s: ctr oci spec: %w: %s", m.name, err, bytes.TrimSpace(msg.Bytes()))
	}
	spec, err := baseSpec(out.Bytes())
	if err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	return writeFiles(filepath.Join(m.varLib(), filepath.Base(confDir)), map[string][]byte{"base-spec.json": spec})
}

// waitContainerd waits until containerd answers on its socket.
func (m *machine) waitContainerd(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, upPatience)
	defer cancel()
	return until(ctx, 50*time.Millisecond, func(ctx context.Context) error {
		if err := m.check("containerd"); err != nil {
			return &fatalError{err}
		}
		socket, err := m.hostPath(containerdSocket)
		if err != nil {
			return err
		}
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return fmt.Errorf("%s: containerd does not answer: %w", m.name, err)
		}
		return conn.Close()
	})
}

// waitNodes waits until the named nodes have registered and are ready, and pods can be made.
func (c *Cluster) waitNodes(ctx context.Context, names []string) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, upPatience)
	defer cancel()
	return until(ctx, 200*time.Millisecond, func(ctx context.Context) error {
		for _, name := range names {
			if err := c.machine(name).check("kubelet"); err != nil {
				return &fatalError{err}
			}
			if err := nodeReady(ctx, client, name); err != nil {
				return err
			}
		}
		for _, name := range []string{"controller-manager", "scheduler"} {
			if err := c.machine(ControlPlane).check(name); err != nil {
				return &fatalError{err}
			}
		}
		// Pods are refused until their namespace's default service account has been made.
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

func nodeReady(ctx context.Context, client kubernetes.Interface, name string) error {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			if condition.Status == corev1.ConditionTrue {
				return nil
			}
			return fmt.Errorf("node %s is not ready: %s", name, condition.Message)
		}
	}
	return fmt.Errorf("node %s is not ready: it has not reported yet", name)
}

// setLabels sets the labels that kubelets may not give themselves.
func (c *Cluster) setLabels(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	for _, n := range c.config.Nodes {
		_, labels := splitLabels(n.Labels)
		if len(labels) == 0 {
			continue
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
		if err != nil {
			return err
		}
		if _, err := client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("labels of node %s: %w", n.Name, err)
		}
	}
	return nil
}

func writeFiles(dir string, files map[string][]byte) error {
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// nodeFiles renders what the daemons of the i-th node read, besides keys and certificates.
func nodeFiles(cluster string, c Config, i int, paths runtimePaths) (map[string][]byte, error) {
	kubelet, err := kubeletConfig(cluster, c, c.Nodes[i-1])
	if err != nil {
		return nil, err
	}
	cni, err := cniConfig(i)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		"kubelet.yaml":         kubelet,
		"containerd.toml":      containerdConfig(paths),
		"cni/10-pods.conflist": cni,
	}, nil
}
