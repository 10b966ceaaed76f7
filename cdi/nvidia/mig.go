package nvidia

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// minors is the kernel module's list of capabilities and of the minor numbers
// of their device nodes ("Device nodes and capabilities" in NVIDIA's MIG user
// guide).
const minors = "proc/driver/nvidia-caps/mig-minors"

// mig are the edits that open a MIG device: the node of its card, and the
// nodes of two capabilities without which the card opens nothing else. The
// generator's own edits for MIG devices read the list from this process's
// /proc alone and so miss a driver that has its root elsewhere.
//
// What a card's edits have for graphics is left out: instances do not draw.
func (g *Generator) mig(uuid string) (specs.ContainerEdits, error) {
	var none specs.ContainerEdits
	if g.lib == nil {
		return none, fmt.Errorf("the NVIDIA driver is not available now")
	}
	dev, ret := g.lib.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		return none, fmt.Errorf("MIG device %s: NVML does not have it (%d): it was destroyed", uuid, ret)
	}
	card, cardRet := dev.GetDeviceHandleFromMigDeviceHandle()
	gi, giRet := dev.GetGpuInstanceId()
	ci, ciRet := dev.GetComputeInstanceId()
	if cardRet != nvml.SUCCESS || giRet != nvml.SUCCESS || ciRet != nvml.SUCCESS {
		return none, fmt.Errorf("MIG device %s: NVML does not tell which instances it is (%d, %d, %d)", uuid, cardRet, giRet, ciRet)
	}
	minor, ret := card.GetMinorNumber()
	if ret != nvml.SUCCESS {
		return none, fmt.Errorf("MIG device %s: no minor number of its card (%d)", uuid, ret)
	}
	capabilities, err := g.capabilities()
	if err != nil {
		return none, fmt.Errorf("MIG device %s: %w", uuid, err)
	}
	var edits specs.ContainerEdits
	edits.DeviceNodes = append(edits.DeviceNodes, g.node(fmt.Sprintf("/dev/nvidia%d", minor)))
	for _, name := range []string{fmt.Sprintf("gpu%d/gi%d/access", minor, gi), fmt.Sprintf("gpu%d/gi%d/ci%d/access", minor, gi, ci)} {
		n, ok := capabilities[name]
		if !ok {
			return none, fmt.Errorf("MIG device %s: the driver lists no capability %s", uuid, name)
		}
		node, err := g.capability(n)
		if err != nil {
			return none, fmt.Errorf("MIG device %s: capability %s: %w", uuid, name, err)
		}
		edits.DeviceNodes = append(edits.DeviceNodes, node)
	}
	return edits, nil
}

// node is a device node as it is on the host.
func (g *Generator) node(name string) *specs.DeviceNode {
	n := &specs.DeviceNode{Path: name, Permissions: "rw"}
	if host := path.Join(g.devRoot(), name); host != name {
		n.HostPath = host
	}
	return n
}

// capability is the node of a capability. Where nobody has made it on the host
// yet, the container gets one all the same: its number says all.
func (g *Generator) capability(minor int) (*specs.DeviceNode, error) {
	n := g.node(fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor))
	if _, err := os.Stat(filepath.Join(g.devMount(), n.Path)); err == nil {
		return n, nil
	}
	major, err := g.major("nvidia-caps")
	if err != nil {
		return nil, fmt.Errorf("%s is not below %s, and %w", n.Path, g.devMount(), err)
	}
	n.HostPath, n.Type, n.Major, n.Minor = "", "c", major, int64(minor)
	return n, nil
}

// major is the number of a character device in proc_devices(5).
func (g *Generator) major(name string) (int64, error) {
	b, err := g.proc("proc/devices")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == name {
			return strconv.ParseInt(f[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("the kernel has no device %s: is the driver loaded?", name)
}

// capabilities are the minor numbers of capabilities.
func (g *Generator) capabilities() (map[string]int, error) {
	b, err := g.proc(minors)
	if err != nil {
		return nil, fmt.Errorf("the driver's list of MIG capabilities: %w", err)
	}
	out := map[string]int{}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 {
			if n, err := strconv.Atoi(f[1]); err == nil {
				out[f[0]] = n
			}
		}
	}
	return out, nil
}

// proc reads a file of procfs where the driver has its root, or in this
// process's own, which is the same kernel's.
func (g *Generator) proc(name string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(g.driverMount(), name))
	if errors.Is(err, fs.ErrNotExist) {
		b, err = os.ReadFile(filepath.Join("/", name))
	}
	return b, err
}
