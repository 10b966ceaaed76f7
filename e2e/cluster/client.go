package cluster

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Kubeconfig is the path of the administrator's kubeconfig. Its server's address exists only in
// the control plane's network namespace: use it with Command, Kubectl or Helm.
func (c *Cluster) Kubeconfig() string { return c.path("admin.kubeconfig") }

// NetworkNamespace is the path of the network namespace in which the Kubeconfig's address exists,
// for programs that enter it themselves.
func (c *Cluster) NetworkNamespace() string { return netnsPath(c.name, ControlPlane) }

// RESTConfig is the administrator's client configuration. It works from any network namespace:
// connections are made in the control plane's.
func (c *Cluster) RESTConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", c.name, err)
	}
	config.Dial = c.DialContext
	config.QPS, config.Burst = 200, 400
	return config, nil
}

// Client is a client with the administrator's rights.
func (c *Cluster) Client() (*kubernetes.Clientset, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// DialContext connects to an address, which must be numeric, as the control plane would. It
// reaches the API server, the nodes and all pods.
func (c *Cluster) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return dialIn(ctx, c.NetworkNamespace(), network, address)
}

// startInNetwork starts a command of the outer machine in the control plane's network namespace.
func (c *Cluster) startInNetwork(cmd *exec.Cmd) error {
	return onThread(func() error {
		if err := enterNamespace(c.NetworkNamespace(), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("cluster %s is not up: %w", c.name, err)
		}
		return cmd.Start()
	})
}

// Run runs a program of the outer machine that talks to the API server, such as kubectl or helm,
// with KUBECONFIG set and in the control plane's network namespace. The cache's binaries come
// first in its PATH. The caller sets what else it wants of cmd, which must not have been started.
func (c *Cluster) Run(cmd *exec.Cmd) error {
	c.equip(cmd)
	if err := c.startInNetwork(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// Start is Run for a program that goes on, such as a controller. It outlives this process and ends
// when the cluster goes down.
func (c *Cluster) Start(cmd *exec.Cmd) error {
	c.equip(cmd)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.startInNetwork(cmd); err != nil {
		return err
	}
	go cmd.Wait() //nolint:errcheck // whoever cares looks at what it does
	return nil
}

func (c *Cluster) equip(cmd *exec.Cmd) {
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, "KUBECONFIG="+c.Kubeconfig(), "PATH="+c.bin+":"+os.Getenv("PATH"))
}

// Kubectl runs kubectl and returns what it printed on standard output. The error holds what it
// printed on standard error.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) ([]byte, error) {
	return c.output(exec.CommandContext(ctx, c.Binary("kubectl"), args...), nil)
}

// Apply gives manifests to kubectl apply.
func (c *Cluster) Apply(ctx context.Context, manifests []byte) error {
	_, err := c.output(exec.CommandContext(ctx, c.Binary("kubectl"), "apply", "-f", "-"), manifests)
	return err
}

// Helm runs helm and returns what it printed on standard output.
func (c *Cluster) Helm(ctx context.Context, args ...string) ([]byte, error) {
	return c.output(exec.CommandContext(ctx, c.Binary("helm"), args...), nil)
}

func (c *Cluster) output(cmd *exec.Cmd, stdin []byte) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	if err := c.Run(cmd); err != nil {
		return stdout.Bytes(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// Binary is the path of one of the cache's binaries.
func (c *Cluster) Binary(name string) string { return c.bin + "/" + name }

// dialIn connects to a numeric address from a network namespace.
func dialIn(ctx context.Context, netns, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := onThread(func() error {
		if err := enterNamespace(netns, unix.CLONE_NEWNET); err != nil {
			return err
		}
		// The socket belongs to the namespace it was made in; the dialer makes it on this thread,
		// since a numeric address needs neither a resolver nor a race of two address families.
		var err error
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}
