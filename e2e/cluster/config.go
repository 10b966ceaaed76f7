// Package cluster runs a real Kubernetes cluster on one Linux machine, for development, the demo
// and end-to-end tests: etcd, the API server, controller manager and scheduler on one simulated
// machine, and a kubelet with containerd on each further one. A simulated machine is a set of
// namespaces (network, mount, PID, UTS, IPC) with folders of its own; nothing in it is faked but
// the hardware that a Hardware hook puts in place.
//
// The package decides how the cluster is laid out and keeps it running, broken or cut off as a
// test wants. It installs nothing in the cluster: charts, images and workloads are the caller's.
// The command e2e/cmd/cluster and the scenario tests call it.
//
// Everything needs root. Several clusters, told apart by name, can run at once.
package cluster

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// DefaultName is the name of the cluster that commands work on when none is given.
const DefaultName = "sluice"

// ControlPlane is the machine that runs etcd, the API server, the controller manager and the
// scheduler. No node can have its name.
const ControlPlane = "control-plane"

// maxNodes bounds the cluster to what the address plan can number.
const maxNodes = 200

// Config says what a cluster consists of. It is what a node file holds.
type Config struct {
	// Nodes are the machines that run pods, in the order of their addresses.
	Nodes []Node `json:"nodes"`
	// FeatureGates are set on every Kubernetes component; unset gates keep their default.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
}

// Node is a machine that runs pods.
type Node struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	// Taints are written as kubectl writes them: key=value:effect or key:effect.
	Taints []string `json:"taints,omitempty"`
	// GPUs are handed to the Hardware hook as they are.
	GPUs []GPU `json:"gpus,omitempty"`
}

// GPU is a number of equal simulated cards.
type GPU struct {
	// Model names a card that the Hardware hook knows, such as A100-SXM4-80GB.
	Model string `json:"model"`
	Count int    `json:"count"`
}

// DefaultConfig is a cluster of n nodes named node-1 to node-n, without labels, taints or cards.
func DefaultConfig(n int) Config {
	var c Config
	for i := range n {
		c.Nodes = append(c.Nodes, Node{Name: fmt.Sprintf("node-%d", i+1)})
	}
	return c
}

// ReadConfig reads a node file. Unknown fields are errors, so that a misspelt one is not lost.
func ReadConfig(path string) (Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("node file: %w", err)
	}
	var c Config
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return Config{}, fmt.Errorf("node file %s: %w", path, err)
	}
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("node file %s: %w", path, err)
	}
	return c, nil
}

var (
	// A node's name is also its host name, a folder and part of a namespace's name.
	nodeName    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)
	clusterName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?$`)
)

func validateName(name string) error {
	if !clusterName.MatchString(name) {
		return fmt.Errorf("cluster name %q: want 1 to 20 lower-case letters, digits and inner dashes", name)
	}
	return nil
}

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	if len(c.Nodes) == 0 || len(c.Nodes) > maxNodes {
		errs = append(errs, fmt.Errorf("%d nodes: want 1 to %d", len(c.Nodes), maxNodes))
	}
	seen := map[string]bool{ControlPlane: true, bridgeMachine: true}
	for i, n := range c.Nodes {
		if !nodeName.MatchString(n.Name) {
			errs = append(errs, fmt.Errorf("nodes[%d]: name %q: want 1 to 40 lower-case letters, digits and inner dashes", i, n.Name))
		}
		if seen[n.Name] {
			errs = append(errs, fmt.Errorf("nodes[%d]: name %q is taken", i, n.Name))
		}
		seen[n.Name] = true
		for _, t := range n.Taints {
			if _, err := parseTaint(t); err != nil {
				errs = append(errs, fmt.Errorf("nodes[%d] (%s): %w", i, n.Name, err))
			}
		}
		for _, g := range n.GPUs {
			if g.Model == "" || g.Count < 1 {
				errs = append(errs, fmt.Errorf("nodes[%d] (%s): %d GPUs of model %q: want a model and a count of at least 1", i, n.Name, g.Count, g.Model))
			}
		}
	}
	return errors.Join(errs...)
}

func parseTaint(s string) (corev1.Taint, error) {
	keyValue, effect, ok := strings.Cut(s, ":")
	key, value, _ := strings.Cut(keyValue, "=")
	if !ok || key == "" {
		return corev1.Taint{}, fmt.Errorf("taint %q: want key=value:effect or key:effect", s)
	}
	switch e := corev1.TaintEffect(effect); e {
	case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		return corev1.Taint{Key: key, Value: value, Effect: e}, nil
	}
	return corev1.Taint{}, fmt.Errorf("taint %q: effect %q: want NoSchedule, PreferNoSchedule or NoExecute", s, effect)
}
