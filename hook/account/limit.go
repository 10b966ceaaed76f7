package account

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// UUID is the identity of a card or of a MIG instance, as the driver and NVML
// give it.
type UUID [16]byte

// ParseUUID reads a UUID as NVML prints it: GPU-xxxxxxxx-xxxx-xxxx-xxxx-
// xxxxxxxxxxxx, with MIG- or nothing in front as well.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	digits := strings.TrimPrefix(strings.TrimPrefix(s, "GPU-"), "MIG-")
	parts := strings.Split(digits, "-")
	if len(parts) != 5 || len(parts[0]) != 8 || len(parts[1]) != 4 || len(parts[2]) != 4 ||
		len(parts[3]) != 4 || len(parts[4]) != 12 {
		return u, fmt.Errorf("card UUID %q: want GPU- or MIG- and 8-4-4-4-12 hexadecimal digits", s)
	}
	if _, err := hex.Decode(u[:], []byte(strings.Join(parts, ""))); err != nil {
		return UUID{}, fmt.Errorf("card UUID %q: %w", s, err)
	}
	return u, nil
}

// String writes the UUID without a prefix.
func (u UUID) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// CorePolicy says what becomes of SM time beyond the guaranteed share.
type CorePolicy uint32

const (
	// CoresNone guarantees nothing: the share has the time that others leave,
	// which is all of it where nobody is guaranteed any.
	CoresNone CorePolicy = 0
	// CoresBurst guarantees CorePercent and lets the share use idle time.
	CoresBurst CorePolicy = 1
	// CoresHard never lets the share use more than CorePercent.
	CoresHard CorePolicy = 2
)

// Limit is what one share may use. It does not change while the share exists.
type Limit struct {
	Card UUID
	// Memory in bytes, 1..MaxMemory. Rounded down to Unit. Zero, and not
	// read, when the share is whole.
	Memory uint64
	// CorePercent is the guaranteed share of the card's SM time, 0..100.
	CorePercent uint32
	CorePolicy  CorePolicy
	// Whole marks a share that has the card (or the MIG instance) to itself:
	// its memory is not limited by software. Such shares have files too, so
	// that in a container with several cards the limiter can tell a whole
	// card from a card whose limit is missing.
	Whole bool
}

// validate reports what the files cannot carry.
func (l Limit) validate() error {
	switch {
	case l.Card == UUID{}:
		return fmt.Errorf("limit names no card")
	case l.Whole && l.Memory != 0:
		return fmt.Errorf("limit of %d bytes on a whole card: a whole card has no memory limit", l.Memory)
	case !l.Whole && (l.Memory < Unit || l.Memory > MaxMemory):
		return fmt.Errorf("memory limit of %d bytes: want %d to %d", l.Memory, Unit, uint64(MaxMemory))
	case l.CorePercent > 100:
		return fmt.Errorf("core limit of %d percent: want 0 to 100", l.CorePercent)
	case l.CorePolicy > CoresHard:
		return fmt.Errorf("core policy %d: want none, burst or hard", l.CorePolicy)
	}
	return nil
}

func (l Limit) encode() []byte {
	b := make([]byte, limitSize)
	putHead(b, limitMagic, limitSize)
	copy(b[limitOffCard:], l.Card[:])
	le.PutUint64(b[limitOffMemory:], l.Memory&^(Unit-1))
	le.PutUint32(b[limitOffCorePercent:], l.CorePercent)
	le.PutUint32(b[limitOffCorePolicy:], uint32(l.CorePolicy))
	if l.Whole {
		le.PutUint32(b[limitOffFlags:], limitWhole)
	}
	le.PutUint64(b[limitOffChecksum:], checksum(b[:limitOffChecksum]))
	return b
}

// decodeLimit reads a limit file. It accepts exactly what encode writes.
func decodeLimit(b []byte) (Limit, error) {
	if err := checkHead("limit", b, limitMagic, limitSize); err != nil {
		return Limit{}, err
	}
	if got, want := le.Uint64(b[limitOffChecksum:]), checksum(b[:limitOffChecksum]); got != want {
		return Limit{}, fmt.Errorf("limit file is damaged: checksum %016x, its bytes make %016x", got, want)
	}
	flags := le.Uint32(b[limitOffFlags:])
	if flags&^limitWhole != 0 {
		return Limit{}, fmt.Errorf("limit file has unknown flags %#x", flags)
	}
	l := Limit{
		Card:        UUID(b[limitOffCard : limitOffCard+16]),
		Memory:      le.Uint64(b[limitOffMemory:]),
		CorePercent: le.Uint32(b[limitOffCorePercent:]),
		CorePolicy:  CorePolicy(le.Uint32(b[limitOffCorePolicy:])),
		Whole:       flags&limitWhole != 0,
	}
	return l, l.validate()
}

// checkHead verifies what every file begins with.
func checkHead(name string, b []byte, magic uint64, size int) error {
	switch {
	case len(b) != size:
		return fmt.Errorf("%s file has %d bytes, want %d", name, len(b), size)
	case le.Uint64(b[offMagic:]) != magic:
		return fmt.Errorf("%s file begins with %016x, want %016x", name, le.Uint64(b[offMagic:]), magic)
	case le.Uint32(b[offVersion:]) != Version:
		return fmt.Errorf("%s file has version %d, want %d", name, le.Uint32(b[offVersion:]), Version)
	case le.Uint32(b[offSize:]) != uint32(size):
		return fmt.Errorf("%s file says it has %d bytes, want %d", name, le.Uint32(b[offSize:]), size)
	}
	return nil
}
