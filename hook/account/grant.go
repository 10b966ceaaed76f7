package account

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Grant is what the node tells a share now.
type Grant struct {
	// ContextOverhead is charged for each CUDA context when it is made: what
	// the driver takes of the card for it and no program asks for. Bytes.
	ContextOverhead uint64
	// CoreRate is the SM time granted now, in millionths of the card.
	CoreRate uint32
	// BusyFactor corrects the busy time that the share claims to the busy time
	// that NVML saw, in millionths. 1e6 means that the claim is right.
	BusyFactor uint32
	// Gated says that launches are held to CoreRate. Where nothing of a card is
	// guaranteed to anybody there is nothing to hold them to.
	Gated bool
	// Fallback is the rate while the heartbeat is old, in millionths of the
	// card: what is guaranteed.
	Fallback uint32
	// Heartbeat is when the node wrote this, on CLOCK_MONOTONIC (no wall
	// clock). UpdateGrant fills it in. A share whose heartbeat is old keeps
	// only its guaranteed core time.
	Heartbeat time.Duration
}

func (g Grant) encode(sequence uint32) []byte {
	b := make([]byte, grantSize)
	putHead(b, grantMagic, grantSize)
	le.PutUint64(b[grantOffHeartbeat:], uint64(g.Heartbeat))
	le.PutUint64(b[grantOffOverhead:], g.ContextOverhead)
	le.PutUint32(b[grantOffCoreRate:], g.CoreRate)
	le.PutUint32(b[grantOffBusyFactor:], g.BusyFactor)
	if g.Gated {
		le.PutUint32(b[grantOffGated:], 1)
	}
	le.PutUint32(b[grantOffFallback:], g.Fallback)
	le.PutUint64(b[grantOffChecksum:], checksum(b[:grantOffChecksum]))
	le.PutUint32(b[grantOffSequence:], sequence)
	return b
}

// decodeGrant reads a grant file and its sequence number. An odd one means
// that the node was writing.
func decodeGrant(b []byte) (Grant, uint32, error) {
	if err := checkHead("grant", b, grantMagic, grantSize); err != nil {
		return Grant{}, 0, err
	}
	sequence := le.Uint32(b[grantOffSequence:])
	still := append([]byte(nil), b[:grantOffChecksum]...)
	le.PutUint32(still[grantOffSequence:], 0)
	if got, want := le.Uint64(b[grantOffChecksum:]), checksum(still); got != want {
		return Grant{}, sequence, fmt.Errorf("grant file is damaged: checksum %016x, its bytes make %016x", got, want)
	}
	return Grant{
		ContextOverhead: le.Uint64(b[grantOffOverhead:]),
		CoreRate:        le.Uint32(b[grantOffCoreRate:]),
		BusyFactor:      le.Uint32(b[grantOffBusyFactor:]),
		Gated:           le.Uint32(b[grantOffGated:]) != 0,
		Fallback:        le.Uint32(b[grantOffFallback:]),
		Heartbeat:       time.Duration(le.Uint64(b[grantOffHeartbeat:])),
	}, sequence, nil
}

// UpdateGrant rewrites the grant of the share in dir, in place and with the next
// sequence number, with the heartbeat of now. One writer at a time: two would
// give the same number. A grant that a writer left half done, with an odd
// number, is no obstacle: readers keep their last good one until this.
func UpdateGrant(dir string, g Grant) error {
	name := filepath.Join(dir, GrantFile)
	f, err := openFile(name, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("grant of share %s: %w", dir, err)
	}
	defer f.Close()
	if err := writeGrant(f, g); err != nil {
		return fmt.Errorf("grant of share %s: %w", dir, err)
	}
	return nil
}

func writeGrant(f *os.File, g Grant) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the monotonic clock: %w", err)
	}
	g.Heartbeat = time.Duration(now.Nano())

	var seq [4]byte
	if _, err := f.ReadAt(seq[:], grantOffSequence); err != nil {
		return fmt.Errorf("read its sequence number: %w", err)
	}
	// One write, with the next even number. Readers see by the checksum when
	// they caught the kernel copying it. A number that is odd for as long as two
	// more writes take would be simpler to read, but this process may lose its
	// CPU in between, and programs that start then would be refused.
	_, err := f.WriteAt(g.encode((le.Uint32(seq[:])|1)+1), 0)
	return err
}

// ReadGrant returns the grant of the share in dir as it was last written.
func ReadGrant(dir string) (Grant, error) {
	const tries = 100 // a write takes microseconds
	var sequence uint32
	for range tries {
		b, err := readFile(filepath.Join(dir, GrantFile), grantSize)
		if err != nil {
			return Grant{}, fmt.Errorf("grant of share %s: %w", dir, err)
		}
		g, seq, err := decodeGrant(b)
		if seq%2 == 0 {
			if err != nil {
				return Grant{}, fmt.Errorf("grant of share %s: %w", dir, err)
			}
			return g, nil
		}
		sequence = seq
		time.Sleep(50 * time.Microsecond)
	}
	return Grant{}, fmt.Errorf("grant of share %s: still being written after %d reads (sequence %d): its writer died; update it again", dir, tries, sequence)
}
