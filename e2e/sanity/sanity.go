// Package sanity checks whether a DRA driver keeps its promises to a kubelet.
//
// It drives a kubelet plugin as a black box: it finds and registers the plugin
// as a kubelet does, allocates the devices of its ResourceSlices as the
// scheduler does, with the scheduler's own allocator, and then calls
// NodePrepareResources and NodeUnprepareResources in all the ways in which a
// kubelet calls them over time: again, in parallel, after restarts, for claims
// that are gone. What the driver answers is looked at with the eyes of a
// container runtime, through CDI's own cache.
//
// Nothing here knows any driver. The suite is a helper for Go tests (Run) and a
// command (cmd/sanity). docs/dev/sanity.md lists the checks.
//
// The suite takes the place of the kubelet: on a node where one runs, both
// would call the driver. Everything that it makes in the API it removes again.
package sanity

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// Driver tells which driver is checked and what the suite may do with it.
type Driver struct {
	// Name is the DRA driver's name, as in ResourceSlice.spec.driver. Required.
	Name string
	// NodeName is the node on whose behalf the plugin publishes. Required. The
	// Node object is made if there is none.
	NodeName string
	// API is an API server of the driver's cluster, with the rights of an
	// administrator. Required.
	API *rest.Config

	// RegistryDir is where a kubelet would look for the plugin's registration
	// socket. Required unless Socket is set.
	RegistryDir string
	// RegistrationSocket names the registration socket itself. Optional.
	RegistrationSocket string
	// Socket is the socket of the DRA service of a plugin that does not
	// register. Optional; by default the plugin's registration tells it.
	Socket string
	// CDIDirs are the folders in which the container runtime looks for CDI
	// specs, lowest priority first. Default: /etc/cdi, /var/run/cdi.
	CDIDirs []string

	// Command starts the driver and ends when the driver ends, and not before.
	// Without it the driver runs already, and checks that restart it do not
	// apply.
	Command []string
	// Env is added to the command's environment.
	Env []string
	// Overlap tells that a second instance may be started while one runs. Each
	// start then finds a UID of its own in the variable POD_UID.
	Overlap bool
	// Output receives what the command prints. Nil: nobody.
	Output io.Writer

	// DeviceClass names an existing class that claims ask for. By default the
	// suite makes one for all devices of the driver that Selectors admit.
	DeviceClass string
	// Selectors are CEL expressions; devices that do not match all of them are
	// not claimed. For devices that an ordinary claim cannot have.
	Selectors []string
	// Parameters is an opaque configuration for the driver that each claim
	// carries. Optional.
	Parameters json.RawMessage

	// Only and Except select checks by name, as patterns of path.Match such as
	// "slices/*". Empty Only: all.
	Only, Except []string

	// Patience is how long the driver may take to publish, to register and to
	// stop. Default 60 s.
	Patience time.Duration
	// Quiet is how long slices are watched for needless writes. Default 30 s.
	Quiet time.Duration
	// CallTimeout is the limit of one call. Default 45 s, as in the kubelet.
	CallTimeout time.Duration
	// Reconcile is how long to wait for the driver to clean up by itself after
	// a claim that vanished. Zero: do not wait.
	Reconcile time.Duration
}

func (d *Driver) complete() error {
	for _, missing := range []struct {
		name string
		is   bool
	}{
		{"Name", d.Name == ""}, {"NodeName", d.NodeName == ""}, {"API", d.API == nil},
		{"RegistryDir, RegistrationSocket or Socket", d.RegistryDir == "" && d.RegistrationSocket == "" && d.Socket == ""},
	} {
		if missing.is {
			return fmt.Errorf("sanity.Driver: %s is not set", missing.name)
		}
	}
	for _, pattern := range append(append([]string(nil), d.Only...), d.Except...) {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("sanity.Driver: pattern %q: %w", pattern, err)
		}
	}
	if len(d.CDIDirs) == 0 {
		d.CDIDirs = []string{"/etc/cdi", "/var/run/cdi"}
	}
	for _, t := range []struct {
		field *time.Duration
		value time.Duration
	}{{&d.Patience, time.Minute}, {&d.Quiet, 30 * time.Second}, {&d.CallTimeout, 45 * time.Second}} {
		if *t.field <= 0 {
			*t.field = t.value
		}
	}
	return nil
}

// selects tells whether a check is to run.
func (d *Driver) selects(name string) bool {
	matches := func(patterns []string) bool {
		for _, p := range patterns {
			if ok, _ := path.Match(p, name); ok {
				return true
			}
		}
		return false
	}
	return (len(d.Only) == 0 || matches(d.Only)) && !matches(d.Except)
}

// Outcome is what came of a check.
type Outcome string

// Outcomes.
const (
	Passed Outcome = "pass"
	// Failed: the driver breaks a rule that a kubelet or container runtime
	// relies on, or the check could not be carried out.
	Failed Outcome = "FAIL"
	// Advised: the driver does not do what is recommended.
	Advised Outcome = "advice"
	// NotApplicable: the driver does not offer what the check is about, or the
	// suite was not given what it needs.
	NotApplicable Outcome = "n/a"
)

// Result is what came of one check.
type Result struct {
	Check   Check
	Outcome Outcome
	// Err tells what was asked and answered, or why the check does not apply.
	// Nil if it passed.
	Err  error
	Took time.Duration
}

// String is the result as people read it: one line if the check passed, with
// the contract and its source if it did not.
func (r Result) String() string {
	line := fmt.Sprintf("%-6s %s (%.1fs)", r.Outcome, r.Check.Name, r.Took.Seconds())
	switch r.Outcome {
	case Passed:
		return line
	case NotApplicable:
		return fmt.Sprintf("%s: %v", line, r.Err)
	}
	return fmt.Sprintf("%s\n  contract: %s\n  source:   %s\n%v", line, r.Check.Contract, r.Check.Source, indent(r.Err))
}

// Check runs the checks one after the other and hands each result to report. It
// returns an error only if nothing could be checked at all. A driver that the
// suite started is stopped at the end.
func (d Driver) Check(ctx context.Context, report func(Result)) error {
	if err := d.complete(); err != nil {
		return err
	}
	s, err := newSuite(ctx, d)
	if err != nil {
		return err
	}
	defer s.close()
	for _, c := range Checks() {
		if d.selects(c.Name) {
			report(s.carryOut(ctx, c))
		}
	}
	return nil
}

// Run runs the checks as subtests of t, each under its name, and returns their
// results. Advice is logged and does not fail the test.
func Run(t *testing.T, d Driver) []Result {
	t.Helper()
	if err := d.complete(); err != nil {
		t.Fatal(err)
	}
	s, err := newSuite(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	var results []Result
	for _, c := range Checks() {
		if !d.selects(c.Name) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			r := s.carryOut(t.Context(), c)
			results = append(results, r)
			if r.Outcome == Failed {
				t.Error(r)
			} else if r.Outcome != Passed {
				t.Log(r)
			}
		})
	}
	return results
}
