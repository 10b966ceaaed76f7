package cluster

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// machine is one simulated machine: the control plane or a node. It lives as long as its first
// process, which is process 1 of the machine's PID namespace: killing that one ends, as a power cut
// would, everything on the machine, containers included, and with the last process its mounts go.
type machine struct {
	name  string
	netns string // path of its network namespace
	dir   string // its folder in the cluster's state
	bin   string // the cache's binaries
}

// A machine's folders on the outer machine. They are its disk and survive its reboots.
func (m *machine) varLib() string     { return filepath.Join(m.dir, "var-lib") }
func (m *machine) varLog() string     { return filepath.Join(m.dir, "var-log") }
func (m *machine) driverRoot() string { return filepath.Join(m.dir, "driver-root") }
func (m *machine) stage() string      { return filepath.Join(m.dir, "stage") }

// hostPath is where the outer machine sees a path of the machine. It is good until the machine
// reboots.
func (m *machine) hostPath(path string) (string, error) {
	first, err := m.first()
	if err != nil {
		return "", err
	}
	return filepath.Join("/proc", strconv.Itoa(first.PID), "root", path), nil
}

// first is the machine's first process.
func (m *machine) first() (process, error) {
	p, err := readProcess(filepath.Join(m.dir, "init.json"))
	if err != nil {
		return process{}, fmt.Errorf("%s is not running: %w", m.name, err)
	}
	if !p.alive() {
		return process{}, fmt.Errorf("%s is not running: its first process, %d, has ended", m.name, p.PID)
	}
	return p, nil
}

// boot makes the machine's mount, PID, UTS and IPC namespaces, starts its first process and gives
// the machine a boot id.
func (m *machine) boot() error {
	for _, d := range []string{m.varLib(), m.varLog(), m.driverRoot(), m.stage()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	bootID := newBootID()
	var cmd *exec.Cmd
	err := onThread(func() error {
		if err := enterNamespace(m.netns, unix.CLONE_NEWNET); err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Sethostname([]byte(m.name)); err != nil {
			return fmt.Errorf("host name: %w", err)
		}
		if err := m.mountFolders(bootID); err != nil {
			return err
		}
		for name, value := range map[string]string{
			"ip_forward":     "1", // for pods
			"icmp_ratelimit": "0", // whoever asks for what nobody serves is told each time
		} {
			if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0o644); err != nil {
				return fmt.Errorf("network setting: %w", err)
			}
		}
		cmd = &exec.Cmd{
			Path:        filepath.Join(binDir, "pause"),
			Args:        []string{"sluice-machine", m.name},
			Env:         []string{},
			Dir:         "/",
			SysProcAttr: &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWPID},
		}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("first process: %w", err)
		}
		return nil
	})
	if err == nil {
		var first process
		// From here, where the state folder and the outer /proc are to be seen.
		if first, err = startedProcess(cmd); err == nil {
			err = first.write(filepath.Join(m.dir, "init.json"))
		}
	}
	if err != nil {
		return fmt.Errorf("%s: boot: %w", m.name, err)
	}
	// /proc shows the PID namespace of whoever mounts it.
	err = m.enter(func() error {
		for _, args := range [][]string{
			{"-t", "proc", "-o", "nosuid,nodev,noexec", "proc", "/proc"},
			{"--bind", BootIDFile, "/proc/sys/kernel/random/boot_id"},
		} {
			if out, err := (&exec.Cmd{Path: "/bin/mount", Args: append([]string{"mount"}, args...)}).CombinedOutput(); err != nil {
				return fmt.Errorf("mount %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: boot: %w", m.name, err)
	}
	return nil
}

// halt ends everything on the machine at once.
func (m *machine) halt() error {
	p, err := m.first()
	if err != nil {
		return nil // it has ended already
	}
	if err := unix.Kill(p.PID, unix.SIGKILL); err != nil && err != unix.ESRCH {
		return fmt.Errorf("%s: halt: %w", m.name, err)
	}
	// The first process is gone for good only when all others of its namespace are.
	if !p.waitGone(endPatience) {
		return fmt.Errorf("%s: halt: process %d does not end", m.name, p.PID)
	}
	return nil
}

// enter runs f on a thread that is in all of the machine's namespaces. Processes that f starts are
// the machine's. Only system calls of f itself and of those processes are: goroutines that f
// starts are not.
func (m *machine) enter(f func() error) error {
	first, err := m.first()
	if err != nil {
		return err
	}
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		for _, ns := range []struct {
			name string
			flag int
		}{
			{"pid", unix.CLONE_NEWPID}, {"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS},
			{"net", unix.CLONE_NEWNET}, {"mnt", unix.CLONE_NEWNS},
		} {
			if err := enterNamespace(fmt.Sprintf("/proc/%d/ns/%s", first.PID, ns.name), ns.flag); err != nil {
				return err
			}
		}
		return f()
	})
}

func enterNamespace(path string, flag int) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("namespace %s: %w", path, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, flag); err != nil {
		return fmt.Errorf("enter namespace %s: %w", path, err)
	}
	return nil
}

// onThread runs f on an operating system thread that is thrown away afterwards, so that f may
// change the thread's namespaces. It never uses the process's first thread: /proc/self and
// whatever looks at the process from outside show that one's namespaces.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// While this goroutine holds the first thread, another cannot get it.
			result <- onThread(f)
			runtime.UnlockOSThread()
			return
		}
		result <- f()
		// Not unlocked: the thread ends with the goroutine.
	}()
	return <-result
}

// mountFolders gives the thread's new mount namespace the machine's own /run, /dev, /var/lib and
// /var/log. The rest of the file system is the outer machine's.
func (m *machine) mountFolders(bootID string) error {
	// Nothing that is mounted here may show outside, nor the other way round.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := mount("tmpfs", m.stage(), "tmpfs", "mode=0755"); err != nil {
		return err
	}
	run, dev := filepath.Join(m.stage(), "run"), filepath.Join(m.stage(), "dev")
	for _, d := range []string{run, dev} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
		if err := mount("tmpfs", d, "tmpfs", "mode=0755"); err != nil {
			return err
		}
	}
	if err := populateDev(dev); err != nil {
		return err
	}
	for _, d := range []string{HardwareDir, DriverRoot, binDir, "/run/cdi", "/run/lock"} {
		if err := os.MkdirAll(filepath.Join(m.stage(), d), 0o755); err != nil {
			return err
		}
	}
	// Containers of any user use the cards, so any user can write where they keep their state.
	if err := os.Chmod(filepath.Join(m.stage(), HardwareDir), 0o777); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(m.stage(), BootIDFile), []byte(bootID+"\n"), 0o444); err != nil {
		return err
	}
	binds := [][2]string{{m.bin, binDir}, {m.driverRoot(), DriverRoot}, {m.varLib(), "/var-lib"}, {m.varLog(), "/var-log"}}
	for _, b := range binds {
		target := filepath.Join(m.stage(), b[1])
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := bind(b[0], target); err != nil {
			return err
		}
	}
	if err := dropMounts(m.stage()); err != nil {
		return err
	}
	// The state folder may be in /var/lib, so that moves last.
	for _, move := range [][2]string{{"dev", "/dev"}, {"run", "/run"}, {"var-log", "/var/log"}, {"var-lib", "/var/lib"}} {
		from := filepath.Join(m.stage(), move[0])
		if err := unix.Mount(from, move[1], "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s to %s: %w", from, move[1], err)
		}
	}
	if target, err := filepath.EvalSymlinks("/var/run"); err == nil && target != "/run" {
		if err := bind("/run", "/var/run"); err != nil {
			return err
		}
	}
	// As on a machine of its own: volumes and network namespaces mounted later reach containers
	// that asked for it.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}

// dropMounts unmounts, in this namespace only, what the outer machine has mounted below the folders
// that the machine replaces. A copy that stayed would keep other clusters' network namespaces
// alive after they are deleted.
func dropMounts(keep string) error {
	data, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	for _, point := range mountsToDrop(data, keep) {
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			return fmt.Errorf("unmount %s: %w", point, err)
		}
	}
	return nil
}

// mountsToDrop lists mount points below /run, /var/lib and /var/log, but not those at or below
// keep, the deepest first.
func mountsToDrop(mountinfo []byte, keep string) []string {
	var points []string
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(mountinfo)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		point := unescape.Replace(fields[4])
		if point == keep || strings.HasPrefix(point, keep+"/") {
			continue
		}
		for _, folder := range []string{"/run/", "/var/run/", "/var/lib/", "/var/log/"} {
			if strings.HasPrefix(point, folder) && !strings.HasPrefix(keep+"/", point+"/") {
				points = append(points, point)
			}
		}
	}
	slices.Reverse(points)
	return points
}

// populateDev fills a machine's /dev with what programs expect, and no more: a card has device
// nodes on the nodes that have it only.
func populateDev(dev string) error {
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "console", "kmsg", "ptmx", "fuse"} {
		var st unix.Stat_t
		if err := unix.Stat("/dev/"+name, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue // what the outer machine lacks, the kernel may not have
		}
		if err := makeNode(filepath.Join(dev, name), st.Mode, st.Rdev); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			return err
		}
	}
	for _, d := range []string{"pts", "shm", "mqueue"} {
		if err := os.Mkdir(filepath.Join(dev, d), 0o755); err != nil {
			return err
		}
	}
	if err := bind("/dev/pts", filepath.Join(dev, "pts")); err != nil {
		return err
	}
	return mount("shm", filepath.Join(dev, "shm"), "tmpfs", "mode=1777")
}

func makeNode(path string, mode uint32, device uint64) error {
	if err := unix.Mknod(path, mode, int(device)); err != nil && err != unix.EEXIST {
		return fmt.Errorf("device node %s: %w", path, err)
	}
	if err := os.Chmod(path, os.FileMode(mode&0o777)); err != nil { // past the umask
		return err
	}
	return nil
}

func mount(source, target, kind, options string) error {
	if err := unix.Mount(source, target, kind, unix.MS_NOSUID, options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", kind, target, err)
	}
	return nil
}

func bind(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", source, target, err)
	}
	return nil
}

// newBootID makes an id of the form that the kernel's have.
func newBootID() string {
	var b [16]byte
	rand.Read(b[:]) //nolint:errcheck // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
