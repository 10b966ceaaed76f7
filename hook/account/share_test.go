package account

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

const card = "GPU-5c2f1a90-0001-0002-0003-0123456789ab"

func aLimit(t testing.TB) Limit {
	t.Helper()
	u, err := ParseUUID(card)
	if err != nil {
		t.Fatal(err)
	}
	return Limit{Card: u, Memory: 20 << 30, CorePercent: 30, CorePolicy: CoresHard}
}

func aShare(t testing.TB) (string, Limit) {
	t.Helper()
	dir, l := filepath.Join(t.TempDir(), "share"), aLimit(t)
	if err := Create(dir, l, Grant{ContextOverhead: 300 << 20}); err != nil {
		t.Fatal(err)
	}
	return dir, l
}

func inode(t *testing.T, name string) uint64 {
	t.Helper()
	info, err := os.Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

func TestCreateTwiceKeepsEveryInodeAndTheAccount(t *testing.T) {
	dir, l := aShare(t)
	before := map[string]uint64{}
	for _, n := range []string{LimitFile, GrantFile, AccountFile} {
		before[n] = inode(t, filepath.Join(dir, n))
	}
	f, err := os.OpenFile(filepath.Join(dir, AccountFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{7}, accountOffPeak); err != nil {
		t.Fatal(err)
	}
	if err := Create(dir, l, Grant{ContextOverhead: 1}); err != nil {
		t.Fatal(err)
	}
	for n, ino := range before {
		if got := inode(t, filepath.Join(dir, n)); got != ino {
			t.Errorf("%s: inode %d became %d", n, ino, got)
		}
	}
	if u, err := Read(dir); err != nil || u.Peak != 7*Unit {
		t.Errorf("account was not kept: peak %d, %v", u.Peak, err)
	}
	if g, err := ReadGrant(dir); err != nil || g.ContextOverhead != 300<<20 {
		t.Errorf("grant was not kept: %+v, %v", g, err)
	}
}

func TestCreateRefusesAnotherLimit(t *testing.T) {
	dir, l := aShare(t)
	l.Memory += 1 << 20
	if err := Create(dir, l, Grant{}); !errors.Is(err, ErrOtherLimit) {
		t.Fatalf("got %v, want ErrOtherLimit", err)
	}
}

func TestFilesAreReadableByAllAndOnlyTheAccountIsWritable(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	dir, _ := aShare(t)
	for name, want := range map[string]fs.FileMode{LimitFile: 0o644, GrantFile: 0o644, AccountFile: 0o666} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", name, info.Mode(), want)
		}
		if info.Size() > 64<<10 {
			t.Errorf("%s has %d bytes, want at most 64 KiB", name, info.Size())
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("folder holds %v, %v; want the three files", entries, err)
	}
}

func TestCreateGoesOnAfterACrashBetweenAnyTwoSteps(t *testing.T) {
	l := aLimit(t)
	steps := []func(dir string) error{
		func(dir string) error { return os.WriteFile(filepath.Join(dir, ".limit.new"), []byte("half"), 0o600) },
		func(dir string) error { return ensure(dir, LimitFile, nodeMode, l.encode()) },
		func(dir string) error { return os.WriteFile(filepath.Join(dir, ".account.new"), nil, 0o600) },
		func(dir string) error { return ensure(dir, GrantFile, nodeMode, Grant{}.encode(0)) },
	}
	for n := range len(steps) + 1 {
		dir := t.TempDir()
		for _, step := range steps[:n] {
			if err := step(dir); err != nil {
				t.Fatal(err)
			}
		}
		if err := Create(dir, l, Grant{}); err != nil {
			t.Errorf("after %d steps: %v", n, err)
		}
		if _, err := Read(dir); err != nil {
			t.Errorf("after %d steps: %v", n, err)
		}
	}
}

func TestRemoveTakesAllAndCanBeRepeated(t *testing.T) {
	dir, _ := aShare(t)
	for range 2 {
		if err := Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("folder is still there: %v", err)
	}
}

func TestLimitsThatTheFilesCannotCarryAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Limit){
		"no card":             func(l *Limit) { l.Card = UUID{} },
		"no memory":           func(l *Limit) { l.Memory = 0 },
		"less than a unit":    func(l *Limit) { l.Memory = Unit - 1 },
		"more than the word":  func(l *Limit) { l.Memory = MaxMemory + 1 },
		"whole with memory":   func(l *Limit) { l.Whole = true },
		"more than all cores": func(l *Limit) { l.CorePercent = 101 },
		"unknown policy":      func(l *Limit) { l.CorePolicy = 3 },
	} {
		l := aLimit(t)
		change(&l)
		if err := Create(filepath.Join(t.TempDir(), "s"), l, Grant{}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestParseUUIDTakesWhatNVMLPrintsAndNothingElse(t *testing.T) {
	for _, s := range []string{card, "MIG-5c2f1a90-0001-0002-0003-0123456789ab", "5c2f1a90-0001-0002-0003-0123456789ab"} {
		u, err := ParseUUID(s)
		if err != nil || u.String() != "5c2f1a90-0001-0002-0003-0123456789ab" {
			t.Errorf("%q: %v, %v", s, u, err)
		}
	}
	for _, s := range []string{"", "GPU-", "GPU-5c2f1a90", card + "0", "GPU-5c2f1a90-0001-0002-0003-0123456789ag", "MIG-GPU-5c2f1a90-0001-0002-0003-0123456789ab/1/0"} {
		if _, err := ParseUUID(s); err == nil {
			t.Errorf("%q: accepted", s)
		}
	}
}

func TestGrantIsRewrittenInPlaceUnderItsSequence(t *testing.T) {
	dir, _ := aShare(t)
	name := filepath.Join(dir, GrantFile)
	ino := inode(t, name)
	for i := range uint32(5) {
		if err := UpdateGrant(dir, Grant{ContextOverhead: uint64(i), CoreRate: i, BusyFactor: 1e6}); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		g, seq, err := decodeGrant(b)
		if err != nil || seq != 2*(i+1) || g.CoreRate != i || g.Heartbeat == 0 {
			t.Fatalf("write %d: %+v, sequence %d, %v", i, g, seq, err)
		}
	}
	if got := inode(t, name); got != ino {
		t.Errorf("inode %d became %d", ino, got)
	}
}

func TestGrantOfADeadWriterIsMendedByTheNextWrite(t *testing.T) {
	dir, _ := aShare(t)
	f, err := os.OpenFile(filepath.Join(dir, GrantFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{1}, grantOffSequence); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadGrant(dir); err == nil {
		t.Fatal("a grant that is being written was believed")
	}
	if err := UpdateGrant(dir, Grant{CoreRate: 5}); err != nil {
		t.Fatal(err)
	}
	if g, err := ReadGrant(dir); err != nil || g.CoreRate != 5 {
		t.Fatalf("%+v, %v", g, err)
	}
}

// lockSlot takes the lock of a slot as a live process would.
func lockSlot(t *testing.T, dir string, slot int64) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, AccountFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: slot, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestReadTellsLiveProcessesFromDeadOnes(t *testing.T) {
	dir, _ := aShare(t)
	live := []int64{0, 3, 4, 500, Slots - 1}
	f, err := os.OpenFile(filepath.Join(dir, AccountFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	put := func(slot int64, units uint64) {
		var b [slotSize]byte
		le.PutUint64(b[slotOffApplied:], 1)
		le.PutUint64(b[slotOffRecord:], 1<<20) // not the valid one
		le.PutUint64(b[slotOffRecord+8:], units)
		le.PutUint32(b[slotOffPID:], uint32(slot)+100)
		if _, err := f.WriteAt(b[:], accountOffSlot+slot*slotSize); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range live {
		lockSlot(t, dir, s)
		put(s, 10)
	}
	put(7, 90)
	u, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if u.Memory != 50*Unit || u.Dead != 90*Unit || len(u.Processes) != len(live) {
		t.Fatalf("got %+v", u)
	}
	for i, s := range live {
		p := u.Processes[i]
		if int64(p.Slot) != s || p.PID != uint32(s)+100 || p.Memory != 10*Unit {
			t.Errorf("process %d: %+v", i, p)
		}
	}
}

// TestADamagedAccountHarmsOnlyItsShare is what a hostile tenant can do to the
// file that it may write.
func TestADamagedAccountHarmsOnlyItsShare(t *testing.T) {
	ruin := map[string]func(name string) error{
		"truncated":     func(n string) error { return os.Truncate(n, 100) },
		"emptied":       func(n string) error { return os.Truncate(n, 0) },
		"grown":         func(n string) error { return os.Truncate(n, 1<<40) },
		"filled":        func(n string) error { return overwrite(n, bytes.Repeat([]byte{0xff}, accountSize)) },
		"other version": func(n string) error { return overwrite(n, append(emptyAccount()[:8], 9)) },
	}
	for name, f := range ruin {
		t.Run(name, func(t *testing.T) {
			dir, l := aShare(t)
			account := filepath.Join(dir, AccountFile)
			ino := inode(t, account)
			if err := f(account); err != nil {
				t.Fatal(err)
			}
			if _, err := Read(dir); err == nil {
				t.Error("a damaged account was believed")
			}
			if err := Create(dir, l, Grant{}); err != nil {
				t.Fatalf("the next preparation fails: %v", err)
			}
			if _, err := Read(dir); err != nil {
				t.Errorf("not mended: %v", err)
			}
			if got := inode(t, account); got != ino {
				t.Errorf("inode %d became %d", ino, got)
			}
		})
	}
}

func overwrite(name string, b []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

func TestReadFollowsNoLinkAndWaitsForNoPipe(t *testing.T) {
	for name, put := range map[string]func(string) error{
		"link": func(n string) error { return os.Symlink("/etc/passwd", n) },
		"pipe": func(n string) error { return syscall.Mkfifo(n, 0o666) },
		"none": func(string) error { return nil },
	} {
		dir, _ := aShare(t)
		account := filepath.Join(dir, AccountFile)
		if err := os.Remove(account); err != nil {
			t.Fatal(err)
		}
		if err := put(account); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "account") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLimitsAndGrantsSurviveTheirFiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limit{
			CorePercent: rapid.Uint32Range(0, 100).Draw(t, "percent"),
			CorePolicy:  CorePolicy(rapid.Uint32Range(0, 2).Draw(t, "policy")),
			Whole:       rapid.Bool().Draw(t, "whole"),
		}
		copy(l.Card[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "card"))
		l.Card[0] |= 1
		if !l.Whole {
			l.Memory = rapid.Uint64Range(1, maxUnits).Draw(t, "units") * Unit
		}
		if got, err := decodeLimit(l.encode()); err != nil || got != l {
			t.Fatalf("%+v became %+v, %v", l, got, err)
		}
		g := Grant{
			ContextOverhead: rapid.Uint64().Draw(t, "overhead"),
			CoreRate:        rapid.Uint32().Draw(t, "rate"),
			BusyFactor:      rapid.Uint32().Draw(t, "factor"),
			Gated:           rapid.Bool().Draw(t, "gated"),
			Fallback:        rapid.Uint32().Draw(t, "fallback"),
		}
		seq := rapid.Uint32().Draw(t, "sequence")
		if got, s, err := decodeGrant(g.encode(seq)); err != nil || got != g || s != seq {
			t.Fatalf("%+v, %d became %+v, %d, %v", g, seq, got, s, err)
		}
	})
}
