package engine

// victim is a workload to evict, and why.
type victim struct {
	w      *work
	reason EvictReason
}

func (e *Engine) weighEviction(n *nomination, c *cell, amount Amount, borrow int) (mode, int) {
	return noFit, borrow
}

func (e *Engine) victims(n *nomination, into []victim) []victim { return into }

func (e *Engine) evictFor(n *nomination, fit Fit) { e.refuse(n) }

func (e *Engine) tournament(t *tree, round []*nomination, fit Fit) {}

type share struct{}
