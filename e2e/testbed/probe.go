package testbed

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// ProbeStep is what cudaprobe printed about one of its steps.
type ProbeStep struct {
	Step   string `json:"step"`
	Result string `json:"result"`
	// Name, UUID, Devices and DeviceTotal (bytes) are what `info` says.
	Name        string `json:"name"`
	UUID        string `json:"uuid"`
	Devices     int    `json:"devices"`
	DeviceTotal uint64 `json:"deviceTotal"`
	// Bytes is what the step allocated.
	Bytes uint64 `json:"bytes"`
	// Free and Total are what cuMemGetInfo says after the step, in bytes.
	Free  uint64 `json:"free"`
	Total uint64 `json:"total"`
}

// Probe returns what a container's cudaprobe has printed so far.
func (b *Testbed) Probe(ctx context.Context, namespace, pod, container string) ([]ProbeStep, error) {
	log, err := b.Log(ctx, namespace, pod, container)
	if err != nil {
		return nil, err
	}
	return parseProbe(log)
}

func parseProbe(log string) ([]ProbeStep, error) {
	var steps []ProbeStep
	lines := bufio.NewScanner(strings.NewReader(log))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, "{") {
			continue // the program's or the limiter's words on standard error
		}
		var step ProbeStep
		if err := json.Unmarshal([]byte(line), &step); err != nil {
			return steps, fmt.Errorf("cudaprobe printed %q: %w", line, err)
		}
		steps = append(steps, step)
	}
	return steps, lines.Err()
}

// WaitProbe waits until the container has printed a step that begins with the name, and returns
// the last such step.
func (b *Testbed) WaitProbe(ctx context.Context, namespace, pod, container, name string) (ProbeStep, error) {
	var found ProbeStep
	err := Until(ctx, fmt.Sprintf("step %s of %s/%s", name, namespace, pod), func() (bool, string, error) {
		steps, err := b.Probe(ctx, namespace, pod, container)
		if err != nil {
			return false, err.Error(), nil // the container may not have started yet
		}
		for _, step := range steps {
			if strings.HasPrefix(step.Step, name) {
				found = step
			}
		}
		return found.Step != "", fmt.Sprintf("printed so far: %+v", steps), nil
	})
	return found, err
}

// UntilRefused are cudaprobe's steps that take all memory, ask for one byte more and stay.
var UntilRefused = []string{"alloc-until-oom:1Mi", "alloc:1", "meminfo", "hold"}

// TakenUntilRefused waits for the end of UntilRefused in a container and returns how many bytes it
// took and what it was told when it asked for one more.
func (b *Testbed) TakenUntilRefused(ctx context.Context, namespace, pod, container string) (taken uint64, refusal string, err error) {
	if _, err := b.WaitProbe(ctx, namespace, pod, container, "meminfo"); err != nil {
		return 0, "", err
	}
	steps, err := b.Probe(ctx, namespace, pod, container)
	if err != nil {
		return 0, "", err
	}
	for _, step := range steps {
		if step.Step == "alloc:1" {
			refusal = step.Result
		} else {
			taken += step.Bytes
		}
	}
	return taken, refusal, nil
}
