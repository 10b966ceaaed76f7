package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gpu/sluice/e2e/gotest"
)

func TestTheEndOfARunTellsWhyEachTestFailed(t *testing.T) {
	long := strings.Repeat("a", 300) + strings.Repeat("z", 300)
	failures := []gotest.Outcome{
		{Package: "x/demo", Test: "TestDemo/whole", Action: "fail", Elapsed: 61234 * time.Millisecond, Output: "=== RUN   TestDemo/whole\ninstalling\n    demo_test.go:40: pods to run: gave up waiting\n        a table\n    demo_test.go:50: " + long + "\n    b.go:7: dump\n        1\n        2\n--- FAIL: TestDemo/whole (61.23s)\n"},
		{Package: "x/demo", Test: "TestDemo", Action: "fail", Output: "=== RUN   TestDemo\ncluster down\n--- FAIL: TestDemo (61.30s)\n"},
		{Package: "x/demo", Action: "fail", Output: "FAIL\n"},
		{Package: "x/plugin", Test: "TestPanics", Action: "fail", Output: "panic: nil map\n\ngoroutine 1 [running]:\n"},
		{Package: "x/plugin", Test: "TestSkips", Action: "skip", Output: "    a_test.go:3: no root\n"},
		{Package: "x/scenarios", Action: "fail", Output: "scenarios: the cluster did not start: no route\nexit status 1\n"},
	}
	want := `fail  demo TestDemo/whole (1m1.2s)
    demo_test.go:40: pods to run: gave up waiting
        a table
    demo_test.go:50: ` + strings.Repeat("a", 199) + ` […] ` + strings.Repeat("z", 140) + `
    b.go:7: dump
        1
fail  plugin TestPanics (0s)
panic: nil map
goroutine 1 [running]:
skip  plugin TestSkips (0s)
    a_test.go:3: no root
fail  scenarios  (0s)
scenarios: the cluster did not start: no route
exit status 1
`
	if diff := cmp.Diff(want, digest(failures)); diff != "" {
		t.Error(diff)
	}
}

func TestManyFailuresShareTheLinesOfTheEnd(t *testing.T) {
	var failures []gotest.Outcome
	for range 30 {
		failures = append(failures, gotest.Outcome{Package: "p", Test: "T", Action: "fail", Output: strings.Repeat("    a_test.go:1: one\n        two\n        three\n", 9)})
	}
	if n := strings.Count(digest(failures), "\n"); n > digestLines || n < 2*len(failures) {
		t.Errorf("%d lines", n)
	}
	if got := digest(nil); got != "" {
		t.Errorf("of no failure: %q", got)
	}
}
