package engine

import "time"

// Option changes what [New] makes.
type Option func(*options)

type options struct {
	fair             bool
	strategies       []FairStrategy
	usage            *AdmissionFairSharing
	ignoreUndeclared bool
	devices          map[Resource]bool
	holeAfter        time.Duration
}

// FairStrategy is a condition under which fair sharing may evict (KEP-1714).
type FairStrategy string

const (
	// LessThanOrEqualToFinalShare: the preemptor's share, with its workload, is
	// no more than the victim's share will be without the victim.
	LessThanOrEqualToFinalShare FairStrategy = "LessThanOrEqualToFinalShare"
	// LessThanInitialShare: it is less than the victim's share is now.
	LessThanInitialShare FairStrategy = "LessThanInitialShare"
)

// FairSharing orders queues by dominant resource share and evicts by it. The
// strategies are tried in order; none means both, in the order in which they
// are declared here. Without this option preemption is classical.
func FairSharing(strategies ...FairStrategy) Option {
	return func(o *options) {
		o.fair = true
		o.strategies = strategies
		if len(strategies) == 0 {
			o.strategies = []FairStrategy{LessThanOrEqualToFinalShare, LessThanInitialShare}
		}
	}
}

// AdmissionFairSharing is how usage of LocalQueues is remembered (KEP-4136).
type AdmissionFairSharing struct {
	// HalfLife is the time in which past usage halves; 0 remembers nothing but
	// the last sample.
	HalfLife time.Duration
	// Sampling is the time between samples; 0 means five minutes.
	Sampling time.Duration
	// Weights of resources, in billionths; a resource not named counts 1.
	Weights map[Resource]Weight
}

// WithAdmissionFairSharing turns it on for queues that are UsageBased.
func WithAdmissionFairSharing(c AdmissionFairSharing) Option {
	return func(o *options) { o.usage = &c }
}

// IgnoreUndeclared does not hold resources against a workload that its queue
// has no quota for, as quotaCheckStrategy IgnoreUndeclared says; without it such
// a workload is inadmissible. The device resources named here are ignored only
// in queues that cover one of them: a queue without any device quota must not be
// a free pass to devices.
func IgnoreUndeclared(devices ...Resource) Option {
	return func(o *options) {
		o.ignoreUndeclared = true
		Devices(devices...)(o)
	}
}

// Devices names the resources that stand for devices: different measures of the
// same thing, of which a queue covers those that it cares for. They are not held
// against a workload in a queue that covers one of them, and in no other queue
// are they ignored.
func Devices(devices ...Resource) Option {
	return func(o *options) {
		o.devices = map[Resource]bool{}
		for _, d := range devices {
			o.devices[d] = true
		}
	}
}

// HoleReserveAfter is how long a workload waits for room before a place is
// kept free for it, so that small ones cannot starve it. 0, the default, never.
func HoleReserveAfter(d time.Duration) Option { return func(o *options) { o.holeAfter = d } }
