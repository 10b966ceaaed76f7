package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-gpu/sluice/hook/bench/coretime"
)

// The shares of a card's time that programs get on the simulated card, in real
// time: on a busy machine they cannot launch fast enough, and get less.

func program(kernels, lasts string) [][]string {
	return [][]string{{"work:launch:" + kernels + ":" + lasts}}
}

// mixed are kernels from 20 us to 20 ms, in turn.
const mixed = "20us,20us,20us,20ms,200us,200us,2ms,20us,5ms"

func cores(b *bed) error {
	src, err := sourceFolder()
	if err != nil {
		return err
	}
	bed, err := coretime.Build(filepath.Join(b.dir, "coretime"), src)
	if err != nil {
		return err
	}
	for _, f := range []func(*coretime.Bed) error{contention, alone, sleeper} {
		if err := f(bed); err != nil {
			return err
		}
	}
	return nil
}

// stall is the longest that a launch of a program took, in milliseconds.
func stall(output string) float64 {
	var told struct{ StallMs float64 }
	if err := json.Unmarshal([]byte(strings.SplitN(output, "\n", 2)[0]), &told); err != nil {
		return -1
	}
	return told.StallMs
}

func contention(bed *coretime.Bed) error {
	for _, card := range []string{coretime.TimeSlice, coretime.FIFO} {
		for _, c := range []struct {
			name     string
			percents []uint32
			kernels  []string
		}{
			{"30_70_5ms", []uint32{30, 70}, []string{"5ms", "5ms"}},
			{"30_70_20ms_and_200us", []uint32{30, 70}, []string{"20ms", "200us"}},
			{"10_90_1ms_and_mixed", []uint32{10, 90}, []string{"1ms", mixed}},
			{"50_50_20us_and_20ms", []uint32{50, 50}, []string{"20us", "20ms"}},
			{"20_30_50_mixed_1ms_20ms", []uint32{20, 30, 50}, []string{mixed, "1ms", "20ms"}},
			{"30_70_100ms_and_1ms", []uint32{30, 70}, []string{"100ms", "1ms"}},
		} {
			e := coretime.Experiment{Card: card}
			for i, p := range c.percents {
				e.Shares = append(e.Shares, coretime.Share{Percent: p, Programs: program(c.kernels[i], "8s")})
			}
			r, err := bed.Run(context.Background(), e)
			if err != nil {
				return err
			}
			for i, p := range c.percents {
				figure(fmt.Sprintf("%s_%s_share_of_%d", card, c.name, p), r.Share(i, 2*time.Second, r.Lasted()), "percent")
				figure(fmt.Sprintf("%s_%s_stall_of_%d", card, c.name, p), stall(r.Outputs[i][0]), "ms")
			}
		}
	}
	return nil
}

func alone(bed *coretime.Bed) error {
	for _, kernels := range []string{"200us", "5ms", mixed} {
		name := strings.SplitN(kernels, ",", 2)[0]
		if kernels == mixed {
			name = "mixed"
		}
		part := func(s coretime.Share, free bool) (float64, error) {
			s.Programs = program(kernels, "5s")
			r, err := bed.Run(context.Background(), coretime.Experiment{Card: coretime.TimeSlice, Shares: []coretime.Share{s}, Free: free})
			if err != nil {
				return 0, err
			}
			return r.Share(0, 2*time.Second, r.Lasted()), nil
		}
		hard, err := part(coretime.Share{Percent: 50, Hard: true}, false)
		if err != nil {
			return err
		}
		burst, err := part(coretime.Share{Percent: 50}, false)
		if err != nil {
			return err
		}
		native, err := part(coretime.Share{}, true)
		if err != nil {
			return err
		}
		figure("alone_hard_50_"+name, hard, "percent")
		figure("alone_burst_of_native_"+name, 100*burst/native, "percent")
	}
	return nil
}

// sleeper is a share that comes back to a card that another one has used alone.
func sleeper(bed *coretime.Bed) error {
	r, err := bed.Run(context.Background(), coretime.Experiment{Card: coretime.TimeSlice, Shares: []coretime.Share{
		{Percent: 30, Programs: program("1ms", "7s")},
		{Percent: 70, Programs: program("1ms", "3s"), Later: 3 * time.Second},
	}})
	if err != nil {
		return err
	}
	from, ok := r.Began(1)
	if !ok {
		return fmt.Errorf("the sleeper did not run")
	}
	figure("sleeper_of_70_first_500_ms", r.Share(1, from, from+500*time.Millisecond), "percent")
	figure("sleeper_of_70_next_2_s", r.Share(1, from+500*time.Millisecond, from+2500*time.Millisecond), "percent")
	return nil
}
