package controller

import (
	"context"
	"maps"
	"slices"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// orderFlavors puts the flavors of a queue in the configured order: that where a
// whole card costs least goes first. Flavors without a card at the moment come
// last; otherwise the order stays the queue's.
func (c *core) orderFlavors(q *engine.ClusterQueue) {
	if c.flavorOrder == "" {
		return
	}
	for i := range q.Groups {
		slices.SortStableFunc(q.Groups[i].Flavors, func(a, b engine.FlavorQuotas) int {
			x, known := c.scores[a.Flavor]
			y, too := c.scores[b.Flavor]
			switch {
			case known && (!too || x < y):
				return -1
			case too && (!known || y < x):
				return 1
			}
			return 0
		})
	}
}

// reorder looks at the order of flavors again, once for however much has
// changed of devices, nodes and flavors.
func (c *core) reorder() {
	if c.flavorOrder == "" || !c.orderDue {
		return
	}
	c.orderDue = false
	scores := map[engine.FlavorName]int64{}
	for name := range c.flavors {
		if n, known := c.fleet(name).Score(context.Background(), c.flavorOrder); known {
			scores[engine.FlavorName(name)] = n
		}
	}
	if maps.Equal(scores, c.scores) {
		return
	}
	c.scores = scores
	for _, q := range c.queues {
		c.applyQueue(q)
	}
}
