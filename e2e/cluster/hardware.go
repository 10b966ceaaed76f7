package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Hardware puts simulated hardware into a node. It is called at each boot of a node that has GPUs,
// before containerd and the kubelet start, and must be idempotent: the driver root still holds what the
// boot before left, the state folder is empty.
type Hardware interface {
	Install(ctx context.Context, n HardwareNode) error
}

// HardwareNode is the node that hardware is put into. Both folders are paths of the outer machine.
type HardwareNode struct {
	Name string
	GPUs []GPU
	// DriverRoot becomes DriverRoot on the node: libraries below usr/lib/x86_64-linux-gnu,
	// programs below usr/bin, device nodes below dev. Character devices dev/nvidia* are made in
	// the node's /dev as well.
	DriverRoot string
	// State becomes HardwareDir on the node and in each of its containers.
	State string
}

// installHardware runs the hook for a node that has just booted.
func (c *Cluster) installHardware(ctx context.Context, m *machine, n Node) error {
	if len(n.GPUs) == 0 {
		return nil
	}
	if c.hardware == nil {
		return fmt.Errorf("%s: GPUs %v asked for, but this program has no simulated hardware to install", n.Name, n.GPUs)
	}
	state, err := m.hostPath(HardwareDir)
	if err != nil {
		return err
	}
	hw := HardwareNode{Name: n.Name, GPUs: n.GPUs, DriverRoot: m.driverRoot(), State: state}
	if err := c.hardware.Install(ctx, hw); err != nil {
		return fmt.Errorf("%s: install simulated hardware: %w", n.Name, err)
	}
	dev, err := m.hostPath("/dev")
	if err != nil {
		return err
	}
	return copyDeviceNodes(filepath.Join(m.driverRoot(), "dev"), dev)
}

// copyDeviceNodes makes the NVIDIA character devices of one folder in another too.
func copyDeviceNodes(from, to string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if os.IsNotExist(err) && path == from {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if rel == "." || !strings.HasPrefix(rel, "nvidia") {
			return nil
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return fmt.Errorf("device node %s: %w", path, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFCHR {
			return nil
		}
		return makeNode(target, st.Mode, st.Rdev)
	})
}
