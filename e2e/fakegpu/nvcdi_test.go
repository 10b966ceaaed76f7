package fakegpu

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
)

// quiet drops what nvcdi says about the many files that it does not find.
type quiet struct{}

func (quiet) Debugf(string, ...any)   {}
func (quiet) Errorf(string, ...any)   {}
func (quiet) Infof(string, ...any)    {}
func (quiet) Warningf(string, ...any) {}
func (quiet) Tracef(string, ...any)   {}

func TestNVCDIMakesASpecOfAnInstalledNode(t *testing.T) {
	in := install(t, Node{Name: "node-1", DriverVersion: "575.51.03", Cards: []Card{{Model: "A100-SXM4-80GB", Count: 2}}})
	lib := openNVML(t, in)
	cdi, err := nvcdi.New(
		nvcdi.WithLogger(quiet{}),
		nvcdi.WithMode("nvml"),
		nvcdi.WithNvmlLib(lib),
		nvcdi.WithDeviceLib(device.New(lib)),
		nvcdi.WithDriverRoot(in.DriverRoot),
		nvcdi.WithDevRoot(in.DriverRoot),
		nvcdi.WithNVIDIACDIHookPath("/usr/bin/nvidia-cdi-hook"),
		nvcdi.WithVendor("k8s.gpu.sluice.dev"),
		nvcdi.WithClass("gpu"),
	)
	if err != nil {
		t.Fatal(err)
	}
	common, err := cdi.GetCommonEdits()
	if err != nil {
		t.Fatal(err)
	}
	var mounts, nodes []string
	for _, m := range common.Mounts {
		mounts = append(mounts, m.ContainerPath)
		if strings.HasPrefix(m.ContainerPath, "/usr/") && !strings.HasPrefix(m.HostPath, in.DriverRoot) {
			t.Errorf("%s is mounted from %s", m.ContainerPath, m.HostPath)
		}
	}
	for _, n := range common.DeviceNodes {
		nodes = append(nodes, n.Path)
	}
	for _, lib := range []string{"libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so", "libnvidia-nvvm.so", "libcudadebugger.so"} {
		if want := "/usr/lib/x86_64-linux-gnu/" + lib + ".575.51.03"; !slices.Contains(mounts, want) {
			t.Errorf("no mount of %s in %q", want, mounts)
		}
	}
	if !slices.Contains(mounts, "/usr/bin/nvidia-smi") {
		t.Errorf("no mount of nvidia-smi in %q", mounts)
	}
	for _, want := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"} {
		if !slices.Contains(nodes, want) {
			t.Errorf("no %s in %q", want, nodes)
		}
	}
	cards, _ := in.Node.CardInfos()
	specs, err := cdi.GetDeviceSpecsByID(cards[1].UUID)
	if err != nil {
		t.Fatal(err)
	}
	if len(specs) == 0 || len(specs[0].ContainerEdits.DeviceNodes) == 0 || specs[0].ContainerEdits.DeviceNodes[0].Path != "/dev/nvidia1" {
		t.Errorf("specs of the second card: %+v", specs)
	}
	if host := specs[0].ContainerEdits.DeviceNodes[0].HostPath; host != filepath.Join(in.DevDir(), "nvidia1") {
		t.Errorf("its device node comes from %s", host)
	}
}
