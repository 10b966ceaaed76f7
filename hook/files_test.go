package hook

import (
	"fmt"
	"os/exec"
	"testing"
)

// TestNoBytesOfAShareBreakTheLimiter: what it reads of limit, grant and account
// may be anything, and the account may change under its hands. A limit is
// accepted only if all it says is in range.
func TestNoBytesOfAShareBreakTheLimiter(t *testing.T) {
	program := cc(t, "fuzz", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
		"test/fuzz_files.c", "src/files.c", "src/ledger.c", "src/lock.c", "-lpthread")
	for seed := range 4 {
		out, err := exec.Command(program, emptyShare(t, 1<<30), "20000", fmt.Sprint(seed)).CombinedOutput()
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, out)
		}
		var accepted, refused int
		if _, err := fmt.Sscanf(string(out), "accepted=%d refused=%d", &accepted, &refused); err != nil || accepted == 0 || refused == 0 {
			t.Errorf("seed %d: %q, %v: it tried only one side", seed, out, err)
		}
	}
}
