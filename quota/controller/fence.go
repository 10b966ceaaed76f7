package controller

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// renewDeadline is controller-runtime's, for managers that name none.
const renewDeadline = 10 * time.Second

// errFenced says that a write was not sent.
var errFenced = errors.New("not sent: this replica has not renewed its lease in time, and another may lead")

// fence keeps a leader from writing when another may lead. A leader that cannot
// renew its lease gives up by itself. But one that was frozen (its node paused, its
// process stopped) goes on where it stood before it looks at the clock: it may send
// a ticket for quota that its follower has given to others. So every request that
// changes something is compared with the clock as it leaves, behind the queue that
// keeps to a rate.
//
// What a leader had sent before is told apart when it lands; see late.go.
type fence struct {
	now   func() time.Time
	lasts time.Duration

	mu sync.Mutex
	// renewed is when the last renewal that succeeded was sent, zero in a replica
	// that has never led.
	renewed time.Time
}

// Fenced sets up the connections of a manager whose replicas elect a leader: api is
// what it reads and writes by, and options get another one for the lease. The
// result replaces api.
func Fenced(api *rest.Config, options *ctrl.Options) *rest.Config {
	f := &fence{now: time.Now, lasts: cmp.Or(ptr.Deref(options.RenewDeadline, 0), renewDeadline)}
	options.LeaderElectionConfig = rest.CopyConfig(api)
	options.LeaderElectionConfig.Wrap(f.lease)
	api = rest.CopyConfig(api)
	api.Wrap(f.guard)
	return api
}

// roundTrip is a function that is an [http.RoundTripper].
type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// lease notes the renewals that pass through a connection. Who was late sends none
// any more, and gives up: what an elector sends then is that it leaves the lease,
// which may be another's by now.
func (f *fence) lease(next http.RoundTripper) http.RoundTripper {
	guarded := f.guard(next)
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		sent := f.now()
		answer, err := guarded.RoundTrip(r)
		if err == nil && changes(r) && strings.Contains(r.URL.Path, "/leases") && answer.StatusCode < http.StatusMultipleChoices {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.renewed = sent
		}
		return answer, err
	})
}

// guard lets a connection change nothing when the lease may be another's.
func (f *fence) guard(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		if changes(r) {
			if age, stale := f.stale(); stale {
				if r.Body != nil {
					_ = r.Body.Close()
				}
				return nil, fmt.Errorf("%w (renewed %s ago)", errFenced, age.Round(time.Millisecond))
			}
		}
		return next.RoundTrip(r)
	})
}

// stale says whether another may lead. Both clocks are asked: one does not go on
// while the machine sleeps, the other may be set back.
func (f *fence) stale() (age time.Duration, stale bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.renewed.IsZero() {
		return 0, false
	}
	now := f.now()
	age = max(now.Sub(f.renewed), now.Round(0).Sub(f.renewed.Round(0)))
	return age, age > f.lasts
}

// changes says whether a request is to change something.
func changes(r *http.Request) bool { return r.Method != http.MethodGet && r.Method != http.MethodHead }
