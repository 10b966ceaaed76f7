package mps

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// pipeBytes is more than MPS keeps in its pipe folder: sockets and a few short
// files.
const pipeBytes = 16 << 20

// trim empties the files in the pipe folder when there is more in them than MPS
// ever has, and returns how much that was. The folder is on the node's disk,
// clients of all users write to it, and no limit of a container's own storage
// counts what they do there.
func (d Daemon) trim() (int64, error) {
	root, err := os.OpenRoot(d.pipe())
	if err != nil {
		return 0, err
	}
	defer root.Close()
	var names []string
	var sum int64
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil // it may be gone by now
		}
		if info, err := e.Info(); err == nil {
			names = append(names, name)
			sum += info.Size()
		}
		return nil
	})
	if err != nil || sum <= pipeBytes {
		return 0, err
	}
	var errs []error
	for _, name := range names {
		f, err := root.OpenFile(name, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
			continue
		}
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			errs = append(errs, f.Truncate(0))
		}
		_ = f.Close()
	}
	return sum, errors.Join(errs...)
}
