package account

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is what the processes of a share say that they use. Every number is
// bounded, none is to be believed against NVML.
type Usage struct {
	Limit Limit
	// Memory held by live processes, in bytes, at most MaxMemory. It can be
	// above the limit: what a context takes is charged even when nothing is
	// left.
	Memory uint64
	// Dead is memory that dead processes held and that nobody has collected
	// yet. The next process that needs it does. Bytes.
	Dead uint64
	// Peak is the most that was ever held at once, in bytes.
	Peak uint64
	// Refused counts allocations that the limit refused.
	Refused uint64
	// Processes are the live ones, in slot order.
	Processes []Process
}

// Process is one live process of a share.
type Process struct {
	Slot int
	// PID as the process sees itself, in its own PID namespace.
	PID uint32
	// Memory it holds, in bytes, its contexts included.
	Memory uint64
	// Contexts that are alive in it.
	Contexts uint32
	// ContextOverhead is what each of them was charged at least, in bytes: the
	// highest grant that the process has followed. Less than the grant says
	// that it has made no CUDA call since the grant was raised.
	ContextOverhead uint64
	// Busy is the GPU time that it claims to have used.
	Busy time.Duration
}

// Read returns what the share in dir uses. A process is live while it holds
// the lock of its slot, which the kernel drops when the process ends in any
// way, so what the dead held is told apart at once.
func Read(dir string) (Usage, error) {
	limit, err := ReadLimit(dir)
	if err != nil {
		return Usage{}, err
	}
	f, err := openFile(filepath.Join(dir, AccountFile), os.O_RDONLY, 0)
	if err != nil {
		return Usage{}, fmt.Errorf("account of share %s: %w", dir, err)
	}
	defer f.Close()
	live, err := lockedBytes(f)
	if err != nil {
		return Usage{}, fmt.Errorf("account of share %s: find live processes: %w", dir, err)
	}
	b := make([]byte, accountSize+1)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return Usage{}, fmt.Errorf("account of share %s: %w", dir, err)
	}
	u, err := decodeAccount(b[:n], live)
	if err != nil {
		return Usage{}, fmt.Errorf("account of share %s: %w", dir, err)
	}
	u.Limit = limit
	return u, nil
}

// decodeAccount reads the bytes of an account. Anything can be in them.
func decodeAccount(b []byte, live *[Slots]bool) (Usage, error) {
	if err := checkHead("account", b, accountMagic, accountSize); err != nil {
		return Usage{}, err
	}
	var u Usage
	var memory, dead uint64
	for i := range Slots {
		s := b[accountOffSlot+i*slotSize:][:slotSize]
		valid := le.Uint64(s[slotOffApplied:]) & 1
		units := min(le.Uint64(s[slotOffRecord+8*valid:]), maxUnits)
		if !live[i] {
			dead = min(dead+units, maxUnits)
			continue
		}
		memory = min(memory+units, maxUnits)
		u.Processes = append(u.Processes, Process{
			Slot:            i,
			PID:             le.Uint32(s[slotOffPID:]),
			Memory:          units << unitShift,
			Contexts:        le.Uint32(s[slotOffContexts:]),
			ContextOverhead: min(le.Uint64(s[slotOffOverhead:]), maxUnits) << unitShift,
			Busy:            time.Duration(min(le.Uint64(s[slotOffBusy:]), 1<<63-1)),
		})
	}
	u.Memory = memory << unitShift
	u.Dead = dead << unitShift
	u.Peak = min(le.Uint64(b[accountOffPeak:]), maxUnits) << unitShift
	u.Refused = le.Uint64(b[accountOffRefused:])
	return u, nil
}

// lockedBytes tells which of the first Slots bytes of the file are locked by
// anybody.
func lockedBytes(f *os.File) (*[Slots]bool, error) {
	var locked [Slots]bool
	return &locked, markLocked(f, 0, Slots, &locked)
}

// markLocked marks the locked bytes of [from, to). The kernel names some lock
// in a range, not the lowest, so what lies on both sides of it is asked for in
// turn: two system calls for each live process, and one more.
func markLocked(f *os.File, from, to int64, locked *[Slots]bool) error {
	if from >= to {
		return nil
	}
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: from, Len: to - from}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return err
	}
	if l.Type == unix.F_UNLCK {
		return nil
	}
	first, end := max(l.Start, from), min(l.Start+l.Len, to)
	if l.Len == 0 { // a lock to the end of the file, wherever that is
		end = to
	}
	if end <= first {
		return fmt.Errorf("the kernel names lock [%d, +%d) in range [%d, %d)", l.Start, l.Len, from, to)
	}
	for i := first; i < end; i++ {
		locked[i] = true
	}
	return errors.Join(markLocked(f, from, first, locked), markLocked(f, end, to, locked))
}
