package controller

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// Of what a workload was admitted with, others of its pods may have all: one that
// ends is still there when the next comes in its place. Such a pod waits, and is
// looked at as soon as a pod of its workload ends or goes, or a claim gives its
// ticket back. Called under the lock, like all that follows facts.

// awaits notes that a pod waits for others of its workload. Shared claims, which
// have no pod of their own, come again by their timer.
func (c *core) awaits(id engine.WorkloadID, uid types.UID) {
	p := c.pods[uid]
	if p == nil {
		return
	}
	if c.awaiting[id] == nil {
		c.awaiting[id] = map[types.NamespacedName]struct{}{}
	}
	c.awaiting[id][p.name] = struct{}{}
}

// gaveWay has those looked at that wait for others of a workload.
func (c *core) gaveWay(id engine.WorkloadID) {
	for name := range c.awaiting[id] {
		c.tellPod(name)
	}
	delete(c.awaiting, id)
}
