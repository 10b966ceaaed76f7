package hook

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gpu/sluice/hook/bench/coretime"
)

// gpuCheck runs the parts of `make gpu-check` that need no CUDA compiler on a
// simulated card, and returns its report.
func gpuCheck(t *testing.T, memory uint64, parts string) (report string, failed bool) {
	t.Helper()
	n := newNode(t, 1, memory, 300*mi)
	fake, err := coretime.SimulatedDriver("../e2e/fakegpu")
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "report.md")
	cmd := exec.Command("python3", "gpucheck/check.py", "--only", parts, "--out", out,
		"--driver-lib", filepath.Join(fake, "libcuda.so."+driverVersion), "--nvml-lib", filepath.Join(fake, "libnvidia-ml.so."+driverVersion))
	cmd.Env = append(os.Environ(), "FAKEGPU_DIR="+n.dir, "FAKEGPU_DEV="+filepath.Join(n.container("c", []int{0}), "dev"),
		"PATH="+fake+":"+os.Getenv("PATH"))
	said, err := cmd.CombinedOutput()
	b, readErr := os.ReadFile(out)
	if readErr != nil {
		t.Fatalf("%v\n%s", readErr, said)
	}
	return string(b), err != nil
}

func TestTheCheckForRealCardsPassesOnASimulatedOne(t *testing.T) {
	report, failed := gpuCheck(t, 80*gi, "host,library,families,nvml_charges,reports,processes")
	if failed {
		t.Error("targets are missed")
	}
	for _, want := range []string{
		"| memory of a first context | 300 MiB |", "| works under a private name |", "| linear by cuGetProcAddress 12000 2: given",
		"| 64 x 16777216 array: taken, charged |", "| nvidia-smi inside: total, used | 8192, ", "| the whole share is to be had after five",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if strings.Contains(report, "MISSED") || strings.Contains(report, "| not run |") || strings.Contains(report, "| failed |") || t.Failed() {
		t.Error(report)
	}
}

// On a card of 2 GiB nobody gets 4: a check that cannot fail would tell nothing.
func TestTheCheckForRealCardsFailsWhereTheCapIsNotReached(t *testing.T) {
	report, failed := gpuCheck(t, 2*gi, "families")
	if !failed || !strings.Contains(report, "| 4096 -64 MiB, 2 | MISSED |") {
		t.Errorf("failed: %v\n%s", failed, report)
	}
}
