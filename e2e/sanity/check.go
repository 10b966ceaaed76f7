package sanity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Level tells how binding a check is.
type Level int

// Levels.
const (
	// Must: a kubelet, scheduler or container runtime fails, or a container
	// gets what is not its own, if the driver does otherwise.
	Must Level = iota
	// Should: recommended by Kubernetes, or what operators run into.
	Should
)

// Check is one promise of a driver, named by the behaviour.
type Check struct {
	// Name is "group/behaviour".
	Name string
	// Contract is what others rely on, and Source where that is said.
	Contract, Source string
	Level            Level
	// Restarts tells that the check ends the driver and starts it again.
	Restarts bool

	run func(*scope) error
}

// Sources of the rules.
const (
	srcKEP          = "KEP-4381 (DRA with structured parameters)"
	srcKubelet      = "pkg/kubelet/cm/dra/manager.go of Kubernetes"
	srcProto        = "k8s.io/kubelet/pkg/apis/dra/v1/api.proto"
	srcRegistration = "k8s.io/kubelet/pkg/apis/pluginregistration/v1/api.proto and pkg/kubelet/pluginmanager of Kubernetes"
	srcHelper       = "k8s.io/dynamic-resource-allocation/kubeletplugin, type DRAPlugin"
	srcAPI          = "k8s.io/api/resource/v1"
	srcCDI          = "CDI specification and tags.cncf.io/container-device-interface/pkg/cdi"
	srcHealth       = "k8s.io/kubelet/pkg/apis/dra-health/v1/api.proto (KEP-4680)"
)

// Checks are all checks, in the order in which they run: those that leave the
// driver alone first.
func Checks() []Check {
	return slices.Concat(registrationChecks, sliceChecks, prepareChecks, cdiChecks, shareChecks,
		unprepareChecks, parallelChecks, refusalChecks, healthChecks, restartChecks)
}

// Table is all checks as a Markdown table.
func Table() string {
	var b strings.Builder
	b.WriteString("| check | | contract | source |\n|---|---|---|---|\n")
	for _, c := range Checks() {
		kind := "must"
		if c.Level == Should {
			kind = "should"
		}
		if c.Restarts {
			kind += ", restarts"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", c.Name, kind, c.Contract, c.Source)
	}
	return b.String()
}

// violation says that the driver broke the contract.
type violation struct{ asked, answered string }

func (v *violation) Error() string { return "asked:    " + v.asked + "\nanswered: " + v.answered }

// violated makes the error of a broken contract: what was asked of the driver,
// and what it did.
func violated(asked, answered string, args ...any) error {
	return &violation{asked, fmt.Sprintf(answered, args...)}
}

// notApplicable says that there is nothing to check.
type notApplicable struct{ reason string }

func (n *notApplicable) Error() string { return n.reason }

func doesNotApply(reason string, args ...any) error {
	return &notApplicable{fmt.Sprintf(reason, args...)}
}

// carryOut runs a check and cleans up after it.
func (s *suite) carryOut(ctx context.Context, c Check) Result {
	start := time.Now()
	err := func() error {
		if c.Restarts && len(s.d.Command) == 0 {
			return doesNotApply("the suite was not told how to start the driver")
		}
		if err := s.ready(ctx); err != nil {
			return err
		}
		sc := &scope{suite: s, ctx: ctx}
		err := c.run(sc)
		if clean := sc.cleanUp(); clean != nil {
			// A driver that failed the check may well fail here too; what the
			// check found says more.
			if err == nil || errors.As(err, new(*notApplicable)) {
				err = fmt.Errorf("cleaning up after the check: %w", clean)
			}
		}
		return err
	}()
	r := Result{Check: c, Outcome: Passed, Err: err, Took: time.Since(start)}
	var broken *violation
	switch {
	case err == nil:
	case errors.As(err, new(*notApplicable)):
		r.Outcome = NotApplicable
	case errors.As(err, &broken) && c.Level == Should:
		r.Outcome = Advised
	default:
		r.Outcome = Failed
	}
	return r
}

func indent(err error) string {
	return "  " + strings.ReplaceAll(err.Error(), "\n", "\n  ")
}
