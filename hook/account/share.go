package account

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrOtherLimit is in the error of Create when the share was made before with
// another limit.
var ErrOtherLimit = errors.New("the share exists with another limit")

// Modes of the files. The account is for everybody because the container may
// run as any user, and each has its own: whoever can open it is the tenant.
const (
	nodeMode   fs.FileMode = 0o644
	tenantMode fs.FileMode = 0o666
)

// Create makes the three files of a share in dir, and dir itself. It can be
// called again: files that are there stay as they are, so that a container
// that has them mounted goes on undisturbed, and g is then not written. A
// share that was made with another limit is refused with ErrOtherLimit. An
// account that the tenant has damaged is made readable again in place.
func Create(dir string, l Limit, g Grant) error {
	if err := create(dir, l, g); err != nil {
		return fmt.Errorf("create share %s: %w", dir, err)
	}
	return nil
}

func create(dir string, l Limit, g Grant) error {
	if err := l.validate(); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	l.Memory &^= Unit - 1
	if err := ensure(dir, LimitFile, nodeMode, l.encode()); err != nil {
		return err
	}
	had, err := ReadLimit(dir)
	if err != nil {
		return err
	}
	if had != l {
		return fmt.Errorf("%w: it has %+v, asked was %+v", ErrOtherLimit, had, l)
	}
	if err := ensure(dir, GrantFile, nodeMode, g.encode(0)); err != nil {
		return err
	}
	if err := ensure(dir, AccountFile, tenantMode, emptyAccount()); err != nil {
		return err
	}
	return repairAccount(dir)
}

// ensure makes the file if it is not there. The name appears together with the
// bytes, never before, so that no crash of this process leaves half a file
// behind the name. It does not force them to the disk: after a crash of the
// machine no container runs, and its shares are made anew.
func ensure(dir, name string, mode fs.FileMode, content []byte) error {
	path := filepath.Join(dir, name)
	if _, err := os.Lstat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temp := filepath.Join(dir, "."+name+".new")
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := openFile(temp, flags, mode)
	if errors.Is(err, fs.ErrExist) { // of a process that was killed
		if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f, err = openFile(temp, flags, mode)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if info, statErr := f.Stat(); statErr == nil && info.Mode().Perm() != mode { // the umask
		err = errors.Join(err, f.Chmod(mode))
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = appear(temp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return nil
}

// appear gives the file its name unless there is one of it.
func appear(temp, path string) error {
	err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EEXIST):
		return os.Remove(temp)
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS): // a file system without it
		if err := os.Link(temp, path); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return os.Remove(temp)
	case err != nil:
		return &os.LinkError{Op: "rename", Old: temp, New: path, Err: err}
	}
	return nil
}

func emptyAccount() []byte {
	b := make([]byte, accountSize)
	putHead(b, accountMagic, accountSize)
	le.PutUint32(b[accountOffSlots:], Slots)
	return b
}

// repairAccount restores the size and the head of an account that the tenant
// has damaged. Processes that have it mapped keep their mapping.
func repairAccount(dir string) error {
	f, err := openFile(filepath.Join(dir, AccountFile), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != accountSize {
		if err := f.Truncate(accountSize); err != nil {
			return err
		}
	}
	want := emptyAccount()[:accountOffTotal]
	head := make([]byte, len(want))
	if _, err := f.ReadAt(head, 0); err != nil {
		return err
	}
	if bytes.Equal(head, want) {
		return nil
	}
	_, err = f.WriteAt(want, 0)
	return err
}

// ReadLimit returns the limit of the share in dir.
func ReadLimit(dir string) (Limit, error) {
	b, err := readFile(filepath.Join(dir, LimitFile), limitSize)
	if err != nil {
		return Limit{}, fmt.Errorf("limit of share %s: %w", dir, err)
	}
	l, err := decodeLimit(b)
	if err != nil {
		return Limit{}, fmt.Errorf("limit of share %s: %w", dir, err)
	}
	return l, nil
}

// Remove takes the share away: its files, and dir unless something else is in
// it. A share that is not there is no error. Call it when no container has the
// files mounted any more.
func Remove(dir string) error {
	for _, name := range []string{AccountFile, GrantFile, LimitFile} {
		for _, n := range []string{name, "." + name + ".new"} {
			if err := os.Remove(filepath.Join(dir, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove share %s: %w", dir, err)
			}
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove share %s: %w", dir, err)
	}
	return nil
}

// openFile opens a regular file and nothing else: no link, no pipe that would
// block, no device.
func openFile(name string, flags int, mode fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file but %s", name, info.Mode())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// readFile reads a file of at most max bytes; of a longer one it returns
// max+1 bytes, so that the caller sees that the size is wrong.
func readFile(name string, max int) ([]byte, error) {
	f, err := openFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, max+1)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b[:n], nil
}
