package plugin

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-gpu/sluice/hook/account"
)

// lockSlot makes the share in dir look used, as a live process does.
func lockSlot(t *testing.T, dir string, slot int64) (release func()) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, account.AccountFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: slot, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	return func() { _ = f.Close() }
}

// D27
func TestAClaimWhoseProcessesRunIsNotReleased(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	c := n.instanceConfig()
	c.ReconcileInterval = 1 << 40
	d := n.startWith(c)
	old := n.claim("old", share{card: 0, memory: "60Gi"})
	d.mustPrepare(old)
	dirs, _ := filepath.Glob(n.path("plugin/shares/uid-old/uid-old-*"))
	release := lockSlot(t, dirs[0], 3)
	n.forget(old)
	gone, err := d.reconcile(t.Context(), nil)
	for range 3 {
		if err != nil {
			t.Fatal(err)
		}
		gone, err = d.reconcile(t.Context(), gone)
	}
	d.refused(n.claim("next", share{card: 0, memory: "60Gi"}), "team/old")
	release()
	if _, err := d.reconcile(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	d.mustPrepare(n.claim("later", share{card: 0, memory: "60Gi"}))
}

func TestSocketsOfKilledInstancesAreRemoved(t *testing.T) {
	n := newNode(t, a100)
	n.podUID = "new"
	n.mkdir("plugin")
	listen := func(name string) net.Listener {
		l, err := net.Listen("unix", n.path(name))
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	for _, name := range []string{"plugin/dra-dead.sock", "plugins_registry/gpu.sluice.dev-dead-reg.sock"} {
		_ = listen(name).Close()
	}
	living := []string{"plugin/dra-old.sock", "plugins_registry/gpu.sluice.dev-old-reg.sock", "plugins_registry/other.example.com-reg.sock"}
	for _, name := range living {
		listen(name)
	}
	n.start()
	for _, name := range []string{"plugin/dra-dead.sock", "plugins_registry/gpu.sluice.dev-dead-reg.sock"} {
		if _, err := os.Stat(n.path(name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	for _, name := range living {
		if _, err := os.Stat(n.path(name)); err != nil {
			t.Errorf("a living socket was removed: %v", err)
		}
	}
}

// D17
func TestALimiterThatContainersHaveMountedOutlivesItsVersion(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	c := n.instanceConfig()
	old := n.startWith(c)
	running := n.claim("running", share{card: 0, memory: "1Gi"})
	old.mustPrepare(running)
	oldPath := c.Enforcement.Libraries().CUDA
	old.stop()

	n.write("shim.so", "a newer limiter")
	c = n.instanceConfig()
	newPath := c.Enforcement.Libraries().CUDA
	c.Installed = []string{newPath}
	d := n.startWith(c)
	collected := func() { d.collect(t.Context()) }
	collected()
	for _, path := range []string{oldPath, newPath} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("removed while it is used: %v", err)
		}
	}
	d.unprepare(running)
	collected()
	if _, err := os.Stat(oldPath); err == nil {
		t.Error("the old version is kept for ever")
	}
	if _, err := os.Stat(newPath); err != nil {
		t.Errorf("the version in use was removed: %v", err)
	}
}
