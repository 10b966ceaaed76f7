package testbed

import (
	"context"
	"path/filepath"

	"github.com/sluice-gpu/sluice/e2e/cluster"
	"github.com/sluice-gpu/sluice/e2e/fakegpu"
)

// Hardware puts simulated cards into a cluster's nodes.
type Hardware struct {
	// ContextOverhead is the card memory that every context takes, in MiB.
	ContextOverhead uint64
}

// Install makes the node's driver root and the state of its cards.
func (h Hardware) Install(_ context.Context, n cluster.HardwareNode) error {
	built, err := buildSimulation()
	if err != nil {
		return err
	}
	node := fakegpu.Node{Name: n.Name, ContextMiB: h.ContextOverhead}
	for _, gpu := range n.GPUs {
		for range gpu.Count {
			node.Cards = append(node.Cards, fakegpu.Card{Model: gpu.Model})
		}
	}
	_, err = fakegpu.Install(n.DriverRoot, n.State, built, node)
	return err
}

// buildSimulation compiles the simulated driver and the probe into the cache, once.
func buildSimulation() (string, error) {
	cache, err := cluster.CacheDir()
	if err != nil {
		return "", err
	}
	return fakegpu.Build(filepath.Join(cache, "fakegpu"))
}
