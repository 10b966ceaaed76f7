package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Restart ends a component as a service manager would (SIGTERM), starts it again and waits until it
// answers. A component is etcd, apiserver, controller-manager or scheduler, or containerd@NODE or
// kubelet@NODE. Containers keep running.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	if err := c.StopComponent(ctx, name); err != nil {
		return err
	}
	return c.StartComponent(ctx, name)
}

// StopComponent ends a component, which then is down until StartComponent or, for a node's
// components, until the node's next reboot.
func (c *Cluster) StopComponent(_ context.Context, name string) error {
	m, component, _, err := c.findComponent(name)
	if err != nil {
		return err
	}
	return m.stop(component.name)
}

// StartComponent starts a component that was stopped or has died, and waits until it answers.
func (c *Cluster) StartComponent(ctx context.Context, name string) error {
	m, component, _, err := c.findComponent(name)
	if err != nil {
		return err
	}
	if err := m.start(component); err != nil {
		return err
	}
	return c.waitComponent(ctx, m, component.name)
}

func (c *Cluster) waitComponent(ctx context.Context, m *machine, name string) error {
	switch name {
	case "etcd", "apiserver":
		return c.waitAPIServer(ctx)
	case "containerd":
		return m.waitContainerd(ctx)
	}
	url := map[string]string{
		"controller-manager": "127.0.0.1:10257",
		"scheduler":          "127.0.0.1:10259",
		"kubelet":            "127.0.0.1:10250",
	}[name]
	ctx, cancel := context.WithTimeout(ctx, upPatience)
	defer cancel()
	return until(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		if err := m.check(name); err != nil {
			return &fatalError{err}
		}
		conn, err := dialIn(ctx, m.netns, "tcp", url)
		if err != nil {
			return fmt.Errorf("%s: %s does not answer on %s: %w; the end of its log:\n%s", m.name, name, url, err, logTail(m.logFile(name), 5))
		}
		return conn.Close()
	})
}

// findComponent resolves a component's name: that of a control plane's daemon, or DAEMON@NODE.
func (c *Cluster) findComponent(name string) (*machine, component, int, error) {
	daemon, node, onNode := strings.Cut(name, "@")
	machineName, i := ControlPlane, 0
	components := controlPlaneComponents(c.config)
	if onNode {
		var err error
		if i, err = c.index(node); err != nil {
			return nil, component{}, 0, err
		}
		if i > 0 {
			machineName, components = node, nodeComponents(c.config, i)
		}
	}
	var known []string
	for _, k := range components {
		if k.name == daemon {
			return c.machine(machineName), k, i, nil
		}
		known = append(known, k.name)
	}
	return nil, component{}, 0, fmt.Errorf("no component %q on %s: it has %s; those of a node are named kubelet@NODE and containerd@NODE",
		daemon, machineName, strings.Join(known, ", "))
}

// Cut pulls a node's network cable: nothing on it reaches other machines, nor they it, and what
// runs on it keeps running.
func (c *Cluster) Cut(ctx context.Context, node string) error { return c.plug(ctx, node, false) }

// Heal puts the cable that Cut pulled back in.
func (c *Cluster) Heal(ctx context.Context, node string) error { return c.plug(ctx, node, true) }

func (c *Cluster) plug(ctx context.Context, node string, in bool) error {
	i, err := c.index(node)
	if err != nil {
		return err
	}
	return setLink(ctx, c.name, i, in)
}

// Reboot cuts a node's power and boots it again: every process and container on it is killed; /run
// (with /var/run/cdi), /dev and the simulated hardware's state are new; the boot id is another;
// /var/lib and /var/log are as they were. It returns when the node's kubelet reports again.
func (c *Cluster) Reboot(ctx context.Context, node string) error {
	if err := c.PowerOff(ctx, node); err != nil {
		return err
	}
	return c.PowerOn(ctx, node)
}

// PowerOff ends everything on a node at once. It stays off until PowerOn.
func (c *Cluster) PowerOff(ctx context.Context, node string) error {
	m, _, err := c.findNode(node)
	if err != nil {
		return err
	}
	if err := m.halt(); err != nil {
		return err
	}
	// The pods' bridge is the last that the network namespace keeps of the time before.
	if _, err := os.Stat(m.netns); err != nil {
		return fmt.Errorf("%s: %w", node, err)
	}
	netns := netnsName(c.name, node)
	if hasLink(ctx, netns, "cni0") {
		if err := (ipCommand{netns: netns, batch: []string{"link del cni0"}}).run(ctx); err != nil {
			return err
		}
	}
	groups, err := readCgroups()
	if err != nil {
		return err
	}
	return groups.remove(cgroupPath(c.name, node))
}

// PowerOn boots a node that is off and waits until its kubelet has reported to the API server.
func (c *Cluster) PowerOn(ctx context.Context, node string) error {
	m, i, err := c.findNode(node)
	if err != nil {
		return err
	}
	if _, err := m.first(); err == nil {
		return fmt.Errorf("%s is on already", node)
	}
	groups, err := readCgroups()
	if err != nil {
		return err
	}
	if err := c.bootNode(ctx, m, i, groups); err != nil {
		return err
	}
	if err := m.start(nodeComponents(c.config, i)[1]); err != nil {
		return err
	}
	return c.waitBooted(ctx, m)
}

func (c *Cluster) findNode(name string) (*machine, int, error) {
	i, err := c.index(name)
	if err == nil && i == 0 {
		err = fmt.Errorf("%s cannot be switched off on its own: restart its components, or bring the cluster down", name)
	}
	if err != nil {
		return nil, 0, err
	}
	return c.machine(name), i, nil
}

// waitBooted waits until the node's object has the boot id that the machine has now, and the node
// is ready. A node that is cut off cannot report: then waiting ends when its kubelet answers.
func (c *Cluster) waitBooted(ctx context.Context, m *machine) error {
	if err := c.waitComponent(ctx, m, "kubelet"); err != nil {
		return err
	}
	if cut, err := isCut(ctx, c.name, m.name); err != nil || cut {
		return err
	}
	file, err := m.hostPath(BootIDFile)
	if err != nil {
		return err
	}
	bootID, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return err
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, upPatience)
	defer cancel()
	return until(ctx, 200*time.Millisecond, func(ctx context.Context) error {
		if err := m.check("kubelet"); err != nil {
			return &fatalError{err}
		}
		node, err := client.CoreV1().Nodes().Get(ctx, m.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if have, want := node.Status.NodeInfo.BootID, strings.TrimSpace(string(bootID)); have != want {
			return fmt.Errorf("%s: its kubelet has not reported since the boot: boot id %s, want %s", m.name, have, want)
		}
		return nodeReady(ctx, client, m.name)
	})
}
