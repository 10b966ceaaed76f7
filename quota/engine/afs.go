package engine

// localUsage is the remembered usage of a LocalQueue.
type localUsage struct{}

func (e *Engine) compareUsage(a, b *local) int { return 0 }

func (e *Engine) chargeUsage(w *work) {}

func (e *Engine) tickUsage() {}

func (e *Engine) nextUsageTick() instant { return 0 }
