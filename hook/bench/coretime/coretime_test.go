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

func run(t *testing.T, e Experiment) Result {
	t.Helper()
	b, err := bed()
	if err != nil {
		t.Fatal(err)
	}
	r, err := b.Run(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	return r
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

func TestContendingProgramsAreHeldToTheirShares(t *testing.T) {
	for _, card := range []string{TimeSlice, FIFO} {
		t.Run(card, func(t *testing.T) {
			t.Parallel()
			r := run(t, Experiment{Card: card, Shares: []Share{
				{Percent: 30, Hard: true, Programs: [][]string{work("launch", "20ms,200us", "4s")}},
				{Percent: 70, Hard: true, Programs: [][]string{work("launch", "2ms", "4s")}},
			}})
			most(t, r, 0, 2*time.Second, 36)
			most(t, r, 1, 2*time.Second, 76)
			if r.Times[0].Throttled < 500*time.Millisecond {
				t.Errorf("throttled for %v", r.Times[0].Throttled)
			}
		})
	}
}

// TestEveryFormOfLaunchIsHeld: twelve ways to the same kernels, each in a share
// of 20 percent of a card of its own.
func TestEveryFormOfLaunchIsHeld(t *testing.T) {
	for _, how := range []string{"launch", "launchex", "coop", "graph"} {
		for _, way := range [][]string{nil, {"--per-thread"}, {"--via", "procaddress", "--per-thread"}} {
			t.Run(how+strings.Join(way, ""), func(t *testing.T) {
				t.Parallel()
				steps := append(append([]string{}, way...), how+":5ms*60=SUCCESS")
				r := run(t, Experiment{Card: TimeSlice, Shares: []Share{{Percent: 20, Hard: true, Programs: [][]string{steps}}}})
				var told struct{ Ms float64 }
				if err := json.Unmarshal([]byte(strings.SplitN(r.Outputs[0][0], "\n", 2)[0]), &told); err != nil {
					t.Fatalf("%v: %s", err, r.Outputs[0][0])
				}
				// 300 ms of the card in a fifth of its time; what the bucket held
				// at first and the last kernels are not waited for.
				if told.Ms < 1100 {
					t.Errorf("60 kernels of 5 ms in a fifth of a card took %.0f ms", told.Ms)
				}
			})
		}
	}
}

func TestACaptureNeverNoticesThatTimeIsMeasured(t *testing.T) {
	for _, mode := range []string{"global", "local", "relaxed"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			steps := []string{"capturing:" + mode + "*300=SUCCESS"}
			r := run(t, Experiment{Card: TimeSlice, Shares: []Share{{Percent: 40, Hard: true, Programs: [][]string{steps}}}})
			if !strings.Contains(r.Outputs[0][0], `"kernels":3,`) {
				t.Errorf("the graph has not the 3 kernels that were captured: %s", r.Outputs[0][0])
			}
			if r.Times[0].Throttled == 0 {
				t.Error("nothing was held meanwhile")
			}
		})
	}
}

// TestTheCardIsNotFloodedByOneShare: of long kernels as many as it likes, of
// the same kernel that was short until now, and of ones never seen.
func TestTheCardIsNotFloodedByOneShare(t *testing.T) {
	for name, flood := range map[string][]string{
		"never seen": work("launch", "20ms", "3s"),
		"once short": {"launch:20us*2000", "work:launch:20ms:3s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, Experiment{Card: FIFO, Shares: []Share{
				{Percent: 50, Programs: [][]string{flood}},
				{Percent: 50, Programs: [][]string{work("launch", "1ms", "4s")}},
			}})
			t.Logf("%s", r.Outputs[1][0])
			if got := r.Share(1, time.Second, r.Lasted()); got < 25 {
				t.Errorf("beside a flood the other had %.1f %% of the card", got)
			}
		})
	}
}
