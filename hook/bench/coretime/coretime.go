// Package coretime runs programs in shares of a simulated card and tells which
// part of the card's time each share had, from the card's own log.
//
// The programs, the limiter before them and the simulated driver behind it are
// what they are in a cluster; the node's part, which grants rates, is package
// rates, fed with the shares' accounts and the card's counters. There is no
// cluster: a container is a folder.
package coretime

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sluice-gpu/sluice/driver/monitor/rates"
	"github.com/sluice-gpu/sluice/hook/account"
)

// Bed is a limiter built for the simulated driver.
type Bed struct {
	dir, driver, lib string
}

// Build makes a bed in a folder. hook is the limiter's source folder.
func Build(dir, hook string) (*Bed, error) {
	driver, err := SimulatedDriver(filepath.Join(hook, "../e2e/fakegpu"))
	if err != nil {
		return nil, err
	}
	b := &Bed{dir: dir, driver: driver, lib: filepath.Join(dir, "lib")}
	if err := os.MkdirAll(b.lib, 0o755); err != nil {
		return nil, err
	}
	build := command(filepath.Join(hook, "build.sh"), filepath.Join(dir, "out"))
	build.Env = append(os.Environ(), "SLUICE_SHARES=shares",
		"REAL_CUDA="+filepath.Join(driver, "libcuda.so."+Version), "REAL_NVML="+filepath.Join(driver, "libnvidia-ml.so."+Version))
	if err := build.run(); err != nil {
		return nil, err
	}
	return b, os.Symlink(filepath.Join(dir, "out", "libsluice-cuda.so"), filepath.Join(b.lib, "libcuda.so.1"))
}

// How a card is shared in time between processes.
const (
	TimeSlice = "timeslice" // turns of 2 ms
	FIFO      = "fifo"      // the oldest kernel runs to its end
)

// Share is a share of the card and what runs in it.
type Share struct {
	Percent uint32
	Hard    bool
	// Programs are the steps of one cudaprobe each.
	Programs [][]string
	// Later is when they start, after those of the others.
	Later time.Duration
}

// Experiment is a card with shares.
type Experiment struct {
	Card   string // TimeSlice or FIFO
	Shares []Share
	// Free leaves the limiter away, to compare with.
	Free bool
}

// Result is what the card did.
type Result struct {
	// Outputs are what the programs printed, by share and program.
	Outputs [][]string
	// Times are the shares' accounts at the end.
	Times []account.CoreTime
	runs  []stretch
	pids  []map[int]bool
	begun uint64 // when work of every share that does not start later had run, ns
	until uint64 // when the first program ended, ns
}

// Share is the part of the card's time, in percent, that a share had between
// two moments after all shares had begun.
func (r Result) Share(i int, from, to time.Duration) float64 {
	low, high := r.begun+uint64(from), r.begun+uint64(to)
	var busy uint64
	for _, run := range r.runs {
		if a, b := max(run.StartNs, low), min(run.EndNs, high); a < b && r.pids[i][run.OwnPID] {
			busy += b - a
		}
	}
	return 100 * float64(busy) / float64(high-low)
}

// Began is when the first program of a share first ran on the card.
func (r Result) Began(i int) (at time.Duration, ok bool) {
	for _, run := range r.runs { // in order of time
		if r.pids[i][run.OwnPID] {
			return time.Duration(int64(run.StartNs) - int64(r.begun)), true
		}
	}
	return 0, false
}

// Lasted is how long all shares ran together.
func (r Result) Lasted() time.Duration { return time.Duration(r.until - r.begun) }

// Run runs an experiment until all its programs have ended.
func (b *Bed) Run(ctx context.Context, e Experiment) (Result, error) {
	dir, err := os.MkdirTemp(b.dir, "node-")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir)
	c, err := newCard(filepath.Join(dir, "card"), b.driver, e.Card)
	if err != nil {
		return Result{}, err
	}
	r := &running{bed: b, card: c, e: e}
	defer r.kill()
	if err := r.start(dir); err != nil {
		return Result{}, err
	}
	return r.watch(ctx)
}

// running is an experiment under way.
type running struct {
	bed    *Bed
	card   card
	e      Experiment
	dirs   []string
	cmds   [][]*exec.Cmd
	output [][]*bytes.Buffer
	keeper rates.Keeper
	ended  chan error
	count  int
}

func (r *running) start(dir string) error {
	uuid, err := account.ParseUUID(cardUUID)
	if err != nil {
		return err
	}
	r.ended = make(chan error, 64)
	for i, s := range r.e.Shares {
		// A limit, a grant and an account, and a container that has them.
		name := fmt.Sprintf("share-%d", i)
		share, box := filepath.Join(dir, "node-shares", name), filepath.Join(dir, "container", name)
		limit := account.Limit{Card: uuid, Memory: 1 << 30, CorePercent: s.Percent, CorePolicy: account.CoresBurst}
		if s.Hard {
			limit.CorePolicy = account.CoresHard
		}
		first := account.Grant{CoreRate: s.Percent * 10_000, Fallback: s.Percent * 10_000, BusyFactor: 1_000_000, Gated: s.Percent > 0}
		if err := account.Create(share, limit, first); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(box, "shares"), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(share, filepath.Join(box, "shares", name)); err != nil {
			return err
		}
		r.dirs = append(r.dirs, share)
		var cmds []*exec.Cmd
		var outputs []*bytes.Buffer
		for _, steps := range s.Programs {
			cmd, out := exec.Command(filepath.Join(r.bed.driver, "cudaprobe"), steps...), &bytes.Buffer{}
			cmd.Dir, cmd.Env = box, r.card.env(r.bed.lib)
			if r.e.Free {
				cmd.Env = r.card.env(r.bed.driver)
			}
			cmd.Stdout, cmd.Stderr = out, out
			cmds, outputs = append(cmds, cmd), append(outputs, out)
		}
		r.cmds, r.output = append(r.cmds, cmds), append(r.output, outputs)
	}
	return nil
}

func (r *running) launch(i int) error {
	for j, cmd := range r.cmds[i] {
		if err := cmd.Start(); err != nil {
			return err
		}
		r.count++
		go func() {
			err := cmd.Wait()
			if err != nil {
				err = fmt.Errorf("%v: %w\n%s", cmd.Args, err, r.output[i][j])
			}
			r.ended <- err
		}()
	}
	return nil
}

func (r *running) kill() {
	for _, cmds := range r.cmds {
		for _, cmd := range cmds {
			if cmd.Process != nil {
				_ = cmd.Process.Kill()
			}
		}
	}
}

// watch is the node: it grants until the programs have ended.
func (r *running) watch(ctx context.Context) (Result, error) {
	begun, started, left := time.Now(), make([]bool, len(r.cmds)), 0
	var out Result
	var factors time.Time
	used := map[int]uint64{}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		for i, s := range r.e.Shares {
			if !started[i] && time.Since(begun) >= s.Later {
				before := r.count
				if err := r.launch(i); err != nil {
					return out, err
				}
				started[i], left = true, left+r.count-before
			}
		}
		if err := r.grant(time.Since(begun)); err != nil {
			return out, err
		}
		if time.Since(factors) >= rates.FactorEvery {
			if err := r.factors(used, time.Since(factors)); err != nil {
				return out, err
			}
			factors = time.Now()
		}
		select {
		case err := <-r.ended:
			if err != nil {
				return out, err
			}
			if out.until == 0 {
				_, now, err := r.card.usage()
				if err != nil {
					return out, err
				}
				out.until = now
			}
			if left--; left == 0 {
				return out, r.finish(&out)
			}
		case <-ctx.Done():
			return out, ctx.Err()
		case <-tick.C:
		}
	}
}

func (r *running) grant(now time.Duration) error {
	readings := make([]rates.Reading, len(r.dirs))
	for i, s := range r.e.Shares {
		t, err := account.ReadCoreTime(r.dirs[i])
		if err != nil {
			return err
		}
		readings[i] = rates.Reading{Name: r.dirs[i], Card: cardUUID, Guarantee: int64(s.Percent), Hard: s.Hard, Time: t, Known: true}
	}
	for dir, g := range r.keeper.Tick(now, readings) {
		next := account.Grant{CoreRate: g.Rate.Rate, Fallback: g.Fallback, Gated: g.Gated, BusyFactor: g.BusyFactor}
		if err := account.UpdateGrant(dir, next); err != nil {
			return err
		}
	}
	return nil
}

// factors tells the keeper what NVML would: whole percents of the last while.
func (r *running) factors(before map[int]uint64, passed time.Duration) error {
	busy, _, err := r.card.usage()
	if err != nil {
		return err
	}
	used := map[string]float64{}
	for i, cmds := range r.cmds {
		sum := 0.0
		for _, cmd := range cmds {
			if cmd.Process == nil {
				continue
			}
			pid := cmd.Process.Pid
			sum += float64(busy[pid]) - float64(before[pid])
			before[pid] = busy[pid]
		}
		used[r.dirs[i]] = max(math.Round(100*sum/float64(passed))/100, 0)
	}
	r.keeper.Utilization(used)
	return nil
}

func (r *running) finish(out *Result) error {
	var err error
	if out.runs, err = r.card.log(); err != nil {
		return err
	}
	first := map[int]uint64{}
	for _, run := range out.runs {
		if _, ok := first[run.OwnPID]; !ok {
			first[run.OwnPID] = run.StartNs
		}
	}
	for i, cmds := range r.cmds {
		pids, texts := map[int]bool{}, []string{}
		for j, cmd := range cmds {
			pids[cmd.Process.Pid] = true
			texts = append(texts, r.output[i][j].String())
			if r.e.Shares[i].Later == 0 {
				out.begun = max(out.begun, first[cmd.Process.Pid])
			}
		}
		out.pids, out.Outputs = append(out.pids, pids), append(out.Outputs, texts)
		t, err := account.ReadCoreTime(r.dirs[i])
		if err != nil {
			return err
		}
		out.Times = append(out.Times, t)
	}
	return nil
}
