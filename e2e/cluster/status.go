package cluster

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ComponentStatus is the state of one daemon.
type ComponentStatus struct {
	Machine, Component string
	PID                int    // of the outer machine; 0 when it does not run
	State              string // running or not running
}

// Components lists the daemons of all machines.
func (c *Cluster) Components() []ComponentStatus {
	var all []ComponentStatus
	add := func(machine string, components []component) {
		m := c.machine(machine)
		for _, k := range components {
			s := ComponentStatus{Machine: machine, Component: k.name, State: "not running"}
			if p, err := readProcess(m.pidFile(k.name)); err == nil && p.alive() {
				s.PID, s.State = p.PID, "running"
			}
			all = append(all, s)
		}
	}
	add(ControlPlane, controlPlaneComponents(c.config))
	for i, n := range c.config.Nodes {
		add(n.Name, nodeComponents(c.config, i+1))
	}
	return all
}

// Status describes the cluster as a table: its daemons, and what the API server says of the nodes.
func (c *Cluster) Status(ctx context.Context) (string, error) {
	if !c.IsUp() {
		left, err := c.leftovers()
		if err != nil {
			return "", err
		}
		if len(left) > 0 {
			return fmt.Sprintf("cluster %s is there in part:\n  %s\n", c.name, strings.Join(left, "\n  ")), nil
		}
		return fmt.Sprintf("cluster %s is not up\n", c.name), nil
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "MACHINE\tCOMPONENT\tSTATE\tPID\tLOG")
	for _, s := range c.Components() {
		pid := "-"
		if s.PID != 0 {
			pid = fmt.Sprint(s.PID)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Machine, s.Component, s.State, pid, c.LogFile(s.Machine, s.Component))
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, "NODE\tREADY\tNETWORK\tBOOT ID")
	client, err := c.Client()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for _, n := range c.config.Nodes {
		ready, bootID := "yes", "-"
		if err := nodeReady(ctx, client, n.Name); err != nil {
			ready = err.Error()
		} else if node, err := client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{}); err == nil {
			bootID = node.Status.NodeInfo.BootID
		}
		network := "connected"
		if cut, err := isCut(ctx, c.name, n.Name); err != nil {
			network = err.Error()
		} else if cut {
			network = "cut off"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", n.Name, ready, network, bootID)
	}
	if err := w.Flush(); err != nil {
		return "", err
	}
	return b.String(), nil
}
