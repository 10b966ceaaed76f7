package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gpu/sluice/e2e/gotest"
)

func runCommand() *cobra.Command {
	var parallel int
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "run MODULE-DIR...",
		Short: "Run all tests of the modules in these folders; a skipped test is a failure",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, dirs []string) error {
			return runModules(dirs, parallel, timeout)
		},
	}
	cmd.Flags().IntVar(&parallel, "parallel", 1, "packages that are tested at the same time")
	cmd.Flags().DurationVar(&timeout, "timeout", 45*time.Minute, "time limit of one package")
	return cmd
}

// fresh is what keeps go test from answering out of its cache in the e2e module: its tests run the
// product's binaries, chart and docs, and go test does not see that those have changed.
func fresh(dir string) []string {
	if filepath.Base(dir) == "e2e" {
		return []string{"-count=1"}
	}
	return nil
}

// runModules prints a line a package and the whole output of what failed, then once more the
// beginning of it, and the counts.
func runModules(dirs []string, parallel int, timeout time.Duration) error {
	passed, failed := 0, 0
	var broken error
	var failures []gotest.Outcome
	report := func(o gotest.Outcome) {
		if o.Action == "fail" || o.Test != "" && o.Failed() {
			failures = append(failures, o)
		}
		switch {
		case o.Test == "":
			// A package without tests "skips"; that is no test that was left out.
			if o.Action == "fail" {
				fmt.Printf("FAIL  %s (%s)\n%s", o.Package, o.Elapsed.Round(time.Second), o.Output)
			} else if o.Action == "pass" {
				fmt.Printf("ok    %s (%s)\n", o.Package, o.Elapsed.Round(10*time.Millisecond))
			}
		case o.Failed():
			failed++
			fmt.Printf("%s  %s %s\n%s", o.Action, path.Base(o.Package), o.Test, o.Output)
		default:
			passed++
		}
	}
	for _, dir := range dirs {
		err := gotest.Run(dir, nil, os.Stderr, report,
			append(fresh(dir), "-p", fmt.Sprint(parallel), "-timeout", timeout.String(), "./...")...)
		broken = errors.Join(broken, err)
	}
	fmt.Print(digest(failures))
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if broken == nil && failed > 0 {
		broken = fmt.Errorf("%d tests failed or were skipped", failed)
	}
	if broken == nil && passed == 0 {
		broken = errors.New("no test ran")
	}
	return broken
}
