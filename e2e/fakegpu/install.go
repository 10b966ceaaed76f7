package fakegpu

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// libDir is where a Debian driver has its libraries, below its root.
const libDir = "usr/lib/x86_64-linux-gnu"

// library is a file of the driver and the links that lead to it.
var libraries = []struct{ name, soname string }{
	{"libcuda", "libcuda.so.1"},
	{"libnvidia-ml", "libnvidia-ml.so.1"},
	{"libnvidia-ptxjitcompiler", "libnvidia-ptxjitcompiler.so.1"},
	{"libnvidia-nvvm", "libnvidia-nvvm.so.4"},
	{"libcudadebugger", "libcudadebugger.so.1"},
}

// Installed is a node's simulated hardware and driver.
type Installed struct {
	Node Node
	// DriverRoot holds usr/lib, usr/bin and dev as a driver container's root has them.
	DriverRoot string
	// StateDir is what processes must see at /run/fakegpu (or name by FAKEGPU_DIR).
	StateDir string
	built    string
}

// Install lays out a node: the driver files, nvidia-smi and the cards' device nodes below
// driverRoot, the cards' state, empty, in stateDir. Both are made if missing; what was installed
// there before is replaced, and processes that still use it keep the old state. built is the
// result of Build. Device nodes need root.
func Install(driverRoot, stateDir, built string, n Node) (*Installed, error) {
	in := &Installed{Node: n, DriverRoot: driverRoot, StateDir: stateDir, built: built}
	if err := in.installDriver(); err != nil {
		return nil, fmt.Errorf("cannot install the driver in %s: %w", driverRoot, err)
	}
	if err := in.installDevices(); err != nil {
		return nil, fmt.Errorf("cannot make device nodes in %s: %w", driverRoot, err)
	}
	if err := in.Reset(); err != nil {
		return nil, fmt.Errorf("cannot install the cards in %s: %w", stateDir, err)
	}
	return in, nil
}

// Open is the handle of a node that was installed before, perhaps by another process. It does not
// know the node's description, so it cannot Reset.
func Open(driverRoot, stateDir, built string) *Installed {
	return &Installed{DriverRoot: driverRoot, StateDir: stateDir, built: built}
}

// LibDir is the folder of the driver's libraries.
func (in *Installed) LibDir() string { return filepath.Join(in.DriverRoot, libDir) }

// NVML is the path of libnvidia-ml.so.1, for go-nvml's WithLibraryPath.
func (in *Installed) NVML() string { return filepath.Join(in.LibDir(), "libnvidia-ml.so.1") }

// DevDir is the folder of the cards' device nodes.
func (in *Installed) DevDir() string { return filepath.Join(in.DriverRoot, "dev") }

// Env makes a process outside of a container see the node.
func (in *Installed) Env() []string {
	return []string{"FAKEGPU_DIR=" + in.StateDir, "FAKEGPU_DEV=" + in.DevDir(), "LD_LIBRARY_PATH=" + in.LibDir()}
}

// Program is the path of Probe, ProbeLinked or ProbePlugin.
func (in *Installed) Program(name string) string { return filepath.Join(in.built, name) }

func (in *Installed) installDriver() error {
	version := in.Node.driverVersion()
	for _, lib := range libraries {
		file := lib.name + ".so." + version
		from := filepath.Join(in.built, lib.name+".so."+DefaultDriverVersion)
		if err := copyFile(filepath.Join(in.LibDir(), file), from, 0o755); err != nil {
			return err
		}
		// The SONAME link is made as ldconfig would: the newest driver has it.
		if err := symlink(file, filepath.Join(in.LibDir(), lib.soname)); err != nil {
			return err
		}
	}
	if err := symlink("libcuda.so.1", filepath.Join(in.LibDir(), "libcuda.so")); err != nil {
		return err
	}
	for _, program := range []string{"nvidia-smi", "nvidia-cuda-mps-control"} {
		if err := copyFile(filepath.Join(in.DriverRoot, "usr/bin", program), filepath.Join(in.built, program), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (in *Installed) installDevices() error {
	cards, err := in.Node.cards()
	if err != nil {
		return err
	}
	if err := in.installCapabilities(cards); err != nil {
		return err
	}
	names := []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}
	for _, c := range cards {
		names = append(names, fmt.Sprintf("nvidia%d", c.Minor))
	}
	if err := os.MkdirAll(in.DevDir(), 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if err := in.makeDevice(name); err != nil {
			return err
		}
	}
	return nil
}

// makeDevice makes a character device that takes and gives nothing: /dev/null's.
func (in *Installed) makeDevice(name string) error {
	path := filepath.Join(in.DevDir(), name)
	err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return &fs.PathError{Op: "mknod", Path: path, Err: err}
	}
	// Past the umask: containers run as anybody.
	return os.Chmod(path, 0o666)
}

// Reset empties all cards, their history and their faults, as a power cycle does. The node's
// description is written anew, too.
func (in *Installed) Reset() error {
	if err := in.describe(); err != nil {
		return err
	}
	if out, err := exec.Command(in.Program(ctl), "init", in.StateDir).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return in.partition()
}

// Upgrade puts a driver of another version in the place of the one that is installed. The cards
// keep what they hold: processes that run go on with the libraries that they have open.
func (in *Installed) Upgrade(version string) error {
	old := in.Node.driverVersion()
	in.Node.DriverVersion = version
	if err := in.installDriver(); err != nil {
		return err
	}
	if old != in.Node.driverVersion() {
		for _, lib := range libraries {
			if err := os.Remove(filepath.Join(in.LibDir(), lib.name+".so."+old)); err != nil {
				return err
			}
		}
	}
	return in.describe()
}

// describe writes the node file.
func (in *Installed) describe() error {
	text, err := in.Node.text()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(in.StateDir, 0o755); err != nil {
		return err
	}
	return replaceFile(filepath.Join(in.StateDir, "node"), []byte(text))
}

// copyFile puts a copy of a file under a new inode: programs may have the old one mapped.
func copyFile(to, from string, mode fs.FileMode) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	dst, err := os.CreateTemp(filepath.Dir(to), ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(dst.Name())
	_, err = io.Copy(dst, src)
	err = errors.Join(err, dst.Chmod(mode), dst.Close())
	if err != nil {
		return err
	}
	return os.Rename(dst.Name(), to)
}

func symlink(target, path string) error {
	tmp := path + ".new"
	os.Remove(tmp)
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// replaceFile writes a file that is at every moment the old one or the new one.
func replaceFile(path string, text []byte) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, text, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
