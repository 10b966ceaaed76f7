// Package state remembers which claims are prepared on this node.
//
// The memory is one file, the checkpoint. It decides two questions: does a
// claim have to be prepared again, and how much of a card is held by shares
// that were not unprepared yet. It never talks to the API server or the
// kubelet, and what it keeps in memory between two calls is only what it saw in
// the file: during a rolling update two driver processes take turns with it.
//
// The file is a log. A change costs what it changes, however many claims are
// prepared: one line appended, and the file made anew now and then. Checkpoint,
// the log's format (log.go) and the record of a claim (record.go) are pure;
// Store puts them on disk under a lock.
package state

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Checkpoint is all that is prepared. It is changed by Put and Remove alone,
// which keep its sums.
type Checkpoint struct {
	// BootID is the kernel's boot id when the file was written. After a
	// reboot no container runs and the CDI directory is empty, so nothing in
	// an older file is true.
	BootID string

	claims map[types.UID]Claim
	held   map[string]*holding           // by device
	by     map[string]map[types.UID]bool // claims by what holds their shares
	// before are the claims that were changed since the last save, as they
	// were then; nil for one that was not there.
	before map[types.UID]*Claim
}

// holding is what is held of a device.
type holding struct {
	memoryMi, cores int64
	claims          map[types.UID]bool
}

// Claim is one prepared ResourceClaim.
type Claim struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	// Shares are in the order of the claim's allocation results.
	Shares []Share `json:"shares"`
}

// Share is one allocated device of a claim.
type Share struct {
	// Request is the name of the request or request/subrequest.
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	// ShareID tells shares of one device apart; empty for exclusive devices.
	ShareID types.UID `json:"shareID,omitempty"`
	// Cards are the UUIDs of the cards the share opens: one, which may be a
	// MIG device, or all of the node for the monitor device.
	Cards []string `json:"cards"`
	// Admin shares hold nothing of the card.
	Admin bool `json:"admin,omitempty"`
	// MemoryMi and Cores are what the share holds.
	MemoryMi int64 `json:"memoryMi,omitempty"`
	Cores    int64 `json:"cores,omitempty"`
	// Whole tells that the share has the card for itself.
	Whole bool `json:"whole,omitempty"`
	// Limited tells that the share was given limit files.
	Limited bool `json:"limited,omitempty"`
	// CorePolicy says what becomes of the card's time beyond Cores: "burst",
	// which an empty one means as well, or "hard".
	CorePolicy string `json:"corePolicy,omitempty"`
	// Enforcement is what holds the share to its size: "limiter", "mps",
	// "mig" or "none". Empty in what an older program wrote: the limiter if
	// Limited says so, else none.
	Enforcement string `json:"enforcement,omitempty"`
	// Env is set in containers, as NAME=value.
	Env []string `json:"env,omitempty"`
	// MIG is set for a share that is a MIG device which was made for it.
	MIG *MIG `json:"mig,omitempty"`
}

// MIG is an instance that was made for a share.
type MIG struct {
	// Claim is the UID of the claim that the share is of.
	Claim types.UID `json:"claim"`
	// Card is the UUID of the card.
	Card string `json:"card"`
	// Profile is the card's number of the profile; Start and Size are the
	// memory slices that the instance has.
	Profile int `json:"profile"`
	Start   int `json:"start"`
	Size    int `json:"size"`
}

// New returns a checkpoint without claims.
func New(bootID string) *Checkpoint {
	return &Checkpoint{BootID: bootID, claims: map[types.UID]Claim{}, held: map[string]*holding{}, by: map[string]map[types.UID]bool{}, before: map[types.UID]*Claim{}}
}

// Len is the number of claims.
func (c *Checkpoint) Len() int { return len(c.claims) }

// Get returns the claim with the UID. Its shares are not to be changed in
// place.
func (c *Checkpoint) Get(uid types.UID) (Claim, bool) {
	claim, ok := c.claims[uid]
	return claim, ok
}

// Order lists the claims by UID.
func (c *Checkpoint) Order() []types.UID { return slices.Sorted(maps.Keys(c.claims)) }

// Claims are all claims in that order.
func (c *Checkpoint) Claims() []Claim {
	out := make([]Claim, 0, len(c.claims))
	for _, uid := range c.Order() {
		out = append(out, c.claims[uid])
	}
	return out
}

// Put adds a claim or puts it in the place of the one with its UID.
func (c *Checkpoint) Put(claim Claim) {
	c.note(claim.UID)
	c.set(claim)
}

// Remove takes a claim out; one that is not there is no error.
func (c *Checkpoint) Remove(uid types.UID) {
	if _, ok := c.claims[uid]; ok {
		c.note(uid)
		c.unset(uid)
	}
}

func (c *Checkpoint) note(uid types.UID) {
	if _, noted := c.before[uid]; noted {
		return
	}
	c.before[uid] = nil
	if old, ok := c.claims[uid]; ok {
		c.before[uid] = &old
	}
}

func (c *Checkpoint) set(claim Claim) {
	c.unset(claim.UID)
	c.claims[claim.UID] = claim
	for _, s := range claim.Shares {
		if c.by[s.Enforcement] == nil {
			c.by[s.Enforcement] = map[types.UID]bool{}
		}
		c.by[s.Enforcement][claim.UID] = true
		if s.Admin {
			continue
		}
		h := c.held[s.Device]
		if h == nil {
			h = &holding{claims: map[types.UID]bool{}}
			c.held[s.Device] = h
		}
		h.memoryMi += s.MemoryMi
		h.cores += s.Cores
		h.claims[claim.UID] = true
	}
}

func (c *Checkpoint) unset(uid types.UID) {
	for _, s := range c.claims[uid].Shares {
		delete(c.by[s.Enforcement], uid)
		h := c.held[s.Device]
		if s.Admin || h == nil {
			continue
		}
		h.memoryMi -= s.MemoryMi
		h.cores -= s.Cores
		delete(h.claims, uid)
		if len(h.claims) == 0 {
			delete(c.held, s.Device)
		}
	}
	delete(c.claims, uid)
}

// undo takes back what was changed since the last save.
func (c *Checkpoint) undo() {
	for uid, old := range c.before {
		c.unset(uid)
		if old != nil {
			c.set(*old)
		}
	}
	clear(c.before)
}

// clone is a copy that nobody else changes.
func (c *Checkpoint) clone() *Checkpoint {
	out := New(c.BootID)
	for _, claim := range c.claims {
		out.set(claim)
	}
	return out
}

// HeldBy are the claims with a share whose Enforcement is that, in order.
func (c *Checkpoint) HeldBy(enforcement string) []Claim { return c.pick(c.by[enforcement]) }

// On are the claims that hold something of a device, in order.
func (c *Checkpoint) On(device string) []Claim {
	h := c.held[device]
	if h == nil {
		return nil
	}
	return c.pick(h.claims)
}

func (c *Checkpoint) pick(uids map[types.UID]bool) []Claim {
	var out []Claim
	for _, uid := range slices.Sorted(maps.Keys(uids)) {
		out = append(out, c.claims[uid])
	}
	return out
}

// Devices lists the devices of which something is held.
func (c *Checkpoint) Devices() []string { return slices.Sorted(maps.Keys(c.held)) }

// Held sums what all claims but one hold of a device.
func (c *Checkpoint) Held(device string, except types.UID) (memoryMi, cores int64) {
	h := c.held[device]
	if h == nil {
		return 0, 0
	}
	memoryMi, cores = h.memoryMi, h.cores
	if !h.claims[except] {
		return memoryMi, cores
	}
	for _, s := range c.claims[except].Shares {
		if s.Device == device && !s.Admin {
			memoryMi -= s.MemoryMi
			cores -= s.Cores
		}
	}
	return memoryMi, cores
}

// Holders names the claims that hold something of a device, sorted.
func (c *Checkpoint) Holders(device string, except types.UID) []string {
	h := c.held[device]
	if h == nil {
		return nil
	}
	var out []string
	for uid := range h.claims {
		if uid != except {
			out = append(out, c.claims[uid].Namespace+"/"+c.claims[uid].Name)
		}
	}
	slices.Sort(out)
	return out
}
