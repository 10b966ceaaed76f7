package state

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
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

	mu    sync.Mutex
	known known
}

// known is what this process last saw in the file. While the file is the same,
// reading and writing cost the same however many claims there are: only what
// changes is decoded and encoded.
type known struct {
	c      *Checkpoint // nil: nothing
	saved  []byte
	claims map[types.UID][]byte // the claims' bytes, filled as they are saved
}

// headSize is enough of the file to have its checksum.
const headSize = 128

// is tells whether the file holds what was seen in it: the beginning has the
// checksum of the rest.
func (k *known) is(f *os.File) bool {
	info, err := f.Stat()
	if k.c == nil || err != nil || info.Size() != int64(len(k.saved)) {
		return false
	}
	head := make([]byte, min(headSize, len(k.saved)))
	_, err = f.ReadAt(head, 0)
	return err == nil && bytes.Equal(head, k.saved[:len(head)])
}

// Look returns the checkpoint as it was saved last, without waiting for an
// update under way. What it returns is shared with other callers and must not
// be changed. It repairs nothing: a file that cannot be used is an error, until
// the next Update.
func (s *Store) Look() (*Checkpoint, error) {
	boot, err := s.BootID()
	if err != nil {
		return nil, err
	}
	c, _, err := s.read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return New(boot), nil
	case err != nil:
		return nil, err
	case c.BootID != boot:
		return New(boot), nil
	}
	return c, nil
}

// read returns what is in the file and its bytes, which are nobody's to change.
func (s *Store) read() (*Checkpoint, []byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := os.Open(s.Path())
	if err != nil {
		return nil, nil, fmt.Errorf("checkpoint: %w", err)
	}
	defer f.Close()
	if !s.known.is(f) {
		b, err := io.ReadAll(f)
		if err != nil {
			return nil, nil, fmt.Errorf("checkpoint: %w", err)
		}
		c, err := Decode(b)
		if err != nil {
			return nil, nil, err
		}
		s.known = known{c: c, saved: b}
	}
	return s.known.c, s.known.saved, nil
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
	fileName = "checkpoint.json"
	lockName = "checkpoint.lock"
)

// Path is the checkpoint's file name.
func (s *Store) Path() string { return filepath.Join(s.Dir, fileName) }

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

// Update gives fn the checkpoint and saves what fn made of it, unless fn
// fails. Nobody else has the checkpoint meanwhile, so that fn may also create
// and remove the files that belong to claims. A claim is changed by putting
// another in its place, with a list of shares of its own.
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
	c, saved, err := s.load()
	if err != nil {
		return err
	}
	before := maps.Clone(c.Claims)
	if err := fn(c); err != nil {
		return err
	}
	encoded := s.encoded(before, c)
	b, err := encode(c, encoded)
	if err != nil {
		return err
	}
	if bytes.Equal(b, saved) {
		return nil
	}
	return s.save(c, b, encoded)
}

// encoded are the bytes of the claims of c, made anew for those that are not
// what they were before.
func (s *Store) encoded(before map[types.UID]Claim, c *Checkpoint) map[types.UID][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[types.UID][]byte, len(c.Claims))
	for uid, claim := range c.Claims {
		b := s.known.claims[uid]
		if old, ok := before[uid]; !ok || b == nil || !unchanged(old, claim) {
			var err error
			if b, err = encodeClaim(uid, claim); err != nil {
				continue // encode tells of it
			}
		}
		out[uid] = b
	}
	return out
}

// unchanged tells that nobody put another claim in a claim's place. Whoever
// changes a share makes a new list.
func unchanged(a, b Claim) bool {
	return a.UID == b.UID && a.Namespace == b.Namespace && a.Name == b.Name && len(a.Shares) == len(b.Shares) &&
		(len(a.Shares) == 0 || &a.Shares[0] == &b.Shares[0])
}

func (s *Store) lock() (func(), error) {
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
	return func() { _ = f.Close() }, nil // closing unlocks
}

// load returns the checkpoint of this boot and the bytes on disk.
func (s *Store) load() (*Checkpoint, []byte, error) {
	boot, err := s.BootID()
	if err != nil {
		return nil, nil, err
	}
	c, saved, err := s.read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// The first start, or the first after a process died that had set the
		// file aside and saved no other.
		c := s.rebuilt(boot)
		if len(c.Claims) > 0 {
			s.report(Finding{Err: err, Claims: len(c.Claims)})
		}
		return c, nil, nil
	case errors.Is(err, ErrCorrupt):
		c, err := s.setAside(boot, err)
		return c, nil, err
	case err != nil:
		return nil, nil, err
	}
	if c.BootID != boot {
		s.report(Finding{Rebooted: true, Claims: len(c.Claims)})
		return New(boot), saved, nil
	}
	return &Checkpoint{BootID: c.BootID, Claims: maps.Clone(c.Claims)}, saved, nil
}

// setAside keeps the unusable file for an inspection and goes on with what
// can be rebuilt. Refusing to start would not repair it.
func (s *Store) setAside(boot string, cause error) (*Checkpoint, error) {
	aside := s.Path() + ".unusable-" + time.Now().UTC().Format("20060102T150405.000000000")
	if err := os.Rename(s.Path(), aside); err != nil {
		return nil, fmt.Errorf("%w; setting it aside: %w", cause, err)
	}
	c := s.rebuilt(boot)
	s.report(Finding{Err: cause, Aside: aside, Claims: len(c.Claims)})
	return c, nil
}

func (s *Store) rebuilt(boot string) *Checkpoint {
	if s.Rebuild == nil {
		return New(boot)
	}
	return s.Rebuild(boot)
}

// save replaces the file by rename. It does not force the bytes to the disk:
// a crash of this process loses nothing of the page cache, and a crash of the
// machine changes the boot id, which voids the content anyway.
func (s *Store) save(c *Checkpoint, b []byte, claims map[types.UID][]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = known{}
	if err := WriteFile(s.Path(), b, 0o600); err != nil {
		return err
	}
	// The caller may go on with what it has, so a copy is kept.
	s.known = known{c: &Checkpoint{BootID: c.BootID, Claims: maps.Clone(c.Claims)}, saved: b, claims: claims}
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
	err = errors.Join(err, tmp.Chmod(perm), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return err
	}
	return nil
}
