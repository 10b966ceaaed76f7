package state

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// TestTheLogTellsWhatWasDoneInAnyOrder: a story of changes, some of which fail,
// told to one store, read by others: one that reads along and one that begins at
// the end.
func TestTheLogTellsWhatWasDoneInAnyOrder(t *testing.T) {
	no := errors.New("no")
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		s := &Store{Dir: dir, BootIDFile: dir + "/boot_id"}
		writeFile(t, s.BootIDFile, "boot")
		along := &Store{Dir: dir, BootIDFile: s.BootIDFile}
		want := map[types.UID]int64{}
		for range rapid.IntRange(1, 30).Draw(rt, "updates") {
			fails := rapid.IntRange(0, 4).Draw(rt, "fails") == 0
			next := map[types.UID]int64{}
			for k, v := range want {
				next[k] = v
			}
			// Sometimes a claim is so large that the log is soon made anew.
			name := strings.Repeat("x", rapid.SampledFrom([]int{1, 1, 9000}).Draw(rt, "name"))
			who := rapid.SampledFrom([]*Store{s, along}).Draw(rt, "who")
			err := who.Update(func(c *Checkpoint) error {
				for range rapid.IntRange(0, 3).Draw(rt, "changes") {
					uid := types.UID(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(rt, "uid"))
					if rapid.Bool().Draw(rt, "drop") {
						c.Remove(uid)
						delete(next, uid)
						continue
					}
					memory := rapid.Int64Range(1, 9).Draw(rt, "memory")
					c.Put(Claim{UID: uid, Namespace: "ns", Name: name, Shares: []Share{{Device: "gpu-1", MemoryMi: memory}}})
					next[uid] = memory
				}
				if fails {
					return no
				}
				return nil
			})
			if fails != errors.Is(err, no) {
				rt.Fatal(err)
			}
			if !fails {
				want = next
			}
			for name, reader := range map[string]*Store{"who wrote": s, "who read along": along, "who begins": {Dir: dir, BootIDFile: s.BootIDFile}} {
				c, err := reader.Look()
				if err != nil {
					rt.Fatal(err)
				}
				got, sum := map[types.UID]int64{}, int64(0)
				for _, claim := range c.Claims() {
					got[claim.UID] = claim.Shares[0].MemoryMi
					sum += claim.Shares[0].MemoryMi
				}
				if diff := cmp.Diff(want, got); diff != "" {
					rt.Fatalf("%s (-want +got):\n%s", name, diff)
				}
				if held, _ := c.Held("gpu-1", ""); held != sum {
					rt.Fatalf("%s: %dMi held, the claims have %d", name, held, sum)
				}
			}
		}
	})
}

// TestAProcessMayDieAtEveryByteOfASave: until the head says that the new lines
// count, the old state does, and the next process goes on.
func TestAProcessMayDieAtEveryByteOfASave(t *testing.T) {
	s := newStore(t)
	if err := s.Update(add("a", 1)); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Update(add("b", 2)); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	for n := len(before); n <= len(after); n++ {
		writeFile(t, s.Path(), string(before)+string(after[len(before):n]))
		next := &Store{Dir: s.Dir, BootIDFile: s.BootIDFile, Report: func(f Finding) { t.Errorf("%d bytes: reported %+v", n, f) }}
		if c := read(t, next); c.Len() != 1 || memoryOf(c, "a") != 1 {
			t.Fatalf("%d bytes of the second save: %+v", n, c.Claims())
		}
		if err := next.Update(add("c", 3)); err != nil {
			t.Fatal(err)
		}
		if c := read(t, &Store{Dir: s.Dir, BootIDFile: s.BootIDFile}); c.Len() != 2 || memoryOf(c, "c") != 3 {
			t.Fatalf("%d bytes, then another claim: %+v", n, c.Claims())
		}
	}
}

// TestALogThatLostItsEndIsNotBelieved: also where it is cut between two lines.
func TestALogThatLostItsEndIsNotBelieved(t *testing.T) {
	s := newStore(t)
	for i := range 3 {
		if err := s.Update(add(fmt.Sprint("claim", i), 1)); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		writeFile(t, s.Path(), string(whole[:n]))
		if _, err := (&Store{Dir: s.Dir, BootIDFile: s.BootIDFile}).Look(); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%d of %d bytes: %v", n, len(whole), err)
		}
	}
}

func TestALogStaysAsLongAsItsClaimsNeed(t *testing.T) {
	s := newStore(t)
	for i := range 64 {
		if err := s.Update(add(fmt.Sprint("live", i), 1)); err != nil {
			t.Fatal(err)
		}
	}
	var largest int64
	for i := range 2000 {
		for _, f := range []func(*Checkpoint) error{add("x", int64(i)), func(c *Checkpoint) error { c.Remove("x"); return nil }} {
			if err := s.Update(f); err != nil {
				t.Fatal(err)
			}
		}
		info, err := os.Stat(s.Path())
		if err != nil {
			t.Fatal(err)
		}
		largest = max(largest, info.Size())
	}
	if largest > 2*compactFrom {
		t.Errorf("the log grew to %d bytes", largest)
	}
	if c := read(t, &Store{Dir: s.Dir, BootIDFile: s.BootIDFile}); c.Len() != 64 {
		t.Errorf("%d claims", c.Len())
	}
}

// TestACheckpointOfTheEarlierKindIsTakenOver: and one that an earlier program
// writes while this one runs, as in a rolling update or after a downgrade.
func TestACheckpointOfTheEarlierKindIsTakenOver(t *testing.T) {
	s := newStore(t)
	earlier := func(uid string) {
		c := New("boot-1")
		_ = add(uid, 1)(c)
		b, err := Encode(c)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, s.oldPath(), string(b))
	}
	for _, uid := range []string{"first", "second"} {
		earlier(uid)
		if c, err := s.Look(); err != nil || c.Len() != 1 || memoryOf(c, types.UID(uid)) != 1 {
			t.Fatalf("%s, as it was written: %v, %v", uid, c, err)
		}
		if c := read(t, s); c.Len() != 1 || memoryOf(c, types.UID(uid)) != 1 {
			t.Fatalf("%s: %+v", uid, c.Claims())
		}
		if _, err := os.Stat(s.oldPath()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the earlier file is still there: %v", uid, err)
		}
		if c := read(t, &Store{Dir: s.Dir, BootIDFile: s.BootIDFile}); c.Len() != 1 || memoryOf(c, types.UID(uid)) != 1 {
			t.Errorf("%s, read again: %+v", uid, c.Claims())
		}
	}
}

func TestAHeadSaysWhatIsWrong(t *testing.T) {
	good := string(head{id: "0123456789abcdef", bytes: 7}.encode())
	if len(good) != headSize {
		t.Fatalf("%d bytes", len(good))
	}
	for name, tc := range map[string]struct{ head, want string }{
		"empty":     {"", "empty"},
		"a record":  {`{"version":1}`, "does not begin"},
		"newer":     {strings.Replace(good, "version 2", "version 9", 1), "version 9, this program reads up to version 2"},
		"no number": {strings.Replace(good, "version 2", "version two", 1), `version is "two"`},
		"changed":   {strings.Replace(good, "bytes 000000000007", "bytes 000000000008", 1), "checksum"},
		"cut":       {good[:60], "does not begin"},
	} {
		if _, err := decodeHead([]byte(tc.head)); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q in it", name, err, tc.want)
		}
	}
}

func FuzzLog(f *testing.F) {
	c := New("boot")
	_ = add("a", 1)(c)
	lines, _ := encodeAll(c)
	f.Add(head{id: "1", bytes: int64(len(lines))}.encode(), lines)
	f.Add([]byte("sluice checkpoint, version 2, sum "), []byte("x {}\n"))
	f.Fuzz(func(t *testing.T, b, lines []byte) {
		if _, err := decodeHead(b); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		c := New("")
		if err := c.applyLines(lines); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		if _, err := encodeAll(c); err != nil {
			t.Fatal(err)
		}
	})
}
