package plugin

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/limit"
	"github.com/sluice-gpu/sluice/driver/state"
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

// mount makes process pid of the node have a file mounted, as the kernel shows it.
func (n *node) mount(pid int, file string) {
	n.write(fmt.Sprintf("proc/%d/mountinfo", pid), fmt.Sprintf(`1370 1201 0:214 / / rw,relatime master:500 - overlay overlay rw,lowerdir=/l
1395 1370 253:1 %s /somewhere rw,nosuid,nodev,noexec,relatime - ext4 /dev/vda1 rw
`, file))
}

// D27: a container that has not begun to use CUDA, or whose account is damaged,
// or that has no limit, will use the card all the same.
func TestAClaimWhoseContainersRunIsNotReleased(t *testing.T) {
	const plugin = "/kubelet/plugins/gpu.sluice.dev"
	for name, tc := range map[string]struct {
		share   share
		enforce bool
		mounted string
	}{
		"a slice":                    {share{card: 0, memory: "60Gi", id: "s"}, true, plugin + "/shares/uid-old/uid-old-" + device(0) + "-s/account"},
		"a whole card":               {whole(0), true, plugin + "/shares/uid-old/uid-old-x/limit"},
		"a slice, its files deleted": {share{card: 0, memory: "60Gi"}, true, plugin + "/shares/uid-old/uid-old-x/limit//deleted"},
		"a slice without a limit":    {share{card: 0, memory: "60Gi"}, false, plugin + "/dra-device-metadata/team_old/r0/metadata.json"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, a100)
			n.enforce = tc.enforce
			c := n.instanceConfig()
			c.ReconcileInterval = 1 << 40
			c.Proc = n.path("proc")
			n.mount(1, plugin+"/shares")
			n.mount(77, tc.mounted)
			n.mkdir("proc/self")
			n.mkdir("proc/78") // has ended
			d := n.startWith(c)
			old := n.claim("old", tc.share)
			d.mustPrepare(old)
			accounts, _ := filepath.Glob(n.path("plugin/shares/uid-old/*/account"))
			for _, a := range accounts {
				if err := os.Truncate(a, 0); err != nil { // by the tenant
					t.Fatal(err)
				}
			}
			n.forget(old)
			pass := func() func() {
				var gone map[types.UID]state.Claim
				return func() {
					var err error
					if gone, err = d.reconcile(t.Context(), gone); err != nil {
						t.Fatal(err)
					}
				}
			}()
			for range 3 {
				pass()
			}
			d.refused(n.claim("next", share{card: 0, memory: "60Gi"}), "team/old")
			if err := os.RemoveAll(n.path("proc/77")); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(n.path("proc"), n.path("hidden")); err != nil {
				t.Fatal(err)
			}
			pass()
			if d.checkpoint().Len() != 1 {
				t.Fatal("released though nobody could see who uses it")
			}
			if err := os.Rename(n.path("hidden"), n.path("proc")); err != nil {
				t.Fatal(err)
			}
			pass()
			if d.checkpoint().Len() != 0 {
				t.Error("kept though no container has its files")
			}
		})
	}
}

func TestATenantCannotFillTheDiskWithItsAccount(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	d := n.start()
	d.mustPrepare(n.claim("c", share{card: 0, memory: "1Gi"}))
	names, _ := filepath.Glob(n.path("plugin/shares/uid-c/*/account"))
	if len(names) != 1 {
		t.Fatalf("accounts %v", names)
	}
	dir := filepath.Dir(names[0])
	before, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	files := snapshot(t, n.path("plugin/shares"))
	defer lockSlot(t, dir, 3)()
	if err := os.Truncate(names[0], 1<<30); err != nil {
		t.Fatal(err)
	}
	d.trimAccounts(t.Context())
	after, err := os.ReadFile(names[0])
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the account has %d bytes, want the %d it had: %v", len(after), len(before), err)
	}
	if diff := cmp.Diff(files, snapshot(t, n.path("plugin/shares"))); diff != "" {
		t.Errorf("files that containers have mounted were replaced:\n%s", diff)
	}
	if u, err := account.Read(dir); err != nil || len(u.Processes) != 1 {
		t.Errorf("the process is not seen any more: %+v, %v", u, err)
	}
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
	oldPath := c.Backends[config.Limiter].(*limit.Limiter).Libraries().CUDA
	old.stop()

	n.write("shim.so", "a newer limiter")
	c = n.instanceConfig()
	newPath := c.Backends[config.Limiter].(*limit.Limiter).Libraries().CUDA
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
