package hook

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gpu/sluice/hook/account"
)

// cc compiles C sources of this folder into a program in a temporary folder.
func cc(t testing.TB, name string, args ...string) string {
	t.Helper()
	if err := readSources(); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), name)
	all := append([]string{"-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-Isrc", "-o", program}, args...)
	if out, err := exec.Command("gcc", all...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %v: %v\n%s", all, err, out)
	}
	return program
}

// emptyShare makes a share as the node does and returns its folder.
func emptyShare(t testing.TB, memory uint64) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "share")
	if err := account.Create(dir, account.Limit{Card: account.UUID{1}, Memory: memory}, account.Grant{}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// stress runs the ledger under kills and returns what it counted.
func stress(t *testing.T, program string, processes, threads, deaths int) map[string]uint64 {
	t.Helper()
	file := filepath.Join(emptyShare(t, 1<<30), account.AccountFile)
	cmd := exec.Command(program, file, fmt.Sprint(processes), fmt.Sprint(threads), fmt.Sprint(deaths))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	t.Logf("%s", out)
	counted := map[string]uint64{}
	for _, f := range strings.Fields(string(out)) {
		var v uint64
		k, s, _ := strings.Cut(f, "=")
		if _, err := fmt.Sscan(s, &v); err != nil {
			t.Fatalf("%q in %q: %v", f, out, err)
		}
		counted[k] = v
	}
	return counted
}

// TestEveryByteComesBackWhenProcessesAreKilled kills processes with several
// threads between the steps of a charge, ten thousand times. The total is
// never above the cap, always the sum of what the slots say, and zero when the
// dead are collected.
func TestEveryByteComesBackWhenProcessesAreKilled(t *testing.T) {
	deaths := 10000
	if testing.Short() {
		deaths = 500
	}
	got := stress(t, cc(t, "stress", "test/ledger_stress.c", "src/lock.c", "src/files.c", "-lpthread"), 64, 4, deaths)
	if got["deaths"] != uint64(deaths) || got["odd"] != 0 {
		t.Errorf("%d deaths, %d of them not by our kill; want %d and 0", got["deaths"], got["odd"], deaths)
	}
	if got["charged"] == 0 || got["refused"] == 0 {
		t.Error("the run charged or refused nothing: it tested nothing")
	}
	if got["above"] != 0 || got["peak"] > got["cap"] {
		t.Errorf("the total was above the cap %d times, at most %d of %d", got["above"], got["peak"], got["cap"])
	}
	if got["total"] != got["sum"] {
		t.Errorf("total is %d, the slots hold %d", got["total"], got["sum"])
	}
	if got["after"] != 0 || got["stuck"] != 0 {
		t.Errorf("%d units and %d slots are lost after collection", got["after"], got["stuck"])
	}
}

// TestLedgerIsCleanUnderSanitizers: no undefined behaviour, no bad access, no
// data race between the threads of a process.
func TestLedgerIsCleanUnderSanitizers(t *testing.T) {
	for _, sanitizer := range []string{"address,undefined", "thread"} {
		program := cc(t, "stress", "-g", "-O1", "-fsanitize="+sanitizer, "-fno-sanitize-recover=all", "-Wno-error=tsan",
			"test/ledger_stress.c", "src/lock.c", "src/files.c", "-lpthread")
		got := stress(t, program, 6, 2, 60)
		if got["odd"] != 0 || got["after"] != 0 || got["total"] != got["sum"] {
			t.Errorf("%s: got %v", sanitizer, got)
		}
	}
}
