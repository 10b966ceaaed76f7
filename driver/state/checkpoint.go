// Package state remembers which claims are prepared on this node.
//
// The memory is one file, the checkpoint. It decides two questions: does a
// claim have to be prepared again, and how much of a card is held by shares
// that were not unprepared yet. It never talks to the API server or the
// kubelet, and it keeps nothing in memory between two calls: during a rolling
// update two driver processes take turns with the same file.
//
// Encode, Decode and the methods of Checkpoint are pure; Store puts them on
// disk under a lock.
package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Version is the layout that this program writes and the highest it reads.
// Adding a field is no new version: fields that a reader does not know are
// ignored.
const Version = 1

// Checkpoint is all that is prepared.
type Checkpoint struct {
	// BootID is the kernel's boot id when the file was written. After a
	// reboot no container runs and the CDI directory is empty, so nothing in
	// an older file is true.
	BootID string `json:"bootID"`
	// Claims are the prepared claims.
	Claims map[types.UID]Claim `json:"claims"`
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
	// Cards are the UUIDs of the cards the share opens: one, or all of the
	// node for the monitor device.
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
}

// New returns a checkpoint without claims.
func New(bootID string) *Checkpoint {
	return &Checkpoint{BootID: bootID, Claims: map[types.UID]Claim{}}
}

// Order lists the claims by UID.
func (c *Checkpoint) Order() []types.UID { return slices.Sorted(maps.Keys(c.Claims)) }

// Held sums what all claims but one hold of a device.
func (c *Checkpoint) Held(device string, except types.UID) (memoryMi, cores int64) {
	for uid, claim := range c.Claims {
		if uid == except {
			continue
		}
		for _, s := range claim.Shares {
			if s.Device == device && !s.Admin {
				memoryMi += s.MemoryMi
				cores += s.Cores
			}
		}
	}
	return memoryMi, cores
}

// Holders names the claims that hold something of a device, sorted.
func (c *Checkpoint) Holders(device string, except types.UID) []string {
	var out []string
	for uid, claim := range c.Claims {
		if uid == except {
			continue
		}
		if slices.ContainsFunc(claim.Shares, func(s Share) bool { return s.Device == device && !s.Admin }) {
			out = append(out, claim.Namespace+"/"+claim.Name)
		}
	}
	slices.Sort(out)
	return out
}

// envelope is the file: the data as written, and what proves it whole.
type envelope struct {
	Version  int             `json:"version"`
	Checksum string          `json:"checksum"`
	Data     json.RawMessage `json:"data"`
}

// ErrCorrupt is matched by Decode's errors: the bytes are not a checkpoint
// that this program can trust.
var ErrCorrupt = errors.New("checkpoint cannot be used")

// Encode writes a checkpoint. The same checkpoint gives the same bytes.
func Encode(c *Checkpoint) ([]byte, error) { return encode(c, nil) }

// encode is Encode for a caller that knows the bytes of some claims already;
// all others are made as usual.
func encode(c *Checkpoint, known map[types.UID][]byte) ([]byte, error) {
	boot, err := json.Marshal(c.BootID)
	if err != nil {
		return nil, err
	}
	var data bytes.Buffer
	fmt.Fprintf(&data, `{"bootID":%s,"claims":{`, boot)
	for i, uid := range c.Order() {
		b := known[uid]
		if b == nil {
			if b, err = encodeClaim(uid, c.Claims[uid]); err != nil {
				return nil, err
			}
		}
		if i > 0 {
			data.WriteByte(',')
		}
		data.Write(b)
	}
	data.WriteString("}}")
	out := fmt.Appendf(nil, `{"version":%d,"checksum":"%s","data":`, Version, sum(data.Bytes()))
	return append(append(out, data.Bytes()...), '}'), nil
}

// encodeClaim is one member of the object "claims".
func encodeClaim(uid types.UID, c Claim) ([]byte, error) {
	key, err := json.Marshal(uid)
	if err != nil {
		return nil, err
	}
	value, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return append(append(key, ':'), value...), nil
}

// Decode reads what Encode wrote, also of later programs with the same
// version. The error matches ErrCorrupt and says what is wrong.
func Decode(b []byte) (*Checkpoint, error) { return decode(b, Version) }

// Salvage is Decode for a copy that is the last one: of a higher version it
// reads the fields that this program knows. What a later program meant by
// others is lost, which does less harm than to forget what containers use.
func Salvage(b []byte) (*Checkpoint, error) { return decode(b, math.MaxInt) }

func decode(b []byte, highest int) (*Checkpoint, error) {
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, fmt.Errorf("%w: the file is empty", ErrCorrupt)
	}
	var e envelope
	if err := json.Unmarshal(b, &e); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrCorrupt, err)
	}
	if e.Version > highest || e.Version < 1 {
		return nil, fmt.Errorf("%w: it has version %d, this program reads up to version %d", ErrCorrupt, e.Version, highest)
	}
	if got := sum(e.Data); got != e.Checksum {
		return nil, fmt.Errorf("%w: checksum is %s, the data has %s", ErrCorrupt, e.Checksum, got)
	}
	c := &Checkpoint{}
	if err := json.Unmarshal(e.Data, c); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrCorrupt, err)
	}
	if c.Claims == nil {
		c.Claims = map[types.UID]Claim{}
	}
	for uid, claim := range c.Claims {
		if claim.UID != uid {
			return nil, fmt.Errorf("%w: claim %s is filed under %s", ErrCorrupt, claim.UID, uid)
		}
	}
	return c, nil
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}
