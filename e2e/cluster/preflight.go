package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

func requireRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("not root: namespaces, mounts and cgroups need it; run this with sudo")
	}
	return nil
}

// cniFolders are where distributions put the CNI plugins.
var cniFolders = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

// preflight checks that the outer machine has what a cluster needs, and reports all that is missing
// at once. stateRoot is the folder in which clusters keep their state.
func preflight(bin, stateRoot string, nodes int) (runtimePaths, error) {
	var paths runtimePaths
	var missing []string
	need := func(what, pkg string) {
		missing = append(missing, fmt.Sprintf("%s (Debian: apt-get install %s)", what, pkg))
	}
	var err error
	if paths.runc, err = exec.LookPath("runc"); err != nil {
		need("runc", "runc")
	}
	if paths.cniBin = findFolder(cniFolders, "bridge", "host-local", "loopback"); paths.cniBin == "" {
		need("CNI plugins bridge, host-local and loopback in one of "+strings.Join(cniFolders, ", "), "containernetworking-plugins")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		need("ip", "iproute2")
	}
	if _, err := os.Stat("/bin/mount"); err != nil {
		need("/bin/mount", "mount")
	}
	var errs []error
	if len(missing) > 0 {
		errs = append(errs, errors.New("this machine lacks "+strings.Join(missing, "; ")))
	}
	var absent []string
	for _, m := range needed() {
		for _, command := range m.commands {
			name := filepath.Base(command)
			if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
				absent = append(absent, name)
			}
		}
	}
	if len(absent) > 0 {
		errs = append(errs, fmt.Errorf("not built yet, not in %s: %s; build them with `cluster build`", bin, strings.Join(absent, ", ")))
	}
	if err := enoughInotify(nodes, inotifyRoom); err != nil {
		errs = append(errs, err)
	}
	paths.snapshotter = snapshotter(stateRoot)
	return paths, errors.Join(errs...)
}

func findFolder(folders []string, files ...string) string {
next:
	for _, folder := range folders {
		for _, file := range files {
			if _, err := os.Stat(filepath.Join(folder, file)); err != nil {
				continue next
			}
		}
		return folder
	}
	return ""
}

// snapshotter is overlayfs, except where the images' layers would lie on an overlay themselves,
// which the kernel refuses.
func snapshotter(stateRoot string) string {
	var st unix.Statfs_t
	for dir := stateRoot; ; dir = filepath.Dir(dir) {
		if err := unix.Statfs(dir, &st); err == nil {
			break
		}
		if dir == "/" {
			return "overlayfs"
		}
	}
	if st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native"
	}
	return "overlayfs"
}
