package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/sluice-gpu/sluice/cdi"
	"github.com/sluice-gpu/sluice/driver/state"
)

// D3: what a process leaves that dies at any step of prepare or unprepare.
func TestADriverThatDiedHalfWayLeavesNothing(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	d := n.start()
	good := n.claim("good", share{card: 0, memory: "1Gi"})
	d.mustPrepare(good)
	half := n.claim("half", share{card: 0, memory: "2Gi"})
	d.mustPrepare(half)
	claim, _ := d.checkpoint().Get(half.UID)
	d.stop()

	all := snapshot(t, n.path("plugin/shares/uid-half"))
	all[n.path("cdi", cdi.FileName(string(half.UID)))] = ""
	for name := range all {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(b)
	}
	steps := map[string]func(){
		"prepare died with only the folder made": func() {
			n.removeClaim(half.UID)
			n.mkdir("plugin/shares/uid-half")
		},
		"prepare died after the share files": func() {
			n.removeClaim(half.UID)
			n.restore(all, func(name string) bool { return strings.HasPrefix(name, n.path("plugin")) })
		},
		"prepare died after the CDI spec and before the checkpoint": func() {
			n.removeClaim(half.UID)
			n.restore(all, func(string) bool { return true })
		},
		"unprepare died after the CDI spec was removed": func() {
			n.removeClaim(half.UID)
			n.restore(all, func(name string) bool { return strings.HasPrefix(name, n.path("plugin")) })
			n.addClaim(claim)
		},
		"unprepare died before the checkpoint": func() {
			n.removeClaim(half.UID)
			n.addClaim(claim)
		},
	}
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			step()
			d := n.start()
			defer d.stop()
			if _, prepared := d.checkpoint().Get(half.UID); !prepared {
				for _, file := range n.leftovers() {
					if strings.Contains(file, "uid-half") {
						t.Errorf("left: %s", file)
					}
				}
			}
			// Whatever the step, the kubelet's next call finds its way.
			d.mustPrepare(half)
			if now, _ := d.checkpoint().Get(half.UID); !d.files.there(now) {
				t.Error("prepared, and files are missing")
			}
			d.unprepare(half)
			for _, file := range n.leftovers() {
				if !strings.Contains(file, "good") {
					t.Errorf("left after unprepare: %s", file)
				}
			}
			if _, ok := d.checkpoint().Get(good.UID); !ok {
				t.Error("the other claim was lost")
			}
		})
	}
}

func TestHalfWrittenFilesOfAKilledDriverAreRemoved(t *testing.T) {
	n := newNode(t, a100)
	left := []string{"cdi/." + cdi.FileName("uid-half") + ".123", "plugin/.checkpoint.log.456", "plugin/.checkpoint.json.789", "plugin/.order.json.12"}
	others := []string{"cdi/.nvidia.yaml.789", "cdi/nvidia.yaml"}
	for _, name := range append(left, others...) {
		n.write(name, "{")
	}
	n.start()
	for _, name := range left {
		if _, err := os.Stat(n.path(name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	for _, name := range others {
		if _, err := os.Stat(n.path(name)); err != nil {
			t.Errorf("the file of somebody else: %v", err)
		}
	}
}

// removeClaim takes a claim out of the checkpoint and all its files away.
func (n *node) removeClaim(uid types.UID) {
	n.t.Helper()
	s := &state.Store{Dir: n.path("plugin"), BootIDFile: n.path("boot_id")}
	if err := s.Update(func(c *state.Checkpoint) error { c.Remove(uid); return nil }); err != nil {
		n.t.Fatal(err)
	}
	_ = os.RemoveAll(n.path("plugin/shares", string(uid)))
	_ = os.Remove(n.path("cdi", cdi.FileName(string(uid))))
}

func (n *node) addClaim(claim state.Claim) {
	n.t.Helper()
	s := &state.Store{Dir: n.path("plugin"), BootIDFile: n.path("boot_id")}
	if err := s.Update(func(c *state.Checkpoint) error { c.Put(claim); return nil }); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) restore(files map[string]string, which func(string) bool) {
	n.t.Helper()
	for name, content := range files {
		if which(name) {
			n.write(strings.TrimPrefix(name, n.dir+"/"), content)
		}
	}
}

// D7
func TestACheckpointThatCannotBeUsedIsSetAsideAndRebuilt(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"truncated":          func(b []byte) []byte { return b[:len(b)/2] },
		"empty":              func([]byte) []byte { return nil },
		"wrong checksum":     func(b []byte) []byte { return []byte(strings.Replace(string(b), "uid-kept", "uid-kepx", 1)) },
		"of a newer version": func(b []byte) []byte { return []byte(strings.Replace(string(b), "version 2", "version 3", 1)) },
		"not a checkpoint":   func([]byte) []byte { return []byte("hello") },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, a100)
			d := n.start()
			kept := n.claim("kept", share{card: 0, memory: "60Gi"})
			first := d.mustPrepare(kept)
			d.stop()
			path := n.path("plugin", "checkpoint.log")
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			damaged := damage(b)
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}

			d = n.start()
			aside, _ := filepath.Glob(path + ".unusable-*")
			if len(aside) != 1 {
				t.Fatalf("set aside: %v, want one file", aside)
			}
			if got, _ := os.ReadFile(aside[0]); string(got) != string(damaged) {
				t.Error("the file that was set aside was changed")
			}
			if memory, _ := d.checkpoint().Held(device(0), ""); memory != 60<<10 {
				t.Errorf("%dMi held after the rebuild, want 60Gi", memory)
			}
			d.refused(n.claim("next", share{card: 0, memory: "60Gi"}), "team/kept")
			if diff := cmp.Diff(cdiNames(first), cdiNames(d.mustPrepare(kept))); diff != "" {
				t.Errorf("other answer after the rebuild:\n%s", diff)
			}
			d.unprepare(kept)
			if left := n.leftovers(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// D7: everything that a later version wrote, its records too.
func TestADowngradeForgetsNothingThatRuns(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	c := n.instanceConfig()
	c.Proc = n.path("proc")
	n.mkdir("proc")
	d := n.startWith(c)
	kept, lost := n.claim("kept", share{card: 0, memory: "30Gi"}), n.claim("lost", share{card: 0, memory: "1Gi"})
	ended := n.claim("ended", share{card: 0, memory: "1Gi"})
	first := d.mustPrepare(kept)
	d.mustPrepare(lost, ended)
	d.stop()
	later := func(name, version, next string) {
		b, err := os.ReadFile(n.path(name))
		if err != nil {
			t.Fatal(err)
		}
		if err := state.WriteFile(n.path(name), []byte(strings.Replace(string(b), version, next, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	later("plugin/shares/uid-kept/claim.json", `"version":1`, `"version":2`)
	n.write("plugin/shares/uid-lost/claim.json", "in a layout of its own")
	n.write("plugin/shares/uid-ended/claim.json", "in a layout of its own")
	later("plugin/checkpoint.log", "version 2", "version 3")
	n.mount(5, "/kubelet/plugins/gpu.sluice.dev/shares/uid-lost/uid-lost-x/account")
	n.mount(6, "/kubelet/plugins/gpu.sluice.dev/dra-device-metadata/team_lost/r0/metadata.json")
	before := snapshot(t, n.dir)
	for name := range before {
		if !strings.Contains(name, "kept") && !strings.Contains(name, "lost") {
			delete(before, name)
		}
	}

	d = n.startWith(c)
	after := snapshot(t, n.dir)
	for name := range after {
		if strings.Contains(name, "ended") {
			t.Errorf("left of a claim that nobody uses: %s", name)
		}
		if _, ok := before[name]; !ok {
			delete(after, name)
		}
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("files that containers have mounted (-before +after):\n%s", diff)
	}
	if memory, _ := d.checkpoint().Held(device(0), ""); memory != 30<<10 {
		t.Errorf("%dMi held, want 30Gi", memory)
	}
	if diff := cmp.Diff(cdiNames(first), cdiNames(d.mustPrepare(kept))); diff != "" {
		t.Errorf("other answer after the downgrade:\n%s", diff)
	}
	d.unprepare(lost, kept)
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// D7: after an upgrade the file of the earlier version counts, and after a
// downgrade and another upgrade the one that was written last.
func TestTheCheckpointOfAnEarlierVersionIsTakenOver(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	d := n.start()
	kept := n.claim("kept", share{card: 0, memory: "60Gi"})
	first := d.mustPrepare(kept)
	cp := d.checkpoint()
	d.stop()
	b, err := state.Encode(cp)
	if err != nil {
		t.Fatal(err)
	}
	n.write("plugin/checkpoint.json", string(b))
	n.write("plugin/checkpoint.log", "what an upgrade before the downgrade left")

	d = n.start()
	d.refused(n.claim("next", share{card: 0, memory: "60Gi"}), "team/kept")
	if diff := cmp.Diff(cdiNames(first), cdiNames(d.mustPrepare(kept))); diff != "" {
		t.Errorf("other answer after the upgrade:\n%s", diff)
	}
	if aside, _ := filepath.Glob(n.path("plugin", "checkpoint*.unusable-*")); len(aside) > 0 {
		t.Errorf("set aside: %v", aside)
	}
	d.unprepare(kept)
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// D7: killed between setting a file aside and saving another.
func TestACheckpointThatIsNotThereIsRebuilt(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	d := n.start()
	kept := n.claim("kept", share{card: 0, memory: "60Gi"})
	first := d.mustPrepare(kept)
	d.stop()
	before := snapshot(t, n.path("plugin", "shares"))
	if err := os.Remove(n.path("plugin", "checkpoint.log")); err != nil {
		t.Fatal(err)
	}
	d = n.start()
	if diff := cmp.Diff(before, snapshot(t, n.path("plugin", "shares"))); diff != "" {
		t.Errorf("files that containers have mounted are others:\n%s", diff)
	}
	d.refused(n.claim("next", share{card: 0, memory: "60Gi"}), "team/kept")
	if diff := cmp.Diff(cdiNames(first), cdiNames(d.mustPrepare(kept))); diff != "" {
		t.Errorf("other answer after the rebuild:\n%s", diff)
	}
}

// D6
func TestAClaimDeletedWhileTheDriverWasDownIsReleased(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	d := n.start()
	gone := n.claim("gone", share{card: 0, memory: "1Gi"})
	replaced := n.claim("replaced", share{card: 0, memory: "1Gi"})
	freed := n.claim("freed", share{card: 0, memory: "1Gi"})
	lives := n.claim("lives", share{card: 0, memory: "1Gi"})
	d.mustPrepare(gone, replaced, freed, lives)
	d.stop()

	n.forget(gone)
	n.forget(replaced)
	again := n.claim("replaced", share{card: 0, memory: "2Gi"})
	again.UID = "uid-other"
	n.update(again)
	freed.Status.Allocation = nil
	n.update(freed)

	d = n.start()
	eventually(t, "release of three claims", func() bool { return d.checkpoint().Len() == 1 })
	if _, ok := d.checkpoint().Get(lives.UID); !ok {
		t.Error("the living claim was released")
	}
	for _, file := range n.leftovers() {
		if !strings.Contains(file, "lives") {
			t.Errorf("left: %s", file)
		}
	}
}

func TestAClaimThatIsGoneOnceIsNotReleasedAtOnce(t *testing.T) {
	n := newNode(t, a100)
	c := n.instanceConfig()
	c.ReconcileInterval = 1 << 40
	d := n.startWith(c)
	old := n.claim("old", share{card: 0, memory: "1Gi"})
	d.mustPrepare(old)
	n.forget(old)
	gone, err := d.reconcile(t.Context(), nil)
	if err != nil || len(gone) != 1 {
		t.Fatalf("first pass: %v, %v", gone, err)
	}
	if d.checkpoint().Len() != 1 {
		t.Fatal("released at the first pass: its containers may still be ending")
	}
	if gone, err = d.reconcile(t.Context(), gone); err != nil || len(gone) != 0 {
		t.Fatalf("second pass: %v, %v", gone, err)
	}
	if d.checkpoint().Len() != 0 {
		t.Error("not released at the second pass")
	}
}

// D17: another driver may have begun on the same files.
func TestADriverThatHasEndedTouchesNothingAnyMore(t *testing.T) {
	n := newNode(t, a100)
	var once sync.Once
	var prepared, ended atomic.Bool
	asking, stopping := make(chan struct{}), make(chan struct{})
	n.client.PrependReactor("get", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		if prepared.Load() {
			once.Do(func() { // a pass over the claims is under way
				close(asking)
				<-stopping
				time.Sleep(100 * time.Millisecond)
				ended.Store(true)
			})
		}
		return false, nil, nil
	})
	d := n.start()
	d.mustPrepare(n.claim("c", share{card: 0, memory: "1Gi"}))
	prepared.Store(true)
	<-asking
	close(stopping)
	d.stop()
	if !ended.Load() {
		t.Error("the driver ended before its pass over the claims did")
	}
}

// D17
func TestTwoInstancesServeOneNodeDuringAnUpgrade(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	n.podUID = "pod-old"
	old := n.start()
	a := n.claim("a", share{card: 0, memory: "60Gi"})
	old.mustPrepare(a)
	before := snapshot(t, n.path("plugin"))

	n.write("shim.so", "a newer limiter")
	n.podUID = "pod-new"
	newer := n.start()
	if diff := cmp.Diff(cdiNames(old.mustPrepare(a)), cdiNames(newer.mustPrepare(a))); diff != "" {
		t.Errorf("the instances answer differently:\n%s", diff)
	}
	newer.refused(n.claim("b", share{card: 0, memory: "60Gi"}), "team/a")
	old.stop()
	after := snapshot(t, n.path("plugin"))
	for name, inode := range before {
		if (strings.Contains(name, "/shares/") || strings.Contains(name, "/lib/")) && after[name] != inode {
			t.Errorf("%s was replaced under running containers", name)
		}
	}
	newer.unprepare(a)
	if got := newer.checkpoint().Len(); got != 0 {
		t.Errorf("%d claims left", got)
	}
}
