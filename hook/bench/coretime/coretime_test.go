package coretime

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

var bed = sync.OnceValues(func() (*Bed, error) {
	dir, err := os.MkdirTemp("", "sluice-coretime-")
	if err != nil {
		return nil, err
	}
	return Build(dir, "../..")
})

func TestMain(m *testing.M) {
	code := m.Run()
	if b, _ := bed(); b != nil {
		_ = os.RemoveAll(b.dir)
	}
	os.Exit(code)
}

func work(how, kernels, duration string) []string {
	return []string{fmt.Sprintf("work:%s:%s:%s=SUCCESS", how, kernels, duration)}
}

// most fails if a share had more than so much of the card. Less it can always
// have, when the machine that the test runs on is too busy to launch.
func most(t *testing.T, r Result, i int, from time.Duration, percent float64) {
	t.Helper()
	got := r.Share(i, from, r.Lasted())
	t.Logf("share %d had %.1f %% of the card from %v to %v; account %+v", i, got, from, r.Lasted(), r.Times[i])
	if got > percent {
		t.Errorf("share %d had %.1f %% of the card, want at most %.0f", i, got, percent)
	}
	if got < 1 {
		t.Errorf("share %d had next to nothing of the card", i)
	}
}

// together runs experiments at the same time: they mostly sleep.
func together(t *testing.T, experiments map[string]Experiment, check func(t *testing.T, r Result)) {
	t.Helper()
	results, errs := map[string]Result{}, map[string]error{}
	var mu sync.Mutex
	var all sync.WaitGroup
	b, err := bed()
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range experiments {
		all.Go(func() {
			r, err := b.Run(t.Context(), e)
			mu.Lock()
			defer mu.Unlock()
			results[name], errs[name] = r, err
		})
	}
	all.Wait()
	for name, r := range results {
		t.Run(name, func(t *testing.T) {
			if errs[name] != nil {
				t.Fatal(errs[name])
			}
			check(t, r)
		})
	}
}

// first reads what the first step of a program printed.
func first(t *testing.T, output string) (s struct{ Ms, StallMs float64 }) {
	t.Helper()
	if err := json.Unmarshal([]byte(strings.SplitN(output, "\n", 2)[0]), &s); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return s
}

func TestContendingProgramsAreHeldToTheirShares(t *testing.T) {
	all := map[string]Experiment{}
	for _, card := range []string{TimeSlice, FIFO} {
		all[card] = Experiment{Card: card, Shares: []Share{
			{Percent: 30, Hard: true, Programs: [][]string{work("launch", "20ms,200us", "4s")}},
			{Percent: 70, Hard: true, Programs: [][]string{work("launch", "2ms", "4s")}},
		}}
	}
	together(t, all, func(t *testing.T, r Result) {
		most(t, r, 0, 2*time.Second, 36)
		most(t, r, 1, 2*time.Second, 76)
		if r.Times[0].Throttled == 0 {
			t.Error("never throttled")
		}
	})
}

// TestEveryFormOfLaunchIsHeld: twelve ways to the same kernels, each in a share
// of 20 percent of a card of its own.
func TestEveryFormOfLaunchIsHeld(t *testing.T) {
	all := map[string]Experiment{}
	for _, how := range []string{"launch", "launchex", "coop", "graph"} {
		for _, way := range [][]string{nil, {"--per-thread"}, {"--via", "procaddress", "--per-thread"}} {
			steps := append(append([]string{}, way...), how+":5ms*40=SUCCESS")
			all[how+strings.Join(way, "")] = Experiment{Card: TimeSlice, Shares: []Share{{Percent: 20, Hard: true, Programs: [][]string{steps}}}}
		}
	}
	together(t, all, func(t *testing.T, r Result) {
		// 200 ms of the card in a fifth of its time; what the bucket held at
		// first and the last kernels are not waited for.
		if ms := first(t, r.Outputs[0][0]).Ms; ms < 700 {
			t.Errorf("40 kernels of 5 ms in a fifth of a card took %.0f ms", ms)
		}
	})
}

func TestACaptureNeverNoticesThatTimeIsMeasured(t *testing.T) {
	all := map[string]Experiment{}
	for _, mode := range []string{"global", "local", "relaxed"} {
		steps := []string{"capturing:" + mode + "*300=SUCCESS"}
		all[mode] = Experiment{Card: TimeSlice, Shares: []Share{{Percent: 40, Hard: true, Programs: [][]string{steps}}}}
	}
	together(t, all, func(t *testing.T, r Result) {
		if !strings.Contains(r.Outputs[0][0], `"kernels":3,`) {
			t.Errorf("the graph has not the 3 kernels that were captured: %s", r.Outputs[0][0])
		}
		if r.Times[0].Throttled == 0 {
			t.Error("nothing was held meanwhile")
		}
	})
}

// TestTheCardIsNotFloodedByOneShare: of long kernels as many as it likes, of
// the same kernel that was short until now, and of ones never seen.
func TestTheCardIsNotFloodedByOneShare(t *testing.T) {
	all := map[string]Experiment{}
	for name, flood := range map[string][]string{
		"never seen": work("launch", "20ms", "4s"),
		"once short": {"launch:20us*2000", "work:launch:20ms:4s"},
	} {
		all[name] = Experiment{Card: FIFO, Shares: []Share{
			{Percent: 50, Programs: [][]string{flood}},
			{Percent: 50, Programs: [][]string{work("launch", "1ms", "5s")}},
		}}
	}
	together(t, all, func(t *testing.T, r Result) {
		t.Logf("worst stall of the other: %.0f ms", first(t, r.Outputs[1][0]).StallMs)
		if got := r.Share(1, 0, r.Lasted()); got < 8 {
			t.Errorf("beside a flood the other had %.1f %% of the card in %v", got, r.Lasted())
		}
	})
}
