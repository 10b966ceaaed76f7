package fakegpu

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

var build = sync.OnceValues(func() (string, error) { return Build("") })

// install makes a node in a temporary folder.
func install(t *testing.T, n Node) *Installed {
	t.Helper()
	built, err := build()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	in, err := Install(filepath.Join(dir, "driver"), filepath.Join(dir, "fakegpu"), built, n)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func oneCard(model string) Node { return Node{Name: "node-1", Cards: []Card{{Model: model}}} }

// step is what cudaprobe prints of one step.
type step struct {
	Step, Result, During, Symbol, Name, UUID string
	Bytes, Free, Total, DeviceTotal          uint64
	Status, Devices, Kernels                 int
	QueuedMs, Ms, EventMs                    float64
	Graph                                    bool
}

func probeCommand(in *Installed, args ...string) *exec.Cmd {
	cmd := exec.Command(in.Program(Probe), args...)
	cmd.Env = in.Env()
	cmd.Stderr = os.Stderr
	return cmd
}

func parseSteps(t *testing.T, out []byte) []step {
	t.Helper()
	var steps []step
	for line := range bytes.Lines(out) {
		var s step
		if err := json.Unmarshal(line, &s); err != nil {
			t.Fatalf("cudaprobe printed %q: %v", line, err)
		}
		steps = append(steps, s)
	}
	return steps
}

// probe runs cudaprobe to its end, which must be a good one.
func probe(t *testing.T, in *Installed, args ...string) []step {
	t.Helper()
	out, err := probeCommand(in, args...).Output()
	if err != nil {
		t.Fatalf("cudaprobe %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return parseSteps(t, out)
}

// holder is a cudaprobe that has done its steps and waits.
type holder struct {
	cmd   *exec.Cmd
	steps []step
}

// hold runs the steps in a process that stays until it is killed.
func hold(t *testing.T, cmd *exec.Cmd) *holder {
	t.Helper()
	cmd.Args = append(cmd.Args, "hold")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &holder{cmd: cmd}
	t.Cleanup(h.kill)
	decoder := json.NewDecoder(pipe)
	for {
		var s step
		if err := decoder.Decode(&s); err != nil {
			t.Fatalf("%s ended before it held: %v", strings.Join(cmd.Args, " "), err)
		}
		if s.Step == "hold" {
			return h
		}
		h.steps = append(h.steps, s)
	}
}

func (h *holder) kill() {
	h.cmd.Process.Kill()
	h.cmd.Wait()
}

func usage(t *testing.T, in *Installed) []Usage {
	t.Helper()
	u, err := in.Usage()
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// eventually waits for something that others bring about, on a machine that may be busy.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	const patience = 2 * time.Minute
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain: %s", patience, what)
		}
	}
}

// share is each process's part, in percent, of the time that card 0 worked between two moments,
// counted from when all of them had run.
func share(t *testing.T, in *Installed, from, until time.Duration) map[int]float64 {
	t.Helper()
	runs, err := in.Log(0)
	if err != nil {
		t.Fatal(err)
	}
	first := map[int]uint64{}
	var start uint64
	for _, r := range runs {
		if _, seen := first[r.OwnPID]; !seen {
			first[r.OwnPID] = r.StartNs
			start = max(start, r.StartNs)
		}
	}
	lo, hi := start+uint64(from), start+uint64(until)
	busy, all := map[int]float64{}, 0.0
	for _, r := range runs {
		if a, b := max(r.StartNs, lo), min(r.EndNs, hi); a < b {
			busy[r.OwnPID] += float64(b - a)
			all += float64(b - a)
		}
	}
	for pid := range busy {
		busy[pid] *= 100 / all
	}
	return busy
}
