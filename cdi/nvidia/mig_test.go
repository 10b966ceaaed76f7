package nvidia

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/sluice-gpu/sluice/driver/gpu/gputest"
)

// migNode is a driver root with two A100 cards, the second in MIG mode, and
// the files that the kernel module tells of capabilities.
func migNode(t *testing.T) (root string, lib *gputest.Library, g *Generator) {
	t.Helper()
	root = driverRoot(t, 2)
	lib = gputest.New(gpus.A100_SXM4_80GB, gpus.A100_SXM4_80GB)
	lib.Partition(1, true)
	for name, text := range map[string]string{
		"proc/driver/nvidia-caps/mig-minors": "config 1\nmonitor 2\ngpu1/gi0/access 138\ngpu1/gi0/ci0/access 139\ngpu1/gi1/access 147\ngpu1/gi1/ci0/access 148\n",
		"proc/devices":                       "Character devices:\n  1 mem\n195 nvidia\n238 nvidia-caps\n\nBlock devices:\n  8 sd\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	g = &Generator{DriverRoot: "/run/nvidia/driver", DriverRootMount: root, HookPath: "/hook", Logger: logr.Discard()}
	g.Forget(lib)
	return root, lib, g
}

func capNode(t *testing.T, root string, minor int) {
	t.Helper()
	dir := filepath.Join(root, "dev/nvidia-caps")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("nvidia-cap", minor)), nil, 0o666); err != nil {
		t.Fatal(err)
	}
}

func TestAMIGDeviceOpensItsInstancesAndNoOther(t *testing.T) {
	root, lib, g := migNode(t)
	lib.Make(1, nvml.GPU_INSTANCE_PROFILE_3_SLICE, 0)
	uuid := lib.Make(1, nvml.GPU_INSTANCE_PROFILE_3_SLICE, 4)
	capNode(t, root, 147)
	capNode(t, root, 148)
	edits, err := g.Card(uuid)
	if err != nil {
		t.Fatal(err)
	}
	want := []*specs.DeviceNode{
		{Path: "/dev/nvidia1", HostPath: "/run/nvidia/driver/dev/nvidia1", Permissions: "rw"},
		{Path: "/dev/nvidia-caps/nvidia-cap147", HostPath: "/run/nvidia/driver/dev/nvidia-caps/nvidia-cap147", Permissions: "rw"},
		{Path: "/dev/nvidia-caps/nvidia-cap148", HostPath: "/run/nvidia/driver/dev/nvidia-caps/nvidia-cap148", Permissions: "rw"},
	}
	if diff := cmp.Diff(want, edits.DeviceNodes); diff != "" {
		t.Error(diff)
	}
}

// The nodes of an instance that was just made may not be there: the numbers do.
func TestANodeThatNobodyHasMadeIsMadeInTheContainer(t *testing.T) {
	_, lib, g := migNode(t)
	edits, err := g.Card(lib.Make(1, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 0))
	if err != nil {
		t.Fatal(err)
	}
	want := []*specs.DeviceNode{
		{Path: "/dev/nvidia-caps/nvidia-cap138", Type: "c", Major: 238, Minor: 138, Permissions: "rw"},
		{Path: "/dev/nvidia-caps/nvidia-cap139", Type: "c", Major: 238, Minor: 139, Permissions: "rw"},
	}
	if diff := cmp.Diff(want, edits.DeviceNodes[1:]); diff != "" {
		t.Error(diff)
	}
}

func TestAMIGDeviceThatCannotBeOpenedIsRefused(t *testing.T) {
	_, lib, g := migNode(t)
	if _, err := g.Card("MIG-gone"); err == nil || !strings.Contains(err.Error(), "it was destroyed") {
		t.Errorf("a device that is not there: %v", err)
	}
	lib.Make(1, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 0)
	lib.Make(1, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 1)
	unlisted := lib.Make(1, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 2)
	if _, err := g.Card(unlisted); err == nil || !strings.Contains(err.Error(), "the driver lists no capability gpu1/gi2/access") {
		t.Errorf("an instance without a capability: %v", err)
	}
}

// An instance that is made in the place of another may have its UUID and other
// numbers: what opens it is asked each time.
func TestWhatOpensAMIGDeviceIsNotRemembered(t *testing.T) {
	root, lib, g := migNode(t)
	uuid := lib.Make(1, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 0)
	if _, err := g.Card(uuid); err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(root, minors)
	if err := os.WriteFile(list, []byte("gpu1/gi0/access 500\ngpu1/gi0/ci0/access 501\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	edits, err := g.Card(uuid)
	if err != nil || edits.DeviceNodes[1].Path != "/dev/nvidia-caps/nvidia-cap500" {
		t.Errorf("%+v, %v", edits.DeviceNodes, err)
	}
}
