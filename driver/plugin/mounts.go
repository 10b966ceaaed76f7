package plugin

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/driver/state"
)

// mounts tells which claims have files that containers have mounted. It is
// what the kernel says of every process, not what a program in a container
// wrote: a container has its mounts for as long as it has a process, whether
// or not one uses CUDA.
type mounts struct {
	claims map[types.UID]bool
	// named are the claims whose device metadata are mounted, as
	// "<namespace>_<name>".
	named map[string]bool
}

// mountsOf reads /proc/<pid>/mountinfo (proc_pid_mountinfo(5)) of all
// processes below proc. An error means that some may not have been seen.
func mountsOf(proc string) (mounts, error) {
	m := mounts{claims: map[types.UID]bool{}, named: map[string]bool{}}
	list, err := os.ReadDir(proc)
	if err != nil {
		return m, err
	}
	for _, e := range list {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(proc, e.Name(), "mountinfo"))
		switch {
		// A process that has ended: it is gone, or waits to be reaped.
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL):
			continue
		case err != nil:
			return m, err
		}
		m.add(b)
	}
	return m, nil
}

func (m *mounts) add(mountinfo []byte) {
	for line := range bytes.Lines(mountinfo) {
		fields := bytes.Fields(line)
		if len(fields) < 5 {
			continue
		}
		// The path of what is mounted, in the file system that it is on.
		root := strings.TrimSuffix(string(fields[3]), "//deleted")
		parts := strings.Split(root, "/")
		if len(parts) < 4 {
			continue
		}
		switch parts = parts[len(parts)-4:]; parts[0] {
		case sharesName: // shares/<claim>/<share>/<file>
			m.claims[types.UID(parts[1])] = true
		case metadataName: // dra-device-metadata/<namespace>_<name>/<request>/<file>
			m.named[parts[1]] = true
		}
	}
}

// has tells whether containers have files of a claim mounted. A share without
// a limit has no files of its own, but metadata, whose path has no UID: they
// count unless cp has a claim of the same name that they can belong to.
func (m *mounts) has(c state.Claim, cp *state.Checkpoint) bool {
	if m.claims[c.UID] {
		return true
	}
	if !slices.ContainsFunc(c.Shares, func(s state.Share) bool { return !s.Limited }) {
		return false
	}
	for _, other := range cp.Claims() {
		if other.UID != c.UID && other.Namespace == c.Namespace && other.Name == c.Name {
			return false
		}
	}
	return m.named[c.Namespace+"_"+c.Name]
}
