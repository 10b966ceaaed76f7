package controller

import "time"

// SetStartPatience changes how long a workload that Kueue has admitted may be
// unable to begin.
func (c *Controller) SetStartPatience(d time.Duration) {
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	c.core.rooms.patience = d
}
