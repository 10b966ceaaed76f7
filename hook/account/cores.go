package account

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// CoreTime is what the processes of a share, also those that ended, say of the
// SM time that they used. All of it only grows while the tenant plays fair; a
// reader looks at how much it grew and trusts NVML more.
type CoreTime struct {
	// Busy is the time for which work of the share was observed on the card,
	// turns of others between it included.
	Busy time.Duration
	// Charged is Busy after the grant's busy factor: what was used.
	Charged time.Duration
	// Throttled is how long launches waited because nothing was left of what
	// the grant allows.
	Throttled time.Duration
	// Asked grows with launches, and with every look of one that waits: a share
	// in which it stands still wants nothing.
	Asked uint64
}

// ReadCoreTime returns the core time of the share in dir. It reads one page,
// so that it can be asked many times a second.
func ReadCoreTime(dir string) (CoreTime, error) {
	f, err := openFile(filepath.Join(dir, AccountFile), os.O_RDONLY, 0)
	if err != nil {
		return CoreTime{}, fmt.Errorf("account of share %s: %w", dir, err)
	}
	defer f.Close()
	b := make([]byte, accountOffSlot)
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, accountOffSlot), b); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("it was cut short")
		}
		return CoreTime{}, fmt.Errorf("account of share %s: %w", dir, err)
	}
	c, err := decodeCoreTime(b)
	if err != nil {
		return CoreTime{}, fmt.Errorf("account of share %s: %w", dir, err)
	}
	return c, nil
}

// decodeCoreTime reads the first page of an account. Anything can be in it.
func decodeCoreTime(b []byte) (CoreTime, error) {
	if le.Uint64(b[offMagic:]) != accountMagic || le.Uint32(b[offVersion:]) != Version {
		return CoreTime{}, fmt.Errorf("it is no account of version %d", Version)
	}
	at := func(off int) time.Duration { return time.Duration(min(le.Uint64(b[off:]), 1<<63-1)) }
	return CoreTime{
		Busy: at(accountOffBusy), Charged: at(accountOffCharged), Throttled: at(accountOffWaited),
		Asked: le.Uint64(b[accountOffAsked:]),
	}, nil
}
