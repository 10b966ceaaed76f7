package mps

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The daemon must outlive the driver's container, and it needs the NVIDIA
// driver's root with the daemon's own folders in it. The process that becomes
// the daemon therefore, by this program's own command, leaves the container
// first: it joins the namespaces of the host's first process and a control group
// beside those of pods, so that neither the runtime nor the kubelet ends it. Then
// it makes a mount namespace of its own and changes its root.

// Names of the commands of sluice-driver, for this package alone.
const (
	LaunchCommand  = "mps-daemon"
	ControlCommand = "mps-control"
)

// controlProgram is NVIDIA's daemon, and the program that speaks to it.
const controlProgram = "nvidia-cuda-mps-control"

// Where the daemon sees its folders below the driver root. Both /tmp and
// /dev/shm are covered there, for it alone.
const (
	insidePipe = "/tmp/nvidia-mps"
	insideLogs = "/tmp/nvidia-log"
)

// Group is the control group of all daemons, beside the one of all pods.
const Group = "sluice-mps"

func command(d Daemon, control bool) (string, []string) {
	name := LaunchCommand
	if control {
		name = ControlCommand
	}
	return "/proc/self/exe", []string{name, "--card=" + d.Card, "--dir=" + d.Dir, "--driver-root=" + d.DriverRoot, "--proc=" + d.Proc}
}

// Launch makes this process the card's daemon. It returns only if it fails.
func (d Daemon) Launch() error {
	runtime.LockOSThread() // namespaces belong to a thread, until exec makes it the process
	if err := d.join(1); err != nil {
		return err
	}
	if err := leaveContainer(); err != nil {
		return fmt.Errorf("control group: %w", err)
	}
	if err := d.mounts(); err != nil {
		return err
	}
	if err := d.Record(); err != nil {
		return err
	}
	return d.exec("-f")
}

// SpeakTo makes this process the one that passes its standard input to the
// card's daemon. It returns only if it fails.
func (d Daemon) SpeakTo() error {
	runtime.LockOSThread()
	pid := d.PID()
	if pid == 0 {
		return errors.New("the daemon does not run")
	}
	if err := d.join(pid); err != nil {
		return err
	}
	return d.exec()
}

// join enters the namespaces of a process.
func (d Daemon) join(pid int) error {
	dir := filepath.Join(d.Proc, strconv.Itoa(pid), "ns")
	// A thread that shares its root with others cannot change its mounts.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	// The files are opened first: afterwards d.Proc is another path.
	kinds := []struct {
		name string
		flag int
	}{{"ipc", unix.CLONE_NEWIPC}, {"net", unix.CLONE_NEWNET}, {"uts", unix.CLONE_NEWUTS}, {"cgroup", unix.CLONE_NEWCGROUP}, {"mnt", unix.CLONE_NEWNS}}
	var fds []int
	for _, k := range kinds {
		fd, err := unix.Open(filepath.Join(dir, k.name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("namespace %s of process %d: %w", k.name, pid, err)
		}
		fds = append(fds, fd)
	}
	for i, k := range kinds {
		if err := unix.Setns(fds[i], k.flag); err != nil {
			return fmt.Errorf("joining namespace %s of process %d: %w", k.name, pid, err)
		}
		_ = unix.Close(fds[i])
	}
	return nil
}

// mounts gives the daemon a view of its own in which its folders are below the
// driver's root. The files of /dev/shm are in memory, on the host as well:
// containers have the same folder mounted.
func (d Daemon) mounts() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(d.shm(), &fs); err != nil {
		return fmt.Errorf("%s: %w", d.shm(), err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		if err := unix.Mount("sluice-mps", d.shm(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777"); err != nil {
			return fmt.Errorf("mounting %s: %w", d.shm(), err)
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	// Open what is to be mounted before a mount covers it.
	from := map[string]string{"/dev/shm": d.shm(), insidePipe: d.pipe(), insideLogs: d.logs()}
	for inside, path := range from {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		defer unix.Close(fd)
		from[inside] = fmt.Sprintf("/proc/self/fd/%d", fd)
	}
	tmp := filepath.Join(d.DriverRoot, "tmp")
	if err := mountTmp(tmp, filepath.Join(d.DriverRoot, insidePipe), filepath.Join(d.DriverRoot, insideLogs)); err != nil {
		return err
	}
	for _, inside := range []string{"/dev/shm", insidePipe, insideLogs} {
		at := filepath.Join(d.DriverRoot, inside)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(from[inside], at, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", at, err)
		}
	}
	proc := filepath.Join(d.DriverRoot, "proc")
	if filepath.Clean(d.DriverRoot) != "/" {
		if err := os.MkdirAll(proc, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("/proc", proc, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", proc, err)
		}
	}
	return nil
}

func mountTmp(tmp string, dirs ...string) error {
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("sluice-mps", tmp, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777,size=1m"); err != nil {
		return fmt.Errorf("mounting %s: %w", tmp, err)
	}
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (d Daemon) exec(args ...string) error {
	if err := unix.Chroot(d.DriverRoot); err != nil {
		return fmt.Errorf("driver root %s: %w", d.DriverRoot, err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	for _, dir := range []string{"/usr/bin", "/usr/sbin", "/bin", "/sbin", "/run/current-system/sw/bin", "/opt/bin"} {
		path := filepath.Join(dir, controlProgram)
		if _, err := os.Stat(path); err == nil {
			return fmt.Errorf("%s: %w", path, unix.Exec(path, append([]string{controlProgram}, args...), d.Environment(insidePipe, insideLogs)))
		}
	}
	return fmt.Errorf("there is no %s below the driver root %s: install the NVIDIA driver's compute utilities, or use another enforcement", controlProgram, d.DriverRoot)
}

// leaveContainer moves this process, in each hierarchy, to a group beside the one
// that all pods are in. A process that is in no pod stays where it is.
func leaveContainer() error {
	mine, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	mounted, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for _, g := range beside(mine, mounted) {
		if err := enter(g); err != nil {
			return err
		}
	}
	return nil
}

// beside finds the folders of the groups to join. mine is /proc/self/cgroup,
// mounted /proc/self/mountinfo, both as the host sees them.
func beside(mine, mounted []byte) []string {
	at := map[string]string{} // mount points by what /proc/self/cgroup calls a hierarchy
	for line := range bytes.Lines(mounted) {
		before, after, ok := strings.Cut(strings.TrimSpace(string(line)), " - ")
		fields, source := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(source) < 3 || fields[3] != "/" {
			continue
		}
		switch source[0] {
		case "cgroup2":
			at[""] = fields[4]
		case "cgroup":
			for _, o := range strings.Split(source[2], ",") {
				at[o] = fields[4]
			}
		}
	}
	var out []string
	for line := range bytes.Lines(mine) {
		parts := strings.SplitN(strings.TrimSpace(string(line)), ":", 3)
		if len(parts) != 3 {
			continue
		}
		above, _, inPod := strings.Cut(parts[2], "/kubepods")
		dir, known := at[strings.Split(parts[1], ",")[0]]
		if inPod && known {
			out = append(out, filepath.Join(dir, above, Group))
		}
	}
	return out
}

func enter(group string) error {
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	// A new group of the cpuset hierarchy is empty until it is told what it may use.
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		to := filepath.Join(group, name)
		if b, err := os.ReadFile(to); err == nil && len(bytes.TrimSpace(b)) == 0 {
			above, err := os.ReadFile(filepath.Join(filepath.Dir(group), name))
			if err != nil || len(bytes.TrimSpace(above)) == 0 {
				continue // version 2: empty means that of the group above
			}
			if err := os.WriteFile(to, above, 0o644); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0o644)
}
