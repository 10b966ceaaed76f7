// Package gotest runs `go test` and says what each test did. It exists for the two commands that
// have to be stricter than `go test` itself: one counts tests and refuses skips, the other runs
// tests by name and refuses names that ran nothing.
package gotest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// Outcome is what happened to one test or, where Test is empty, to a package as a whole.
type Outcome struct {
	Package string
	Test    string
	// Action is pass, fail or skip.
	Action  string
	Elapsed time.Duration
	// Output is what the test printed; kept for failures and skips only.
	Output string
}

// Failed tells whether the outcome makes the run fail: a failure, or a skip, because a test that
// does not run proves nothing.
func (o Outcome) Failed() bool { return o.Action != "pass" }

type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Elapsed    float64
	Output     string
}

// Run executes `go test -json` with args in the folder dir and hands every outcome to report in
// the order of ending. The output of builds and of failing tests goes to log. It returns an error
// when go test itself could not run or ended with failures that no outcome told (a build error).
func Run(dir string, env []string, log io.Writer, report func(Outcome), args ...string) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), env...)
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	failed, err := read(out, log, report)
	if err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil && !failed {
		return fmt.Errorf("go test %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// read decodes the event stream. Lines that are no events (a tool's own words) go to log.
func read(r io.Reader, log io.Writer, report func(Outcome)) (failed bool, err error) {
	output := map[string]*strings.Builder{}
	lines := bufio.NewReader(r)
	for {
		line, readErr := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(log, "%s", line)
			} else {
				failed = handle(e, output, log, report) || failed
			}
		}
		if readErr == io.EOF {
			return failed, nil
		}
		if readErr != nil {
			return failed, readErr
		}
	}
}

func handle(e event, output map[string]*strings.Builder, log io.Writer, report func(Outcome)) (failed bool) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		if output[key] == nil {
			output[key] = &strings.Builder{}
		}
		output[key].WriteString(e.Output)
	case "build-output":
		fmt.Fprint(log, e.Output)
	case "pass", "fail", "skip":
		o := Outcome{Package: e.Package, Test: e.Test, Action: e.Action, Elapsed: time.Duration(e.Elapsed * float64(time.Second))}
		if text := output[key]; text != nil && o.Failed() {
			o.Output = text.String()
		}
		delete(output, key)
		report(o)
		return e.Action == "fail"
	}
	return false
}
