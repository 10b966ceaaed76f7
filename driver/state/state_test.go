package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	dir := t.TempDir()
	s := &Store{Dir: dir, BootIDFile: filepath.Join(dir, "boot_id")}
	writeFile(t, s.BootIDFile, "boot-1\n")
	return s
}

func writeFile(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func add(uid string, memory int64) func(*Checkpoint) error {
	return func(c *Checkpoint) error {
		id := types.UID(uid)
		c.Put(Claim{UID: id, Namespace: "ns", Name: uid, Shares: []Share{{Device: "gpu-1", MemoryMi: memory, Cores: 10}}})
		return nil
	}
}

func memoryOf(c *Checkpoint, uid types.UID) int64 {
	claim, ok := c.Get(uid)
	if !ok {
		return -1
	}
	return claim.Shares[0].MemoryMi
}

func read(t *testing.T, s *Store) *Checkpoint {
	t.Helper()
	var out *Checkpoint
	if err := s.Update(func(c *Checkpoint) error { out = c.clone(); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWhatIsSavedIsReadBackByAnotherProcess(t *testing.T) {
	s := newStore(t)
	for _, f := range []func(*Checkpoint) error{add("a", 1), add("b", 2)} {
		if err := s.Update(f); err != nil {
			t.Fatal(err)
		}
	}
	other := &Store{Dir: s.Dir, BootIDFile: s.BootIDFile}
	if got := read(t, other); got.Len() != 2 || memoryOf(got, "b") != 2 {
		t.Errorf("read %+v", got)
	}
}

func TestAFailedUpdateSavesNothing(t *testing.T) {
	s := newStore(t)
	if err := s.Update(add("a", 1)); err != nil {
		t.Fatal(err)
	}
	want := errors.New("no")
	err := s.Update(func(c *Checkpoint) error { c.Remove("a"); return want })
	if !errors.Is(err, want) {
		t.Fatalf("got %v", err)
	}
	if read(t, s).Len() != 1 {
		t.Error("the claim is gone")
	}
}

// TestARebuildThatWasNotSavedIsDoneAgain: the process may die after it set the
// file aside and before it saved another.
func TestARebuildThatWasNotSavedIsDoneAgain(t *testing.T) {
	s := newStore(t)
	s.Rebuild = func(boot string) *Checkpoint {
		c := New(boot)
		_ = add("a", 1)(c)
		return c
	}
	writeFile(t, s.Path(), "damaged")
	died := errors.New("died")
	if err := s.Update(func(*Checkpoint) error { return died }); !errors.Is(err, died) {
		t.Fatal(err)
	}
	next := &Store{Dir: s.Dir, BootIDFile: s.BootIDFile, Rebuild: s.Rebuild}
	var found []Finding
	next.Report = func(f Finding) { found = append(found, f) }
	if got := read(t, next); got.Len() != 1 {
		t.Errorf("the next start knows of %v: the files of running containers would be swept", got)
	}
	if len(found) != 1 || found[0].Err == nil || found[0].Claims != 1 {
		t.Errorf("reported %+v", found)
	}
	found = nil
	next.Rebuild = func(string) *Checkpoint { t.Error("rebuilt though it was saved"); return New("boot-1") }
	if got := read(t, next); got.Len() != 1 || len(found) != 0 {
		t.Errorf("after it was saved: %v, reported %+v", got, found)
	}
}

func TestARebootVoidsEverything(t *testing.T) {
	s := newStore(t)
	if err := s.Update(add("a", 1)); err != nil {
		t.Fatal(err)
	}
	writeFile(t, s.BootIDFile, "boot-2\n")
	var found []Finding
	s.Report = func(f Finding) { found = append(found, f) }
	c := read(t, s)
	if c.Len() != 0 || c.BootID != "boot-2" {
		t.Errorf("after the reboot: %+v", c)
	}
	if len(found) != 1 || !found[0].Rebooted || found[0].Claims != 1 {
		t.Errorf("reported %+v", found)
	}
	found = nil
	read(t, s)
	if len(found) != 0 {
		t.Errorf("reported again: %+v", found)
	}
}

func TestWithoutABootIDNothingIsTrusted(t *testing.T) {
	s := newStore(t)
	for name, prepare := range map[string]func(){
		"missing": func() { _ = os.Remove(s.BootIDFile) },
		"empty":   func() { writeFile(t, s.BootIDFile, "\n") },
	} {
		prepare()
		err := s.Update(func(*Checkpoint) error { t.Error("called"); return nil })
		if err == nil || !strings.Contains(err.Error(), "boot id") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFieldsOfALaterProgramAreTolerated(t *testing.T) {
	data := `{"bootID":"b","colour":"blue","claims":{"a":{"uid":"a","namespace":"n","name":"x","mood":1,"shares":[{"device":"gpu-1","memoryMi":5,"later":true}]}}}`
	file := fmt.Sprintf(`{"version":1,"also":"new","checksum":"%s","data":%s}`, sum([]byte(data)), data)
	c, err := Decode([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	if m, _ := c.Held("gpu-1", ""); m != 5 {
		t.Errorf("%dMi held, want 5", m)
	}
}

func TestTheLastCopyOfALaterVersionIsReadAsFarAsItIsKnown(t *testing.T) {
	data := `{"bootID":"b","claims":{"a":{"uid":"a","owner":{"x":1},"shares":[{"device":"gpu-1","memoryMi":5,"tiles":[1,2]}]}}}`
	file := fmt.Sprintf(`{"version":7,"checksum":"%s","data":%s}`, sum([]byte(data)), data)
	if _, err := Decode([]byte(file)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a checkpoint of version 7 is taken for one of ours: %v", err)
	}
	c, err := Salvage([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	if m, _ := c.Held("gpu-1", ""); m != 5 {
		t.Errorf("%dMi held, want 5", m)
	}
	if _, err := Salvage([]byte(strings.Replace(file, `"memoryMi":5`, `"memoryMi":6`, 1))); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a damaged copy: %v", err)
	}
}

func TestDecodeSaysWhatIsWrong(t *testing.T) {
	good, err := Encode(New("b"))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ file, want string }{
		"empty":      {"", "empty"},
		"blank":      {" \n", "empty"},
		"cut":        {string(good[:len(good)-3]), "unexpected end"},
		"newer":      {strings.Replace(string(good), `"version":1`, `"version":9`, 1), "version 9, this program reads up to version 1"},
		"no version": {`{"data":{}}`, "version 0"},
		"changed":    {strings.Replace(string(good), `"bootID":"b"`, `"bootID":"c"`, 1), "checksum"},
	} {
		_, err := Decode([]byte(tc.file))
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q in it", name, err, tc.want)
		}
	}
}

func TestHeldCountsSharesOfOthersThatTakeSomething(t *testing.T) {
	c := New("b")
	c.Put(Claim{UID: "a", Namespace: "n", Name: "a", Shares: []Share{
		{Device: "gpu-1", MemoryMi: 10, Cores: 5}, {Device: "gpu-1", MemoryMi: 1}, {Device: "gpu-2", MemoryMi: 100},
	}})
	c.Put(Claim{UID: "b", Namespace: "n", Name: "b", Shares: []Share{{Device: "gpu-1", MemoryMi: 7, Cores: 7}}})
	c.Put(Claim{UID: "admin", Namespace: "n", Name: "z", Shares: []Share{{Device: "gpu-1", MemoryMi: 1000, Admin: true}}})
	if m, cores := c.Held("gpu-1", "b"); m != 11 || cores != 5 {
		t.Errorf("held %dMi %d cores", m, cores)
	}
	if got := c.Holders("gpu-1", ""); !cmp.Equal(got, []string{"n/a", "n/b"}) {
		t.Errorf("holders %v", got)
	}
}

func TestUpdatesOfManyProcessesTakeTurns(t *testing.T) {
	s := newStore(t)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			one := &Store{Dir: s.Dir, BootIDFile: s.BootIDFile} // as another process has it
			if err := one.Update(add(fmt.Sprint(i), 1)); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	if got := read(t, s).Len(); got != 50 {
		t.Errorf("%d claims, want 50", got)
	}
	left, _ := filepath.Glob(filepath.Join(s.Dir, ".*"))
	if len(left) > 0 {
		t.Errorf("temporary files left: %v", left)
	}
}

func TestEncodeAndDecodeAreInverse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := New(rapid.String().Draw(t, "boot"))
		for i := range rapid.IntRange(0, 4).Draw(t, "claims") {
			uid := types.UID(fmt.Sprintf("uid-%d", i))
			claim := Claim{UID: uid, Namespace: "n", Name: rapid.StringMatching(`[a-z]{1,8}`).Draw(t, "name")}
			for range rapid.IntRange(1, 3).Draw(t, "shares") {
				claim.Shares = append(claim.Shares, Share{
					Request: "r", Pool: "p", Device: rapid.StringMatching(`gpu-[0-9a-f]{8}`).Draw(t, "device"),
					ShareID: types.UID(rapid.StringMatching(`[a-z0-9]{0,4}`).Draw(t, "share")), Cards: []string{"GPU-1"},
					Admin: rapid.Bool().Draw(t, "admin"), MemoryMi: rapid.Int64Range(0, 1<<40).Draw(t, "memory"),
					Cores: rapid.Int64Range(0, 100).Draw(t, "cores"), Whole: rapid.Bool().Draw(t, "whole"), Limited: rapid.Bool().Draw(t, "limited"),
				})
			}
			c.set(claim)
		}
		b, err := Encode(c)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.Claims(), again.Claims()); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzDecode(f *testing.F) {
	good, _ := Encode(New("b"))
	f.Add(good)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Decode(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		if _, err := Encode(c); err != nil {
			t.Fatal(err)
		}
	})
}

// TestWhatAnotherProcessSavedIsSeenThoughThisOneRemembers: each store keeps
// what it saw, and both change the file in turn.
func TestWhatAnotherProcessSavedIsSeenThoughThisOneRemembers(t *testing.T) {
	s := newStore(t)
	other := &Store{Dir: s.Dir, BootIDFile: s.BootIDFile}
	for i := range 20 {
		for _, store := range []*Store{s, other} {
			// The same size each time, and the same inode again and again.
			if err := store.Update(add("claim", int64(100+i%2))); err != nil {
				t.Fatal(err)
			}
			for _, reader := range []*Store{s, other} {
				seen, err := reader.Look()
				if err != nil {
					t.Fatal(err)
				}
				if got := memoryOf(seen, "claim"); got != int64(100+i%2) {
					t.Fatalf("pass %d: %dMi", i, got)
				}
			}
		}
	}
}

// TestLookWaitsForNobodyAndRepairsNothing: it is for those who look often.
func TestLookWaitsForNobodyAndRepairsNothing(t *testing.T) {
	s := newStore(t)
	if c, err := s.Look(); err != nil || c.Len() != 0 {
		t.Fatalf("before anything was saved: %+v, %v", c, err)
	}
	if err := s.Update(add("a", 1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(func(*Checkpoint) error {
		c, err := s.Look()
		if err != nil || c.Len() != 1 {
			t.Errorf("during an update: %+v, %v", c, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	writeFile(t, s.BootIDFile, "boot-2\n")
	if c, err := s.Look(); err != nil || c.Len() != 0 || c.BootID != "boot-2" {
		t.Errorf("after a reboot: %+v, %v", c, err)
	}
	writeFile(t, s.Path(), "damaged")
	if _, err := s.Look(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("damaged: %v", err)
	}
	if left, _ := filepath.Glob(s.Path() + ".*"); len(left) != 0 {
		t.Errorf("it was set aside: %v", left)
	}
}
