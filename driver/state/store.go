package state

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Store is the checkpoint on disk. Calls of any number of goroutines and
// processes take turns.
type Store struct {
	// Dir is an existing folder that only this driver uses.
	Dir string
	// BootIDFile holds the kernel's boot id.
	BootIDFile string
	// Rebuild makes a checkpoint for the given boot from whatever else is
	// known when the file cannot be used or is not there. Nil: an empty one.
	Rebuild func(bootID string) *Checkpoint
	// Report is told what was found at loading: a file set aside, claims of
	// an earlier boot dropped. Nil: nobody is.
	Report func(Finding)

	// turn is taken before the file's lock, which keeps processes apart: what one
	// goroutine leaves in memory the next one must see.
	turn     sync.Mutex
	updating view // belongs to who has the turn

	mu      sync.Mutex
	looking view
}

// view is what was seen in the file. While it is the same file, only what was
// added to it has to be read.
type view struct {
	c    *Checkpoint // nil: nothing
	head head
	live int // bytes of a file with nothing but what counts, about
}

// Finding is something an operator should know about the checkpoint.
type Finding struct {
	// Err is set when the file could not be used.
	Err error
	// Aside is where such a file was moved; empty if there was none.
	Aside string
	// Rebooted is set when the file was written before the last boot.
	Rebooted bool
	// Claims is the number of claims rebuilt or dropped.
	Claims int
}

const (
	fileName = "checkpoint.log"
	// oldName is a record with all claims. Where there is one, an earlier
	// version of this program has written it after the log: this one never
	// leaves it beside a log.
	oldName  = "checkpoint.json"
	lockName = "checkpoint.lock"
)

// compactFrom is the size from which a log is made anew when most of it is
// of the past.
const compactFrom = 64 << 10

// Path is the checkpoint's file name.
func (s *Store) Path() string { return filepath.Join(s.Dir, fileName) }

func (s *Store) oldPath() string { return filepath.Join(s.Dir, oldName) }

// BootID reads the current boot id.
func (s *Store) BootID() (string, error) {
	b, err := os.ReadFile(s.BootIDFile)
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if id == "" {
		return "", fmt.Errorf("boot id: %s is empty", s.BootIDFile)
	}
	return id, nil
}

// Look returns a copy of the checkpoint as it was saved last, without waiting
// for an update under way. It repairs nothing: a file that cannot be used is an
// error, until the next Update.
func (s *Store) Look() (*Checkpoint, error) {
	boot, err := s.BootID()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for try := 0; ; try++ {
		// The head may be read while it is written.
		if err = s.look(); !errors.Is(err, ErrCorrupt) || try == 3 {
			break
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return New(boot), nil
	case err != nil:
		return nil, err
	case s.looking.c.BootID != boot:
		return New(boot), nil
	}
	return s.looking.c.clone(), nil
}

// look brings the view that Look gives copies of up to date.
func (s *Store) look() error {
	b, err := os.ReadFile(s.oldPath())
	if errors.Is(err, fs.ErrNotExist) {
		return s.looking.refresh(s.Path())
	}
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	c, err := Decode(b)
	s.looking = view{c: c}
	return err
}

// refresh reads what is new in the file. After an error the view is empty.
func (v *view) refresh(name string) (err error) {
	defer func() {
		if err != nil {
			*v = view{}
		}
	}()
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	defer f.Close()
	b := make([]byte, headSize)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("checkpoint: %w", err)
	}
	h, err := decodeHead(b[:n])
	if err != nil {
		return err
	}
	if v.c == nil || h.id != v.head.id || h.bytes < v.head.bytes {
		*v = view{c: New(""), head: head{id: h.id}}
	}
	if h.bytes == v.head.bytes {
		return nil
	}
	if info, err := f.Stat(); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	} else if info.Size() < headSize+h.bytes {
		return fmt.Errorf("%w: it has %d bytes and should have %d", ErrCorrupt, info.Size(), headSize+h.bytes)
	}
	lines := make([]byte, h.bytes-v.head.bytes)
	if _, err := f.ReadAt(lines, headSize+v.head.bytes); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if err := v.c.applyLines(lines); err != nil {
		return err
	}
	if v.head.bytes == 0 {
		v.live = len(lines)
	}
	v.head = h
	return nil
}

// Update gives fn the checkpoint and saves what fn made of it, unless fn
// fails. Nobody else has the checkpoint meanwhile, so that fn may also create
// and remove the files that belong to claims; it must not keep the checkpoint.
//
// A process that dies inside fn leaves the old checkpoint. The order for fn is
// therefore: to add a claim, make its files first; to drop one, remove its
// files first. Files without a claim are garbage that the next start sweeps.
func (s *Store) Update(fn func(*Checkpoint) error) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	c, anew, err := s.load()
	if err != nil {
		return err
	}
	if err := fn(c); err != nil {
		c.undo()
		return err
	}
	if err := s.save(c, anew); err != nil {
		s.updating = view{} // what is in the file now is not known
		return err
	}
	clear(c.before)
	return nil
}

func (s *Store) lock() (unlock func(), err error) {
	s.turn.Lock()
	defer func() {
		if err != nil {
			s.turn.Unlock()
		}
	}()
	f, err := os.OpenFile(filepath.Join(s.Dir, lockName), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("checkpoint lock: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("checkpoint lock: %w", err)
	}
	return func() {
		_ = f.Close() // unlocks
		s.turn.Unlock()
	}, nil
}

// load returns the checkpoint of this boot. It is anew if the file does not say
// the same: then it has to be written from the beginning.
func (s *Store) load() (c *Checkpoint, anew bool, err error) {
	boot, err := s.BootID()
	if err != nil {
		return nil, false, err
	}
	path := s.Path()
	if _, err = os.Lstat(s.oldPath()); err == nil {
		path, anew = s.oldPath(), true
		var b []byte
		if b, err = os.ReadFile(path); err == nil {
			c, err = Decode(b)
		}
	} else {
		err = s.updating.refresh(path)
		c = s.updating.c
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// The first start, or the first after a process died that had set the
		// file aside and saved no other.
		c := s.rebuilt(boot)
		if c.Len() > 0 {
			s.report(Finding{Err: err, Claims: c.Len()})
		}
		return c, true, nil
	case errors.Is(err, ErrCorrupt):
		c, err := s.setAside(path, boot, err)
		return c, true, err
	case err != nil:
		return nil, false, err
	}
	if c.BootID != boot {
		s.report(Finding{Rebooted: true, Claims: c.Len()})
		return New(boot), true, nil
	}
	return c, anew, nil
}

// setAside keeps the unusable file for an inspection and goes on with what
// can be rebuilt. Refusing to start would not repair it.
func (s *Store) setAside(path, boot string, cause error) (*Checkpoint, error) {
	aside := path + ".unusable-" + time.Now().UTC().Format("20060102T150405.000000000")
	if err := os.Rename(path, aside); err != nil {
		return nil, fmt.Errorf("%w; setting it aside: %w", cause, err)
	}
	c := s.rebuilt(boot)
	s.report(Finding{Err: cause, Aside: aside, Claims: c.Len()})
	return c, nil
}

func (s *Store) rebuilt(boot string) *Checkpoint {
	if s.Rebuild == nil {
		return New(boot)
	}
	return s.Rebuild(boot)
}

// save writes what changed, or everything if that is due. It does not force the
// bytes to the disk: a crash of this process loses nothing of the page cache, and
// a crash of the machine changes the boot id, which voids the content anyway.
func (s *Store) save(c *Checkpoint, anew bool) error {
	if anew {
		return s.saveAll(c)
	}
	lines, err := encodeChanges(c)
	if err != nil || len(lines) == 0 {
		return err
	}
	if next := s.updating.head.bytes + int64(len(lines)); next > compactFrom && next > 4*int64(s.updating.live) {
		return s.saveAll(c)
	}
	f, err := os.OpenFile(s.Path(), os.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	h := s.updating.head
	_, err = f.WriteAt(lines, headSize+h.bytes)
	if err == nil {
		h.bytes += int64(len(lines))
		_, err = f.WriteAt(h.encode(), 0) // from here it counts
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	s.updating.head = h
	return nil
}

// saveAll begins a new log.
func (s *Store) saveAll(c *Checkpoint) error {
	lines, err := encodeAll(c)
	if err != nil {
		return err
	}
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return err
	}
	h := head{id: hex.EncodeToString(id[:]), bytes: int64(len(lines))}
	if err := WriteFile(s.Path(), append(h.encode(), lines...), 0o600); err != nil {
		return err
	}
	if err := os.Remove(s.oldPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.updating = view{c: c, head: h, live: len(lines)}
	return nil
}

func (s *Store) report(f Finding) {
	if s.Report != nil {
		s.Report(f)
	}
}

// Temporary is the pattern of the names under which WriteFile begins a file. A
// process that is killed leaves one.
func Temporary(name string) string {
	return filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+".*")
}

// WriteFile makes or replaces a file so that a reader sees the old content or
// the new one, never a part.
func WriteFile(name string, b []byte, perm os.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Split(Temporary(name)))
	if err != nil {
		return err
	}
	_, err = tmp.Write(b)
	if perm != 0o600 { // which is that of temporary files
		err = errors.Join(err, tmp.Chmod(perm))
	}
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return err
	}
	return nil
}
