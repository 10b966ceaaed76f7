package engine

func (e *Engine) weightedShare(n *node) Amount { return 0 }
