package nvidia

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/sluice-gpu/sluice/driver/gpu/gputest"
)

const lib64 = "/usr/lib/x86_64-linux-gnu"

// driverRoot makes a folder that looks like an installed driver with n cards.
func driverRoot(t *testing.T, n int) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{lib64, "/usr/bin", "/dev"} {
		if err := os.MkdirAll(root+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, lib := range []string{"libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"} {
		if err := os.WriteFile(filepath.Join(root, lib64, lib+".so."+gputest.DriverVersion), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(root+"/usr/bin/nvidia-smi", nil, 0o755); err != nil {
		t.Fatal(err)
	}
	nodes := []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
	for i := range n {
		nodes = append(nodes, "nvidia"+string(rune('0'+i)))
	}
	for _, name := range nodes {
		// The numbers of /dev/null: only the kind of file matters.
		if err := unix.Mknod(root+"/dev/"+name, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
			t.Fatalf("making a device node, which needs root: %v", err)
		}
	}
	return root
}

func generator(root, mount string, cards int) *Generator {
	var models []int
	for i := range cards {
		models = append(models, i)
	}
	lib := gputest.New(gputest.T4, gputest.T4)
	lib.Devices = lib.Devices[:len(models)]
	g := &Generator{DriverRoot: root, DriverRootMount: mount, HookPath: "/plugin/bin/nvidia-cdi-hook", Logger: logr.Discard()}
	g.Forget(lib)
	return g
}

func find(mounts []*specs.Mount, containerPath string) *specs.Mount {
	for _, m := range mounts {
		if m.ContainerPath == containerPath {
			return m
		}
	}
	return nil
}

func TestTheDriverIsMountedFromTheHost(t *testing.T) {
	root := driverRoot(t, 2)
	g := generator(root, "", 2)
	common, err := g.Common()
	if err != nil {
		t.Fatal(err)
	}
	cuda := lib64 + "/libcuda.so." + gputest.DriverVersion
	if m := find(common.Mounts, cuda); m == nil || m.HostPath != root+cuda {
		t.Errorf("%s is %+v", cuda, m)
	}
	if !slices.Contains(common.Env, "NVIDIA_VISIBLE_DEVICES=void") {
		t.Errorf("env %v", common.Env)
	}
	var hooks []string
	for _, h := range common.Hooks {
		if h.Path != "/plugin/bin/nvidia-cdi-hook" {
			t.Errorf("hook at %s", h.Path)
		}
		hooks = append(hooks, strings.Join(h.Args, " "))
	}
	all := strings.Join(hooks, "\n")
	if !strings.Contains(all, "update-ldcache") || !strings.Contains(all, "create-symlinks") {
		t.Errorf("hooks:\n%s", all)
	}
	if strings.Contains(all, "enable-cuda-compat") {
		t.Errorf("a compatibility library of the image would be preferred to the limiter:\n%s", all)
	}
}

func TestACardIsOpenedByItsUUID(t *testing.T) {
	g := generator(driverRoot(t, 2), "", 2)
	for i := range 2 {
		edits, err := g.Card(gputest.UUID(i))
		if err != nil {
			t.Fatal(err)
		}
		want := "/dev/nvidia" + string(rune('0'+i))
		if len(edits.DeviceNodes) != 1 || edits.DeviceNodes[0].Path != want {
			t.Errorf("card %d: %+v, want %s", i, edits.DeviceNodes, want)
		}
	}
	if _, err := g.Card(gputest.UUID(7)); err == nil || !strings.Contains(err.Error(), gputest.UUID(7)) {
		t.Errorf("a card that is not there: %v", err)
	}
}

func TestPathsAreTheHostsWhereTheDriverIsMountedElsewhere(t *testing.T) {
	mount := driverRoot(t, 1)
	g := generator("/", mount, 1)
	common, err := g.Common()
	if err != nil {
		t.Fatal(err)
	}
	cuda := lib64 + "/libcuda.so." + gputest.DriverVersion
	if m := find(common.Mounts, cuda); m == nil || m.HostPath != cuda {
		t.Errorf("%s is %+v, want it from the host's %s", cuda, m, cuda)
	}
	card, err := g.Card(gputest.UUID(0))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range append(card.DeviceNodes, common.DeviceNodes...) {
		if strings.HasPrefix(d.HostPath, mount) || strings.HasPrefix(d.Path, mount) {
			t.Errorf("device node %+v is named as this process sees it", d)
		}
	}
	for _, m := range common.Mounts {
		if strings.HasPrefix(m.HostPath, mount) {
			t.Errorf("mount %+v is named as this process sees it", m)
		}
	}
}

func TestAnswersAreKeptUntilTheDriverChanges(t *testing.T) {
	root := driverRoot(t, 1)
	g := generator(root, "", 1)
	if _, err := g.Card(gputest.UUID(0)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(root + "/dev/nvidia0"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Card(gputest.UUID(0)); err != nil {
		t.Errorf("asked again: %v", err)
	}
	g.Forget(gputest.New(gputest.T4))
	if _, err := g.Card(gputest.UUID(0)); err == nil {
		t.Error("a card without a device node was described")
	}
	g.Forget(nil)
	if _, err := g.Common(); err == nil || !strings.Contains(err.Error(), "driver is not available") {
		t.Errorf("without a driver: %v", err)
	}
}
