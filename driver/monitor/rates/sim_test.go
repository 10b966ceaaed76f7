package rates

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gpu/sluice/hook/account"
)

// What the limiter's gate and the node do together is tried here in virtual
// time: the gate is the real one in C, the card and the programs on it are
// hook/test/gate_sim.c, and the node is Keeper.

const hook = "../../../hook/"

var simulator = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sluice-rates-")
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "gate_sim")
	args := []string{"-std=c11", "-O2", "-fsanitize=undefined", "-fno-sanitize-recover=all", "-Wall", "-Wextra", "-Werror", "-I" + hook + "include", "-I" + hook + "src", "-o", program}
	// Opened here too, so that the go command sees when they change.
	for _, f := range []string{"test/gate_sim.c", "src/gate.c", "src/lock.c", "src/files.c"} {
		if _, err := os.ReadFile(hook + f); err != nil {
			return "", err
		}
		args = append(args, hook+f)
	}
	for _, f := range []string{"src/gate.h", "src/real.h", "src/cuda.def", "include/sluice_layout.h", "include/cuda_abi.h"} {
		if _, err := os.ReadFile(hook + f); err != nil {
			return "", err
		}
	}
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("gcc: %w\n%s", err, out)
	}
	return program, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if program, _ := simulator(); program != "" {
		_ = os.RemoveAll(filepath.Dir(program))
	}
	os.Exit(code)
}

const tickEvery = 100 * time.Millisecond

// scenario is a card, its shares and the programs in them.
type scenario struct {
	card    string // timeslice or fifo
	seconds float64
	shares  []Reading
	tenants []string // as gate_sim takes them
	// silent is when the node falls silent; 0: never.
	silent time.Duration
}

// result is what the card did.
type result struct {
	at   []time.Duration   // of the ticks, from the beginning
	real [][]time.Duration // by tick and share, since the beginning
	last []account.CoreTime
	end  [][3]int64 // of the tenants: launches, worst stall, most queued
}

// share is the part of the card's time, in percent, that a share had between
// two times.
func (r result) share(i int, from, to time.Duration) float64 {
	var a, b int
	for t, at := range r.at {
		if at <= from {
			a = t
		}
		if at <= to {
			b = t
		}
	}
	return 100 * float64(r.real[b][i]-r.real[a][i]) / float64(r.at[b]-r.at[a])
}

func simulate(t testing.TB, s scenario) result {
	t.Helper()
	program, err := simulator()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{s.card, fmt.Sprint(s.seconds), fmt.Sprint(tickEvery.Milliseconds()), fmt.Sprint(len(s.shares))}
	cmd := exec.Command(program, append(args, s.tenants...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()

	var r result
	var k Keeper
	var begun, looked time.Duration
	lines := bufio.NewReader(out)
	lookedReal := make([]time.Duration, len(s.shares))
	for {
		var word string
		var now time.Duration
		if _, err := fmt.Fscan(lines, &word); err != nil {
			t.Fatalf("the simulation ended early: %v", err)
		}
		if word == "end" {
			break
		}
		if _, err := fmt.Fscan(lines, &now); err != nil {
			t.Fatal(err)
		}
		if begun == 0 {
			begun, looked = now, now
		}
		readings, real := make([]Reading, len(s.shares)), make([]time.Duration, len(s.shares))
		for i, share := range s.shares {
			share.Name, share.Card, share.Known = fmt.Sprint(i), "card", true
			if _, err := fmt.Fscan(lines, &share.Time.Busy, &share.Time.Charged, &share.Time.Throttled, &share.Time.Asked, &real[i]); err != nil {
				t.Fatal(err)
			}
			readings[i] = share
			r.last = append(r.last[:min(i, len(r.last))], share.Time)
		}
		r.at, r.real = append(r.at, now-begun), append(r.real, real)
		grants := k.Tick(now, readings)
		if now-looked >= FactorEvery {
			used := map[string]float64{}
			for i, share := range readings { // NVML tells whole percents
				used[share.Name] = math.Round(100*float64(real[i]-lookedReal[i])/float64(now-looked)) / 100
			}
			k.Utilization(used)
			looked, lookedReal = now, real
		}
		for i := range s.shares {
			g := grants[fmt.Sprint(i)]
			gated := 0
			if g.Gated {
				gated = 1
			}
			line := fmt.Sprintf("%d %d %d %d\n", g.Rate.Rate, g.Fallback, gated, g.BusyFactor)
			if s.silent > 0 && now-begun >= s.silent {
				line = "-\n"
			}
			if _, err := io.WriteString(in, line); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range s.tenants {
		var e [3]int64
		if _, err := fmt.Fscan(lines, &e[0], &e[1], &e[2]); err != nil {
			t.Fatal(err)
		}
		r.end = append(r.end, e)
	}
	return r
}
