package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// TestDemoSucceedsWholeAndFailsWhenAPartIsTakenAway runs the demonstration itself, first with each
// part missing, so that its success means something, and then whole and once more.
func TestDemoSucceedsWholeAndFailsWhenAPartIsTakenAway(t *testing.T) {
	ctx := context.Background()
	o := options("demo-test")
	o.Log = os.Stderr
	stop := func() {
		if err := testbed.Stop(ctx, o); err != nil {
			t.Error(err)
		}
	}
	stop() // the first part is shown on a cluster that has never had a driver
	t.Cleanup(stop)
	for _, c := range []struct {
		broken, complaint string
	}{
		{"driver", "devices to be published"},
		{"limiter", "CUDA in its container sees"},
		{"ticket", "was not refused"},
	} {
		t.Run("without "+c.broken, func(t *testing.T) {
			var out strings.Builder
			err := show(ctx, &out, o, c.broken)
			if err == nil || !strings.Contains(err.Error(), c.complaint) {
				t.Fatalf("want an error that says %q, got %v\n%s", c.complaint, err, out.String())
			}
		})
	}
	for _, run := range []string{"whole", "again"} {
		t.Run(run, func(t *testing.T) {
			var out strings.Builder
			if err := show(ctx, &out, o, ""); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
		})
	}
}

func TestAnUnknownPartCannotBeTakenAway(t *testing.T) {
	err := show(context.Background(), os.Stdout, options("demo-test"), "scheduler")
	if err == nil || !strings.Contains(err.Error(), "driver, limiter and ticket") {
		t.Fatalf("error %v, want one that names the parts", err)
	}
}
