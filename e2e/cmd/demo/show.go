package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// How long one thing may take before the demo calls it broken: most, and that the drivers, which
// are ready, publish what they have.
const (
	stepPatience    = testbed.Patience
	devicesPatience = 90 * time.Second
)

// demo is a run of the demonstration.
type demo struct {
	*testbed.Testbed
	out  io.Writer
	name string // of the cluster
}

// breaks are the parts that can be taken away, with the chart values that do so.
var breaks = map[string][]string{
	"":        nil,
	"driver":  {"driver.nodeSelector.gpu-type=none"},
	"limiter": {"driver.limiter=false"},
	"ticket":  {"quota.enforce=off"},
}

// show runs the demonstration on the testbed that o names, with one part taken away if broken is
// not empty, and prints it to out. It returns an error at the first thing that is not as promised.
func show(ctx context.Context, out io.Writer, o testbed.Options, broken string) error {
	values, known := breaks[broken]
	if !known {
		return fmt.Errorf("no part is named %q: driver, limiter and ticket can be taken away", broken)
	}
	o.Values = values
	bed, err := testbed.Start(ctx, o)
	if err != nil {
		return err
	}
	d := &demo{Testbed: bed, out: out, name: o.Name}
	for _, part := range []func(context.Context) error{d.clear, d.devices, d.slices, d.limits, d.quotas, d.bypasses} {
		if err := part(ctx); err != nil {
			fmt.Fprint(o.Log, bed.Describe(ctx, testbed.SystemNamespace, slicesNamespace, teamNamespace))
			return err
		}
	}
	d.goodbye()
	return nil
}

func (d *demo) title(format string, args ...any) {
	fmt.Fprintf(d.out, "\n== "+format+"\n\n", args...)
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, "  "+format+"\n", args...) }

// goodbye says how to look around.
func (d *demo) goodbye() {
	d.title("Look around")
	for _, command := range []string{
		"kubectl get resourceslices",
		"kubectl -n " + teamNamespace + " get workloads,jobs,pods,resourceclaims",
		"status",
	} {
		d.say("cd e2e && go run ./cmd/cluster --name %s %s", d.name, command)
	}
	d.say("cd e2e && PATH=$PWD/../bin:$PATH go run ./cmd/cluster --name %s kubectl sluice cards   # or queues, or why NAME -n %s", d.name, teamNamespace)
	d.say("make demo-down ends it and leaves nothing")
}

// wait limits one step.
func (d *demo) wait(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, stepPatience)
}
