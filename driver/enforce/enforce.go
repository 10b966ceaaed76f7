// Package enforce is what all ways of holding a share to its size have in
// common. It holds nothing itself: each way is a Backend in a package of its
// own, and the kubelet plugin asks the one that the share was given to.
//
// The plugin decides which backend a share gets and when it is called; a
// backend decides what that takes on the host. All calls for preparing come
// one at a time, also those of two driver processes during a rolling update,
// so a backend keeps no truth in memory.
package enforce

import (
	"context"

	"github.com/sluice-gpu/sluice/cdi"
	"github.com/sluice-gpu/sluice/driver/state"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Share is a share that is to be held to its size.
type Share struct {
	state.Share
	// Name is that of its CDI device: unique for ever.
	Name string
	// Dir is its folder on the host, which may not exist yet. The plugin
	// removes it, with all that is in it, when the share is unprepared.
	Dir string
	// ContextOverhead is the memory in bytes that a context on the card will
	// probably take.
	ContextOverhead uint64
}

// Result is what containers of a share get beside the driver's files and the
// card.
type Result struct {
	// Limited has the limit, grant and account in the share's folder mounted.
	Limited bool
	// Libraries stand in for the driver's; nil: those stay.
	Libraries *cdi.Limiter
	// Edits are added to the share's own. May be empty.
	Edits specs.ContainerEdits
}

// Backend is one way of holding shares to their size.
type Backend interface {
	// Prepare makes what the share needs. Calling it again for a share whose
	// containers run changes nothing that they have. An error ends in a
	// refused claim: it says what is missing and what to do. It does not wait,
	// for the whole node would wait with it: what takes time is a NotReady.
	Prepare(ctx context.Context, s Share) (Result, error)
	// There tells whether all that Prepare made is there still. It is asked
	// whenever the kubelet prepares a claim again, and answers fast.
	There(s Share) bool
	// InUse tells whether processes use the share, or may. In doubt they do.
	InUse(s Share) bool
}

// NotReady is the error of a Prepare that has started something which has to
// come up first. The same Prepare succeeds when Wait has returned nil.
type NotReady struct {
	// What was started, as a sentence begins.
	What string
	// Wait returns when it is ready, or tells why it will not be. Nobody else is
	// kept from preparing meanwhile.
	Wait func(context.Context) error
}

func (e *NotReady) Error() string { return e.What + " is starting; trying again" }

// Settler is a Backend that has more on the host than the folders of shares.
type Settler interface {
	// Settle ends what none of the live shares needs. They are all the shares
	// of this backend that are prepared. It is called after shares of the
	// backend were unprepared, at start, and at every comparison with the API
	// server, so that a process that dies half way leaves nothing for good.
	Settle(ctx context.Context, live []Share) error
}

// Trimmer is a Backend whose shares have a file that the tenant can write.
type Trimmer interface {
	// Trim cuts what the tenant added to the file of the share in dir, and
	// returns how many bytes that was.
	Trim(dir string) (int64, error)
}
