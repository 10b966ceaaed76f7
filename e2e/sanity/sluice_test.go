package sanity_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gpu/sluice/e2e/fakegpu"
	"github.com/sluice-gpu/sluice/e2e/sanity"
	"github.com/sluice-gpu/sluice/e2e/sanity/apiserver"
)

// server is one API server for all tests; drivers keep apart by node and name.
var server = sync.OnceValues(func() (*apiserver.Server, error) { return apiserver.Start(context.Background(), "") })

func TestMain(m *testing.M) {
	if os.Getenv(referenceEnv) != "" {
		os.Exit(runReference())
	}
	// Most tests wait for drivers and for the API server.
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if s, err := server(); err == nil {
		s.Stop()
	}
	os.Exit(code)
}

func apiServer(t *testing.T) *apiserver.Server {
	t.Helper()
	s, err := server()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shortDir is a folder in which a socket's path stays below the limit of
// unix(7).
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sanity")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// sluice is sluice-driver on a node with simulated cards.
func sluice(t *testing.T, node string, binaries string) sanity.Driver {
	t.Helper()
	dir := shortDir(t)
	built, err := fakegpu.Build("")
	if err != nil {
		t.Fatal(err)
	}
	hardware, err := fakegpu.Install(filepath.Join(dir, "driver"), filepath.Join(dir, "gpu"), built, fakegpu.Node{
		Name: node, Cards: []fakegpu.Card{{Model: "A100-SXM4-80GB", Count: 2}, {Model: "L4"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	kubelet, cdi := filepath.Join(dir, "kubelet"), filepath.Join(dir, "cdi")
	for _, d := range []string{filepath.Join(kubelet, "plugins_registry"), cdi} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the driver's log:\n%s", tail(log.Name(), 40))
		}
		_ = log.Close()
	})
	return sanity.Driver{
		Name: "gpu.sluice.dev", NodeName: node, API: apiServer(t).Config(),
		RegistryDir: filepath.Join(kubelet, "plugins_registry"), CDIDirs: []string{cdi},
		Command: []string{
			filepath.Join(binaries, "sluice-driver"), "--node-name", node, "--kubeconfig", apiServer(t).Kubeconfig(),
			"--kubelet-dir", kubelet, "--cdi-dir", cdi, "--driver-root", hardware.DriverRoot,
			"--cdi-hook", filepath.Join(binaries, "nvidia-cdi-hook"), "--listen", "", "--reconcile-interval", "1s", "-v", "2",
		},
		Env: hardware.Env(), Output: log,
		// The monitor device is for claims with admin access only.
		Selectors: []string{`device.attributes["gpu.sluice.dev"].type == "gpu"`},
		Reconcile: 20 * time.Second, Overlap: true,
	}
}

// buildSluice builds the driver and the hook that it installs on the host.
func buildSluice(t *testing.T) string {
	t.Helper()
	out := t.TempDir()
	build := exec.Command("go", "build", "-o", out, "./cmd/sluice-driver", "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook")
	build.Dir = "../.."
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, text)
	}
	return out
}

func tail(path string, lines int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(string(bytes.TrimSpace(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// byHelper are checks that a driver on top of the kubeletplugin package gets
// advice in, whatever it does: the package refuses such a call as a whole.
var byHelper = []string{"refuses/only-the-claim-that-is-not-allocated"}

// everythingHolds wants more than Run: sluice-driver follows the advice too, and
// offers what each check is about.
func everythingHolds(t *testing.T, results []sanity.Result) {
	t.Helper()
	for _, r := range results {
		if r.Outcome != sanity.Passed && !(r.Outcome == sanity.Advised && slices.Contains(byHelper, r.Check.Name)) {
			t.Errorf("%s", r)
		}
	}
}

func TestSluiceDriverKeepsAKubeletsContract(t *testing.T) {
	t.Parallel()
	binaries := buildSluice(t)
	apiServer(t)
	// Checks that mostly wait run beside the others, on a node of their own.
	waiting := []string{"slices/no-writes-at-rest", "slices/back-after-deletion", "health/renews-within-its-timeout"}
	for _, part := range []struct {
		name         string
		only, except []string
	}{
		{name: "waiting", only: waiting},
		{name: "doing", except: waiting},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			d := sluice(t, "sluice-"+part.name, binaries)
			d.Only, d.Except = part.only, part.except
			results := sanity.Run(t, d)
			everythingHolds(t, results)
			t.Log(summary(results))
		})
	}
}

func summary(results []sanity.Result) string {
	counts := map[sanity.Outcome]int{}
	for _, r := range results {
		counts[r.Outcome]++
	}
	return fmt.Sprint(counts)
}
