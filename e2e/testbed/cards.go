package testbed

import (
	"github.com/sluice-gpu/sluice/e2e/cluster"
	"github.com/sluice-gpu/sluice/e2e/fakegpu"
)

// Cards are the node's simulated cards, for what an administrator or bad luck does to them. The
// handle is good until the node reboots.
func (b *Testbed) Cards(node string) (*fakegpu.Installed, error) {
	built, err := buildSimulation()
	if err != nil {
		return nil, err
	}
	root, err := b.Cluster.NodePath(node, cluster.DriverRoot)
	if err != nil {
		return nil, err
	}
	state, err := b.Cluster.NodePath(node, cluster.HardwareDir)
	if err != nil {
		return nil, err
	}
	return fakegpu.Open(root, state, built), nil
}
