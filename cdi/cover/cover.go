// Package cover keeps a driver library that an image brings from being used
// instead of the limiter.
//
// The limiter is mounted where the node's driver would be. An image can have a
// libcuda of its own, above all CUDA's "compat" packages, in a folder that the
// loader asks first; a program that is linked with libcuda would run on it
// without a limit. So before a container starts, every copy that a program can
// find by its name gets the limiter mounted over it. The image is not changed.
//
// It runs as the container runtime's createContainer hook: in the container's
// mount namespace, when all mounts are made and the root is still a folder
// among others. The image is the tenant's: each of its paths is resolved
// within its root, and files are mounted over by descriptor, not by name.
package cover

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

// StandIn says what is mounted over which library.
type StandIn struct {
	// Library is the name of the library without its version: "libcuda.so".
	Library string
	// Path is where the container has what stands in for it.
	Path string
}

// Cover mounts each stand-in over all copies of its library that the image in
// the folder root brings, for programs with the environment env. It returns
// the paths that it covered. Repeating it changes nothing. A stand-in that the
// container does not have is an error, and so is a copy that cannot be
// covered: the container must not start then.
func Cover(root string, env []string, standIns []StandIn) (covered []string, err error) {
	img := rootfs(root)
	dirs := folders(img, env)
	for _, s := range standIns {
		standIn, err := pathrs.OpenInRoot(root, s.Path)
		if err != nil {
			return covered, fmt.Errorf("%s, to stand in for %s, is not in the container: %w", s.Path, s.Library, err)
		}
		defer standIn.Close()
		for _, dir := range dirs {
			for _, name := range img.list(dir) {
				if !isCopyOf(name, s.Library) {
					continue
				}
				at := path.Join(dir, name)
				done, err := img.cover(at, standIn)
				if err != nil {
					return covered, fmt.Errorf("the image has its own %s at %s, which cannot be replaced by the limiter: %w", s.Library, at, err)
				}
				if done {
					covered = append(covered, at)
				}
			}
		}
	}
	return covered, nil
}

// rootfs is a container's root as a folder of this mount namespace.
type rootfs string

// most is the size of a configuration file, and the number of names in a
// folder, that are looked at.
const (
	mostBytes = 1 << 20
	mostNames = 100_000
)

func (r rootfs) open(name string, flags int) (*os.File, error) {
	handle, err := pathrs.OpenInRoot(string(r), name)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	return pathrs.Reopen(handle, flags|unix.O_CLOEXEC)
}

func (r rootfs) read(name string) []byte {
	f, err := r.open(name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostBytes))
	if err != nil {
		return nil
	}
	return b
}

func (r rootfs) list(name string) []string {
	f, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, err := f.Readdirnames(mostNames)
	if err != nil {
		return nil
	}
	return names
}

// cover mounts standIn over the regular file at a path, through its links.
// False: there is nothing to cover, or it is the stand-in already.
func (r rootfs) cover(name string, standIn *os.File) (bool, error) {
	target, err := pathrs.OpenInRoot(string(r), name)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ELOOP) {
		return false, nil // a link that leads nowhere, for programs too
	}
	if err != nil {
		return false, err
	}
	defer target.Close()
	var is, want unix.Stat_t
	if err := errors.Join(unix.Fstat(int(target.Fd()), &is), unix.Fstat(int(standIn.Fd()), &want)); err != nil {
		return false, err
	}
	if is.Mode&unix.S_IFMT != unix.S_IFREG || is.Dev == want.Dev && is.Ino == want.Ino {
		return false, nil
	}
	// The copy of a mount has its options: read-only, as the limiter is.
	return true, unix.Mount(byDescriptor(standIn), byDescriptor(target), "", unix.MS_BIND, "")
}

func byDescriptor(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
