package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// bridgeMachine names the network namespace that holds only the bridge between the machines.
const bridgeMachine = "net"

const netnsDir = "/run/netns"

// netnsPrefix begins the names of all network namespaces of a cluster. Names of clusters and nodes
// have no dots, so no cluster's prefix begins another's.
func netnsPrefix(cluster string) string { return "sluice." + cluster + "." }

func netnsName(cluster, machine string) string { return netnsPrefix(cluster) + machine }

func netnsPath(cluster, machine string) string {
	return filepath.Join(netnsDir, netnsName(cluster, machine))
}

// port is the name of a machine's interface on the bridge: 0 is the control plane, i the i-th node.
func port(i int) string {
	if i == 0 {
		return "cp"
	}
	return fmt.Sprintf("node%d", i)
}

// ipCommand is a batch for one run of ip(8) in a network namespace; an empty namespace is the outer
// machine's, where namespaces are made.
type ipCommand struct {
	netns string
	batch []string
}

// networkPlan is what makes the whole network of a cluster: the namespaces, the bridge with a veth
// to each machine, addresses, and routes between pods, nodes and the API server.
func networkPlan(cluster string, c Config) []ipCommand {
	machines := []string{ControlPlane}
	for _, n := range c.Nodes {
		machines = append(machines, n.Name)
	}
	create := ipCommand{batch: []string{"netns add " + netnsName(cluster, bridgeMachine)}}
	bridge := ipCommand{netns: netnsName(cluster, bridgeMachine), batch: []string{
		"link set lo up",
		"link add br0 type bridge",
		"link set br0 up",
	}}
	var inside []ipCommand
	for i, m := range machines {
		netns := netnsName(cluster, m)
		create.batch = append(create.batch, "netns add "+netns)
		bridge.batch = append(bridge.batch,
			fmt.Sprintf("link add %s type veth peer name eth0 netns %s", port(i), netns),
			fmt.Sprintf("link set %s master br0 up", port(i)))
		ip := controlPlaneIP
		if i > 0 {
			ip = nodeIP(i).String()
		}
		batch := []string{
			"link set lo up",
			fmt.Sprintf("addr add %s/%d dev eth0", ip, machineBits),
			"link set eth0 up",
		}
		if i == 0 {
			batch = append(batch, fmt.Sprintf("addr add %s/32 dev lo", apiServiceIP))
		} else {
			batch = append(batch,
				fmt.Sprintf("route add %s/32 via %s", apiServiceIP, controlPlaneIP),
				// Other services have no addresses that work: who asks is told at once.
				"route add prohibit "+serviceCIDR)
		}
		for j := range c.Nodes {
			if j+1 != i {
				batch = append(batch, fmt.Sprintf("route add %s via %s", podCIDR(j+1), nodeIP(j+1)))
			}
		}
		inside = append(inside, ipCommand{netns: netns, batch: batch})
	}
	return append([]ipCommand{create, bridge}, inside...)
}

func (c ipCommand) run(ctx context.Context) error {
	args := []string{"-batch", "-"}
	if c.netns != "" {
		args = append([]string{"-n", c.netns}, args...)
	}
	cmd := exec.CommandContext(ctx, "ip", args...)
	cmd.Stdin = strings.NewReader(strings.Join(c.batch, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// clusterNetns lists the network namespaces that a cluster has now.
func clusterNetns(cluster string) ([]string, error) {
	entries, err := os.ReadDir(netnsDir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), netnsPrefix(cluster)) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// setLink brings a machine's end on the bridge up or down: the cable is plugged in or pulled out.
func setLink(ctx context.Context, cluster string, i int, up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	return ipCommand{netns: netnsName(cluster, bridgeMachine), batch: []string{
		fmt.Sprintf("link set %s %s", port(i), state),
	}}.run(ctx)
}

// isCut says whether the link of a machine is down: its own end then has no carrier.
func isCut(ctx context.Context, cluster, machine string) (bool, error) {
	out, err := exec.CommandContext(ctx, "ip", "-n", netnsName(cluster, machine), "-o", "link", "show", "eth0").CombinedOutput()
	if err != nil {
		return false, fmt.Errorf("link of %s: %w: %s", machine, err, bytes.TrimSpace(out))
	}
	return bytes.Contains(out, []byte("NO-CARRIER")), nil
}

func hasLink(ctx context.Context, netns, link string) bool {
	return exec.CommandContext(ctx, "ip", "-n", netns, "link", "show", link).Run() == nil
}
