package fit

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// The allocator tries combinations of devices until one fits, and their number
// is exponential in the requests of a claim: seven requests with a constraint
// that no two cards meet are two million tries on a node with eight. Everything
// else waits meanwhile, so every search is bounded, in steps of the allocator
// (one for each device that it puts into a combination), which makes the answer
// the same on a fast machine and a slow one.
//
// A search that goes straight to its answer is never refused. What it takes
// beyond that is drawn from an allowance of its namespace, and from one that all
// share, which come back slowly: nobody makes the controller search all the
// time, with one claim or with many.
const (
	// plainSteps are free in every search, besides those that a claim needs at
	// least.
	plainSteps = 500
	// searchSteps bounds one search, about a tenth of a second.
	searchSteps = 20_000
	// slowSearch bounds one search where the steps are slow ones.
	slowSearch = 250 * time.Millisecond

	tenantSteps, tenantStepsASecond = 60_000, 1_000
	commonSteps, commonStepsASecond = 240_000, 10_000
)

// errTooMany says that a search was given up.
var errTooMany = errors.New("too many combinations of devices to try: ask for like devices by one request with a count, or with fewer requests and constraints")

// allowance is a number of steps that comes back with time.
type allowance struct {
	left int
	at   time.Time
}

func (a *allowance) refill(now time.Time, full, aSecond int) {
	back := now.Sub(a.at).Seconds() * float64(aSecond)
	if a.at.IsZero() || back >= float64(full-a.left) {
		a.left, a.at = full, now
		return
	}
	if n := int(back); n > 0 {
		a.left, a.at = a.left+n, now
	}
}

// searching is the allowances of all namespaces. Full ones are not kept.
type searching struct {
	now     func() time.Time
	common  allowance
	tenants map[string]*allowance
	// sweepAt is how many there may be before the full ones are looked for.
	sweepAt int
}

// extra is how many steps beyond the plain ones a namespace may make now.
func (s *searching) extra(namespace string) int {
	now := s.now()
	s.common.refill(now, commonSteps, commonStepsASecond)
	left := tenantSteps
	if a := s.tenants[namespace]; a != nil {
		a.refill(now, tenantSteps, tenantStepsASecond)
		left = a.left
		if a.left == tenantSteps {
			delete(s.tenants, namespace)
		}
	}
	return max(0, min(searchSteps, left, s.common.left))
}

// spend draws steps.
func (s *searching) spend(namespace string, steps int) {
	if steps <= 0 {
		return
	}
	a := s.tenants[namespace]
	if a == nil {
		if len(s.tenants) >= s.sweepAt {
			s.sweep()
		}
		a = &allowance{left: tenantSteps, at: s.now()}
		s.tenants[namespace] = a
	}
	a.left -= steps
	s.common.left -= steps
}

// sweep forgets the allowances that are full by now, those of namespaces that are
// gone among them. It is done when there are twice as many as it left before.
func (s *searching) sweep() {
	now := s.now()
	maps.DeleteFunc(s.tenants, func(_ string, a *allowance) bool {
		a.refill(now, tenantSteps, tenantStepsASecond)
		return a.left == tenantSteps
	})
	s.sweepAt = max(leastSwept, 2*len(s.tenants))
}

// leastSwept is how many allowances are kept without a look.
const leastSwept = 64

// namespaceOf is whose allowance a workload's searches are drawn from.
func namespaceOf(id engine.WorkloadID) string {
	namespace, _, _ := strings.Cut(string(id), "/")
	return namespace
}

// bounded is a context that ends after so many questions whether it has: the
// allocator asks once a step.
type bounded struct {
	context.Context
	steps, most int
	now         func() time.Time
	began       time.Time
	slow        bool
}

// Err implements context.Context.
func (b *bounded) Err() error {
	b.steps++
	if b.steps%64 == 0 && b.now().Sub(b.began) > slowSearch {
		b.slow = true
	}
	if b.exceeded() {
		return errTooMany
	}
	return nil
}

func (b *bounded) exceeded() bool { return b.slow || b.steps > b.most }

// search runs one search of the allocator within its bounds.
func (s *State) search(namespace string, claims []*resourceapi.ResourceClaim, run func(context.Context) ([]resourceapi.AllocationResult, error)) ([]resourceapi.AllocationResult, error) {
	plain := plainSteps + least(claims)
	extra := s.searching.extra(namespace)
	ctx := &bounded{Context: context.Background(), most: plain + extra, now: s.searching.now, began: s.searching.now()}
	results, err := run(ctx)
	if ctx.slow {
		// Its steps were few and long.
		s.searching.spend(namespace, max(extra, 1))
	} else {
		s.searching.spend(namespace, min(ctx.steps-plain, extra))
	}
	if ctx.exceeded() {
		return nil, errTooMany
	}
	return results, err
}

// least is about how many steps a search takes that needs no second try.
func least(claims []*resourceapi.ResourceClaim) int {
	n := 1
	for _, c := range claims {
		n++
		for i := range c.Spec.Devices.Requests {
			n++
			if r := c.Spec.Devices.Requests[i].Exactly; r != nil {
				n += int(min(max(0, r.Count), resourceapi.AllocationResultsMaxSize))
			}
			for _, r := range c.Spec.Devices.Requests[i].FirstAvailable {
				n += 1 + int(min(max(0, r.Count), resourceapi.AllocationResultsMaxSize))
			}
		}
	}
	return n
}
