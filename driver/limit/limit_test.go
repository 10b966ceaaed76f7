package limit

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-gpu/sluice/cdi"
	"github.com/sluice-gpu/sluice/driver/enforce"
	"github.com/sluice-gpu/sluice/driver/state"
	"github.com/sluice-gpu/sluice/hook/account"
)

func write(t *testing.T, name, content string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestANewVersionNeverReplacesOneThatRuns(t *testing.T) {
	image, host := t.TempDir(), filepath.Join(t.TempDir(), "lib")
	lib := filepath.Join(image, "libsluice-cuda.so")
	write(t, lib, "one")
	first, err := InstallFile(lib, host)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := InstallFile(lib, host); err != nil || again != first {
		t.Errorf("same content went to %s and %s: %v", first, again, err)
	}
	write(t, lib, "two")
	second, err := InstallFile(lib, host)
	if err != nil || second == first {
		t.Fatalf("other content went to the same place %s: %v", second, err)
	}
	if b, _ := os.ReadFile(first); string(b) != "one" {
		t.Errorf("the first version is now %q", b)
	}
	write(t, second, "dam")
	if _, err := InstallFile(lib, host); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(second); string(b) != "two" {
		t.Errorf("a damaged copy was kept: %q", b)
	}
}

func TestInstallBringsWhatThereIs(t *testing.T) {
	image, host := t.TempDir(), t.TempDir()
	l, err := Install(Sources{CUDA: write(t, image+"/cuda.so", "c"), Guard: write(t, image+"/guard.so", "g")}, host)
	if err != nil {
		t.Fatal(err)
	}
	libs := l.Libraries()
	if libs.NVML != "" || libs.CUDA == "" || libs.Guard == "" {
		t.Errorf("installed %+v", libs)
	}
	if b, _ := os.ReadFile(libs.Preload); string(b) != cdi.Guard+"\n" {
		t.Errorf("preload file says %q", b)
	}
	if _, err := Install(Sources{}, host); err == nil {
		t.Error("a limiter without a library")
	}
	if _, err := Install(Sources{CUDA: image + "/missing"}, host); err == nil {
		t.Error("a library that is not in the image")
	}
}

func TestVersionsThatNobodyUsesAreRemoved(t *testing.T) {
	host := t.TempDir()
	for _, v := range []string{"a", "b", "c"} {
		if err := os.Mkdir(filepath.Join(host, v), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	gone, err := Collect(host, func(v string) bool { return v == "b" })
	if err != nil || !slices.Equal(gone, []string{"a", "c"}) {
		t.Errorf("removed %v, %v", gone, err)
	}
	if left, _ := os.ReadDir(host); len(left) != 1 || left[0].Name() != "b" {
		t.Errorf("left %v", left)
	}
	if gone, err := Collect(host+"/none", nil); err != nil || gone != nil {
		t.Errorf("a folder that is not there: %v, %v", gone, err)
	}
}

func TestTheLimitSaysWhatTheShareHolds(t *testing.T) {
	const card = "GPU-a0000000-1111-2222-3333-000000000000"
	l := &Limiter{}
	for name, tc := range map[string]struct {
		share state.Share
		want  account.Limit
		rate  uint32
	}{
		"slice without a guarantee": {state.Share{MemoryMi: 20000}, account.Limit{Memory: 20000 << 20, CorePolicy: account.CoresNone}, 1_000_000},
		"slice with half the time":  {state.Share{MemoryMi: 256, Cores: 50}, account.Limit{Memory: 256 << 20, CorePercent: 50, CorePolicy: account.CoresBurst}, 500_000},
		"whole card":                {state.Share{MemoryMi: 81152, Whole: true}, account.Limit{Whole: true}, 1_000_000},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "share")
			tc.share.Cards = []string{card}
			for range 2 { // the second time nothing changes
				if err := l.Files(dir, tc.share, 0); err != nil {
					t.Fatal(err)
				}
			}
			got, err := account.ReadLimit(dir)
			if err != nil {
				t.Fatal(err)
			}
			if tc.want.Card, err = account.ParseUUID(card); err != nil {
				t.Fatal(err)
			}
			if got != tc.want {
				t.Errorf("limit %+v, want %+v", got, tc.want)
			}
			if g, err := account.ReadGrant(dir); err != nil || g.CoreRate != tc.rate {
				t.Errorf("grant %+v, %v, want core rate %d", g, err, tc.rate)
			}
			if l.InUse(enforce.Share{Dir: dir}) {
				t.Error("in use by nobody")
			}
		})
	}
	if err := l.Files(t.TempDir(), state.Share{Device: "monitor", Cards: []string{"a", "b"}}, 0); err == nil {
		t.Error("a limit for two cards")
	}
}

// TestATenantCannotMakeItsShareLookUnused: the account is the tenant's to write.
func TestATenantCannotMakeItsShareLookUnused(t *testing.T) {
	const card = "GPU-a0000000-1111-2222-3333-000000000000"
	l := &Limiter{}
	dir := filepath.Join(t.TempDir(), "share")
	if l.InUse(enforce.Share{Dir: dir}) {
		t.Error("a share that is not there is in use")
	}
	if err := l.Files(dir, state.Share{MemoryMi: 256, Cards: []string{card}}, 0); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, account.AccountFile)
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: account.Slots - 1, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{0, 1 << 20} {
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		if !l.InUse(enforce.Share{Dir: dir}) {
			t.Errorf("a process runs, its account has %d bytes, and the share counts as unused", size)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if l.InUse(enforce.Share{Dir: dir}) {
		t.Error("in use after the process has ended")
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", name); err != nil {
		t.Fatal(err)
	}
	if !l.InUse(enforce.Share{Dir: dir}) {
		t.Error("what cannot be looked at counts as unused")
	}
}
