package hook

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestTheMapForgetsNothingAndKeepsNothing: against a plain array, swept in
// between, under the sanitizers; and by threads at once.
func TestTheMapForgetsNothingAndKeepsNothing(t *testing.T) {
	for _, sanitizer := range []string{"address,undefined", "thread"} {
		program := cc(t, "map", "-g", "-fsanitize="+sanitizer, "-fno-sanitize-recover=all",
			"test/map_check.c", "src/map.c", "src/lock.c", "-lpthread")
		runs := [][]string{{"threads", "8"}}
		if sanitizer != "thread" {
			runs = append(runs, []string{"random", "1"}, []string{"random", "2"}, []string{"random", "3"})
		}
		for _, args := range runs {
			cmd := exec.Command(program, args...)
			cmd.Env = []string{"ASAN_OPTIONS=detect_leaks=0"} // the map lives as long as the process
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s %v: %v\n%s", sanitizer, args, err, out)
			}
		}
	}
}

// TestTheCostOfACallDoesNotGrowWithWhatIsAlive: a thousand times as much alive
// may cost some cache misses, not a thousand times as much.
func TestTheCostOfACallDoesNotGrowWithWhatIsAlive(t *testing.T) {
	program := cc(t, "map", "test/map_check.c", "src/map.c", "src/lock.c", "-lpthread")
	cost := func(live string) float64 {
		out, err := exec.Command(program, "cost", live).Output()
		if err != nil {
			t.Fatal(err)
		}
		ns, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
		if err != nil {
			t.Fatal(err)
		}
		return ns
	}
	few, many := cost("100"), cost("100000")
	t.Logf("%.1f ns with 100 alive, %.1f ns with 100,000", few, many)
	if many > 20*few {
		t.Errorf("%.1f ns with 100 alive became %.1f ns with 100,000", few, many)
	}
}
