package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/types"
)

// A record is a checkpoint in one piece. It lies beside the files of each claim,
// with that claim alone, and it is how checkpoints were kept before they became
// logs.

// RecordVersion is the layout of records that this program writes and the
// highest it reads. Adding a field is no new version: fields that a reader does
// not know are ignored.
const RecordVersion = 1

// record is what a record tells.
type record struct {
	BootID string              `json:"bootID"`
	Claims map[types.UID]Claim `json:"claims"`
}

// envelope is the file: the data as written, and what proves it whole.
type envelope struct {
	Version  int             `json:"version"`
	Checksum string          `json:"checksum"`
	Data     json.RawMessage `json:"data"`
}

// ErrCorrupt is matched by errors of all decoders: the bytes are not something
// that this program can trust.
var ErrCorrupt = errors.New("checkpoint cannot be used")

// Encode writes a record. The same checkpoint gives the same bytes.
func Encode(c *Checkpoint) ([]byte, error) {
	data, err := json.Marshal(record{BootID: c.BootID, Claims: c.claims})
	if err != nil {
		return nil, err
	}
	return json.Marshal(envelope{Version: RecordVersion, Checksum: sum(data), Data: data})
}

// Decode reads what Encode wrote, also of later programs with the same
// version. The error matches ErrCorrupt and says what is wrong.
func Decode(b []byte) (*Checkpoint, error) { return decode(b, RecordVersion) }

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
		return nil, wrongVersion(e.Version, highest)
	}
	if got := sum(e.Data); got != e.Checksum {
		return nil, fmt.Errorf("%w: checksum is %s, the data has %s", ErrCorrupt, e.Checksum, got)
	}
	var r record
	if err := json.Unmarshal(e.Data, &r); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrCorrupt, err)
	}
	c := New(r.BootID)
	for uid, claim := range r.Claims {
		if claim.UID != uid {
			return nil, fmt.Errorf("%w: claim %s is filed under %s", ErrCorrupt, claim.UID, uid)
		}
		c.set(claim)
	}
	return c, nil
}

func wrongVersion(version, highest int) error {
	return fmt.Errorf("%w: it has version %d, this program reads up to version %d", ErrCorrupt, version, highest)
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}
