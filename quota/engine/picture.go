package engine

// String draws the tree with its usage, and the queues.
func (e *Engine) String() string { return "" }
