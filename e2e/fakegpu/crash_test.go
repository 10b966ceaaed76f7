package fakegpu

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Unlike random kills this one tries every store to shared memory there is.
func TestDeathAtEveryStoreLeavesCardsConsistent(t *testing.T) {
	for _, arbitration := range []Arbitration{FIFO, TimeSlice} {
		t.Run(string(arbitration), func(t *testing.T) {
			n := oneCard("T4")
			n.Arbitration = arbitration
			in := install(t, n)
			program := filepath.Join(t.TempDir(), "crash")
			cc := exec.Command("gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-fno-strict-aliasing",
				"-o", program, "testdata/crash/crash.c", "src/node.c", "src/mig.c")
			if out, err := cc.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			run := exec.Command(program)
			run.Env = in.Env()
			out, err := run.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			points, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(string(out)), " points"))
			if err != nil || points < 300 {
				t.Errorf("the program printed %q", out)
			}
			t.Logf("%d points", points)
		})
	}
}
