// Package limit is the enforcement by Sluice's own limiter: it brings the
// limiter's libraries from the driver's image to the host and makes the files
// that tell it what a share may use. It decides nothing about who gets what.
package limit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sluice-gpu/sluice/cdi"
	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/enforce"
	"github.com/sluice-gpu/sluice/driver/state"
	"github.com/sluice-gpu/sluice/hook/account"
)

// Limiter makes the files of limited shares.
type Limiter struct {
	libraries cdi.Limiter
}

// Sources are the limiter's files in this program's image.
type Sources struct {
	// CUDA stands in for libcuda. Required.
	CUDA string
	// NVML stands in for libnvidia-ml. Empty: none.
	NVML string
	// Guard is preloaded into the programs of limited containers. Empty: none.
	Guard string
	// Hook is run before a limited container starts. Empty: none.
	Hook string
}

// Install copies the libraries below hostDir, a folder that has the same path
// on the host, and returns the limiter that uses them.
func Install(from Sources, hostDir string) (*Limiter, error) {
	l := &Limiter{}
	for _, f := range []struct {
		src string
		dst *string
	}{{from.CUDA, &l.libraries.CUDA}, {from.NVML, &l.libraries.NVML}, {from.Guard, &l.libraries.Guard}, {from.Hook, &l.libraries.Hook}} {
		if f.src == "" {
			continue
		}
		at, err := InstallFile(f.src, hostDir)
		if err != nil {
			return nil, err
		}
		*f.dst = at
	}
	if l.libraries.CUDA == "" {
		return nil, errors.New("the limiter needs a library to stand in for libcuda")
	}
	if l.libraries.Guard != "" {
		preload, err := installBytes([]byte(cdi.Guard+"\n"), "ld.so.preload", hostDir, 0o644)
		if err != nil {
			return nil, err
		}
		l.libraries.Preload = preload
	}
	return l, nil
}

// InstallFile copies a file to <hostDir>/<hash of its content>/<its name> and
// returns that path. Running containers have earlier versions mapped, so a
// version is never written over: another content is another path.
func InstallFile(src, hostDir string) (string, error) {
	b, err := os.ReadFile(src)
	if err != nil {
		return "", err
	}
	return installBytes(b, filepath.Base(src), hostDir, 0o755)
}

func installBytes(b []byte, name, hostDir string, mode os.FileMode) (string, error) {
	h := sha256.Sum256(b)
	dir := filepath.Join(hostDir, hex.EncodeToString(h[:8]))
	at := filepath.Join(dir, name)
	if have, err := os.ReadFile(at); err == nil && sha256.Sum256(have) == h {
		return at, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := state.WriteFile(at, b, mode); err != nil {
		return "", err
	}
	return at, nil
}

// Libraries are the limiter's files on the host.
func (l *Limiter) Libraries() cdi.Limiter { return l.libraries }

// Installed are all files that Install brought to the host.
func (l *Limiter) Installed() []string {
	var out []string
	for _, path := range []string{l.libraries.CUDA, l.libraries.NVML, l.libraries.Guard, l.libraries.Preload, l.libraries.Hook} {
		if path != "" {
			out = append(out, path)
		}
	}
	return out
}

// Prepare implements enforce.Backend.
func (l *Limiter) Prepare(_ context.Context, s enforce.Share) (enforce.Result, error) {
	if err := l.Files(s.Dir, s.Share, s.ContextOverhead); err != nil {
		return enforce.Result{}, err
	}
	libraries := l.libraries
	return enforce.Result{Limited: true, Libraries: &libraries}, nil
}

// There implements enforce.Backend.
func (l *Limiter) There(s enforce.Share) bool {
	for _, name := range []string{account.LimitFile, account.GrantFile, account.AccountFile} {
		if _, err := os.Stat(filepath.Join(s.Dir, name)); err != nil {
			return false
		}
	}
	return true
}

// Files makes the limit, grant and account of a share in dir. Each context is
// charged contextOverhead bytes until the grant says otherwise. Calling it
// again for the same share leaves files that are there alone: a container may
// have them mounted.
func (l *Limiter) Files(dir string, s state.Share, contextOverhead uint64) error {
	if len(s.Cards) != 1 {
		return fmt.Errorf("share of %s opens %d cards, a limit is for one", s.Device, len(s.Cards))
	}
	card, err := account.ParseUUID(s.Cards[0])
	if err != nil {
		return err
	}
	lim := account.Limit{Card: card, Whole: s.Whole, CorePercent: uint32(s.Cores)}
	if !s.Whole {
		lim.Memory = uint64(s.MemoryMi) << 20
	}
	const all = 1_000_000
	// What holds until the monitor has looked: the guarantee, and without one
	// nothing is held.
	grant := account.Grant{ContextOverhead: contextOverhead, CoreRate: all, BusyFactor: all, Fallback: all}
	if s.Cores > 0 {
		lim.CorePolicy = account.CoresBurst
		if s.CorePolicy == string(config.Hard) {
			lim.CorePolicy = account.CoresHard
		}
		grant.CoreRate = uint32(s.Cores) * (all / 100)
		grant.Fallback, grant.Gated = grant.CoreRate, true
	}
	return account.Create(dir, lim, grant)
}

// InUse tells whether processes use the share, or may. It asks the
// kernel for the locks that live processes hold, and believes nothing of what
// is in the account, which the tenant can write. Only an account that is not
// there is surely used by nobody.
func (l *Limiter) InUse(s enforce.Share) bool {
	f, err := os.OpenFile(filepath.Join(s.Dir, account.AccountFile), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: 0, Len: account.Slots}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return true
	}
	return lock.Type != unix.F_UNLCK
}

// Trim cuts the account of the share in dir to its size. It returns how many
// bytes the tenant had added.
func (l *Limiter) Trim(dir string) (int64, error) { return account.Trim(dir) }

// Collect removes installed versions below hostDir whose folders used does
// not name. A version stays as long as a container may have it mounted.
func Collect(hostDir string, used func(version string) bool) ([]string, error) {
	entries, err := os.ReadDir(hostDir)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	var gone []string
	var errs []error
	for _, e := range entries {
		if used(e.Name()) {
			continue
		}
		gone = append(gone, e.Name())
		errs = append(errs, os.RemoveAll(filepath.Join(hostDir, e.Name())))
	}
	return gone, errors.Join(errs...)
}
