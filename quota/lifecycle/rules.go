package lifecycle

import "time"

// Rules are what the operator of the cluster has set. The zero value looks at
// neither readiness nor notice.
type Rules struct {
	// PodsReady, if not nil, evicts workloads whose pods are not ready in time.
	PodsReady *PodsReady
	// MaxNotice is the longest notice that a preempted workload may ask for.
	MaxNotice time.Duration
}

// PodsReady is what waitForPodsReady says.
type PodsReady struct {
	// Timeout is how long after its admission all pods must be ready.
	Timeout time.Duration
	// Recovery is how long pods that were ready may not be; 0 is for ever.
	Recovery time.Duration
	// ByEviction queues a workload that was evicted by when that was, and not by
	// its creation.
	ByEviction bool
	// Limit is how often a workload may come back, nil for ever.
	Limit *int32
	// Base is the first pause before it comes back; each further one is twice as
	// long, up to Max.
	Base, Max time.Duration
}

// pause is how long the nth return is put off, n counting from 1.
func (p *PodsReady) pause(n int32) time.Duration {
	d := p.Base
	for ; n > 1 && d < p.Max; n-- {
		d *= 2
	}
	return min(d, p.Max)
}
