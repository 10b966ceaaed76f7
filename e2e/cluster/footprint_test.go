package cluster

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func base64Of(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// footprint is what a cluster can leave on the outer machine. Other clusters may come and go
// meanwhile; what is theirs by name is left out.
type footprint struct {
	Mounts, Netns, Links, Cgroups, Files []string
}

func readFootprint(t *testing.T, name string) footprint {
	t.Helper()
	var f footprint
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		point := strings.Fields(line)[4]
		if point != netnsDir && !ofOther(point, name) {
			f.Mounts = append(f.Mounts, point)
		}
	}
	f.Netns = list(t, netnsDir, name)
	f.Links = list(t, "/sys/class/net", name)
	groups, err := readCgroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range groups.everywhere() {
		for _, dir := range list(t, filepath.Join(root, cgroupParent), "") {
			if dir == name {
				f.Cgroups = append(f.Cgroups, filepath.Join(root, cgroupParent, dir))
			}
		}
	}
	for _, dir := range []string{"/opt", "/usr/libexec", "/etc", "/var/lib", "/var/log", "/run", "/dev"} {
		for _, file := range list(t, dir, name) {
			if path := filepath.Join(dir, file); path != "/var/lib/sluice-e2e" && path != netnsDir {
				f.Files = append(f.Files, path)
			}
		}
	}
	return f
}

// ofOther says whether a path belongs to a cluster other than the named.
func ofOther(path, name string) bool {
	return (strings.Contains(path, "/sluice.") && !strings.Contains(path, "/"+netnsPrefix(name))) ||
		(strings.Contains(path, "/sluice-e2e/") && !strings.Contains(path, "/sluice-e2e/"+name+"/"))
}

func list(t *testing.T, dir, name string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if name == "" || !ofOther(filepath.Join(dir, e.Name()), name) {
			names = append(names, e.Name())
		}
	}
	return names
}

// clusterProcesses are the processes on the cluster's machines: those in a machine's mount namespace,
// and those in a container, which the kubelet keeps in cgroups below the cluster's.
func clusterProcesses(t *testing.T, c *Cluster) []process {
	t.Helper()
	mounts := map[string]bool{}
	for _, name := range append(c.nodeNames(), ControlPlane) {
		p, err := c.machine(name).first()
		if err != nil {
			t.Fatal(err)
		}
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", p.PID))
		if err != nil {
			t.Fatal(err)
		}
		mounts[ns] = true
	}
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []process
	for _, dir := range entries {
		ns, _ := os.Readlink(filepath.Join(dir, "ns/mnt"))
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		if mounts[ns] || strings.Contains(string(groups), filepath.Join("/", cgroupParent, c.name)+"/") {
			var pid int
			if _, err := fmt.Sscanf(filepath.Base(dir), "%d", &pid); err != nil {
				t.Fatal(err)
			}
			if p, err := identify(pid); err == nil {
				found = append(found, p)
			}
		}
	}
	return found
}

func TestDownLeavesNothingAndOtherClustersAlone(t *testing.T) {
	other := sharedCluster(t)
	c, err := Open(Options{Name: "clt-down", Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	before := readFootprint(t, c.name)
	if err := c.Up(t.Context(), DefaultConfig(1)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Down(context.Background()) }) //nolint:errcheck // only if the test failed
	archive, err := agentArchive(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.LoadImage(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), []byte(pod("left", "node-1", "", "sleep"))); err != nil {
		t.Fatal(err)
	}
	waitPod(t, c, "left", "condition=Ready")
	processes := clusterProcesses(t, c)
	if len(processes) < 11 { // 2 first processes, 4 + 2 daemons, a shim, pause and the agent
		t.Errorf("%d processes of the cluster found, want at least 11", len(processes))
	}
	if during := readFootprint(t, c.name); len(during.Netns) != len(before.Netns)+3 || len(during.Cgroups) == 0 {
		t.Errorf("while the cluster is up: %d network namespaces more, want 3; cgroups %v", len(during.Netns)-len(before.Netns), during.Cgroups)
	}
	if err := c.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if p.alive() {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
			t.Errorf("process %d is still there: %q", p.PID, command)
		}
	}
	if diff := cmp.Diff(before, readFootprint(t, c.name)); diff != "" {
		t.Errorf("down left this (-before +after):\n%s", diff)
	}
	if _, err := os.Stat(c.dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there", c.dir)
	}
	if err := other.waitNodes(t.Context(), other.nodeNames()); err != nil {
		t.Errorf("the cluster beside it: %v", err)
	}
	if err := c.Down(t.Context()); err != nil {
		t.Errorf("down of a cluster that is not there: %v", err)
	}
}

func TestInterruptedUpIsRefusedAndThenRemovedByDown(t *testing.T) {
	c, err := Open(Options{Name: "clt-cut", Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	before := readFootprint(t, c.name)
	t.Cleanup(func() { c.Down(context.Background()) }) //nolint:errcheck // only if the test failed
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	go func() { // interrupts it when its machines are on
		defer cancel()
		for _, m := range []*machine{c.machine(ControlPlane), c.machine("node-1")} {
			_ = until(ctx, time.Millisecond, func(context.Context) error { _, err := m.first(); return err })
		}
	}()
	if err := c.Up(ctx, DefaultConfig(1)); err == nil || !strings.Contains(err.Error(), "remove it with `cluster --name clt-cut down`") {
		t.Fatalf("interrupted up: %v", err)
	}
	if len(clusterProcesses(t, c)) == 0 {
		t.Error("up was interrupted before it began")
	}
	if err := c.Up(t.Context(), DefaultConfig(1)); err == nil || !strings.Contains(err.Error(), "cluster --name clt-cut down") {
		t.Errorf("up on the remains: %v", err)
	}
	if err := c.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, readFootprint(t, c.name)); diff != "" {
		t.Errorf("down left this (-before +after):\n%s", diff)
	}
}

func TestComponentThatDiesAtStartIsReportedWithTheEndOfItsLog(t *testing.T) {
	c, err := Open(Options{Name: "clt-die"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Down(context.Background()) }) //nolint:errcheck // checked below
	config := DefaultConfig(1)
	config.FeatureGates = map[string]bool{"NoSuchGate": true}
	err = c.Up(t.Context(), config)
	if err == nil {
		t.Fatal("up with an unknown feature gate")
	}
	for _, want := range []string{"control-plane: apiserver has died", "unrecognized feature gate: NoSuchGate"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error without %q: %v", want, err)
		}
	}
	if err := c.Down(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOneCommandAtATimeChangesACluster(t *testing.T) {
	c, err := Open(Options{Name: "clt-lock"})
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := c.lock()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Down(t.Context()); err == nil || !strings.Contains(err.Error(), "another command is changing cluster clt-lock now") {
		t.Errorf("down beside another command: %v", err)
	}
	unlock()
	if err := c.Down(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestClusterThatIsNotUpCannotBeLoaded(t *testing.T) {
	if _, err := Load(Options{Name: "clt-none"}); err == nil || err.Error() != "cluster clt-none is not up" {
		t.Errorf("load: %v", err)
	}
	if _, err := Open(Options{Name: "No Such"}); err == nil || !slices.Contains(strings.Fields(err.Error()), "lower-case") {
		t.Errorf("open: %v", errors.Unwrap(err))
	}
}
