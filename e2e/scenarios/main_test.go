// Package scenarios runs Sluice on a real cluster with simulated GPUs: what users do, and what
// must not happen to them. All tests share one cluster, with the nodes that the demo has; each test
// works in a namespace of its own and gives its devices back.
package scenarios

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// The nodes, as testbed.DefaultNodes describes them.
const (
	fixedNode   = "node-1" // 4 A100, each cut in 4 slices of 20000Mi
	dynamicNode = "node-2" // 4 A100, cut as claims ask
	t4Node      = "node-3" // 2 T4, each cut in 2
)

// patience is how long a test waits for the cluster before it calls it a failure.
const patience = testbed.Patience

var bed *testbed.Testbed

func TestMain(m *testing.M) {
	keep := flag.Bool("keep", false, "leave the cluster running, and use one that runs already")
	name := flag.String("name", "e2e", "name of the cluster")
	flag.Parse()
	os.Exit(run(m, *name, *keep))
}

func run(m *testing.M, name string, keep bool) int {
	ctx := context.Background()
	var err error
	options := testbed.Options{Name: name, Reuse: keep, Log: os.Stderr}
	bed, err = testbed.Start(ctx, options)
	if err != nil {
		fmt.Fprintln(os.Stderr, "scenarios: the cluster did not start:", err)
		return 1
	}
	code := m.Run()
	if !keep {
		if err := testbed.Stop(ctx, options); err != nil {
			fmt.Fprintln(os.Stderr, "scenarios: the cluster did not end cleanly:", err)
			return 1
		}
	}
	return code
}

// scenario makes a namespace for the test and gives its devices back at the end. What the
// namespace held is logged when the test failed.
func scenario(t *testing.T) (ctx context.Context, namespace string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	namespace = namespaceOf(t)
	if err := bed.CreateNamespace(ctx, namespace, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer cancel()
		if t.Failed() {
			t.Log(bed.Describe(ctx, namespace))
		}
		if err := bed.DeletePods(ctx, namespace); err != nil {
			t.Error(err)
		}
		if _, err := bed.Cluster.Kubectl(ctx, "delete", "namespace", namespace, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	return ctx, namespace
}

// runID tells this run's namespaces from those of earlier ones in a cluster that is kept.
var runID = strconv.FormatInt(time.Now().Unix(), 36)

// namespaceOf is the name of the test's namespace.
func namespaceOf(t *testing.T) string {
	name := strings.ToLower(strings.NewReplacer("Test", "t-", "/", "-").Replace(t.Name()))
	return fmt.Sprintf("%.50s-%s", name, runID)
}

// patient limits a single wait.
func patient(t *testing.T, ctx context.Context) context.Context {
	t.Helper()
	limited, cancel := context.WithTimeout(ctx, patience)
	t.Cleanup(cancel)
	return limited
}
