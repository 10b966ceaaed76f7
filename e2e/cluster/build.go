package cluster

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// module is a Go module below e2e/binaries that pins programs which a cluster runs.
type module struct {
	folder   string
	requires string // the required module whose version the programs have
	commands []string
	tags     string
	// ldflags are given the pinned version, such as v1.37.2.
	ldflags func(version string) string
	// manifests are files of the required module, as patterns from its root, which are kept beside
	// the programs.
	manifests []string
	// testsOnly says that neither a cluster nor the demonstration needs it.
	testsOnly bool
}

func strip(string) string { return "-s -w" }

var modules = []module{
	{
		folder: "kubernetes", requires: "k8s.io/kubernetes",
		commands: []string{
			"k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kube-controller-manager",
			"k8s.io/kubernetes/cmd/kube-scheduler", "k8s.io/kubernetes/cmd/kubelet", "k8s.io/kubernetes/cmd/kubectl",
		},
		ldflags: kubernetesFlags,
	},
	{folder: "etcd", requires: "go.etcd.io/etcd/server/v3", commands: []string{"github.com/sluice-gpu/sluice/e2e/binaries/etcd"}, ldflags: strip},
	{
		folder: "containerd", requires: "github.com/containerd/containerd/v2",
		commands: []string{
			"github.com/containerd/containerd/v2/cmd/containerd", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
			"github.com/containerd/containerd/v2/cmd/ctr",
		},
		// Snapshotters that need C libraries or kernel modules nobody here has.
		tags:    "no_btrfs no_devmapper no_zfs",
		ldflags: strip,
	},
	{folder: "helm", requires: "helm.sh/helm/v4", commands: []string{"helm.sh/helm/v4/cmd/helm"}, ldflags: strip},
	// The controllers of kinds of jobs that the quota controller governs.
	{
		folder: "jobset", requires: "sigs.k8s.io/jobset", commands: []string{"sigs.k8s.io/jobset"}, ldflags: strip,
		testsOnly: true,
		manifests: []string{"config/components/crd/bases/*.yaml", "config/components/webhook/manifests.yaml"},
	},
	{
		folder: "training-operator", requires: "github.com/kubeflow/training-operator",
		commands: []string{"github.com/kubeflow/training-operator/cmd/training-operator.v1"}, ldflags: strip,
		manifests: []string{"manifests/base/crds/kubeflow.org_[jptx]*.yaml"},
	},
	{
		folder: "trainer", requires: "github.com/kubeflow/trainer/v2",
		commands: []string{"github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"}, ldflags: strip,
		testsOnly: true,
		manifests: []string{"manifests/base/crds/trainer.kubeflow.org_*.yaml", "manifests/base/webhook/manifests.yaml"},
	},
	{
		folder: "mpi-operator", requires: "github.com/kubeflow/mpi-operator",
		commands: []string{"github.com/kubeflow/mpi-operator/cmd/mpi-operator"}, ldflags: strip,
		testsOnly: true,
		manifests: []string{"manifests/base/kubeflow.org_mpijobs.yaml"},
	},
	{
		folder: "ray-operator", requires: "github.com/ray-project/kuberay/ray-operator",
		commands: []string{"github.com/ray-project/kuberay/ray-operator"}, ldflags: strip,
		testsOnly: true,
		manifests: []string{"config/crd/bases/ray.io_rayclusters.yaml", "config/crd/bases/ray.io_rayjobs.yaml", "config/crd/bases/ray.io_rayservices.yaml"},
	},
	{
		folder: "volcano", requires: "volcano.sh/volcano",
		commands: []string{"volcano.sh/volcano/cmd/controller-manager"}, ldflags: strip,
		testsOnly: true,
		manifests: []string{
			"installer/helm/chart/volcano/crd/bases/batch.volcano.sh_jobs.yaml", "installer/helm/chart/volcano/crd/bases/bus.volcano.sh_commands.yaml",
			"installer/helm/chart/volcano/crd/bases/scheduling.volcano.sh_podgroups.yaml", "installer/helm/chart/volcano/crd/bases/scheduling.volcano.sh_queues.yaml",
		},
	},
	// Kueue's manager, beside which the quota controller can run.
	{
		folder: "kueue", requires: "sigs.k8s.io/kueue", commands: []string{"sigs.k8s.io/kueue/cmd/kueue"}, ldflags: strip,
		testsOnly: true,
		manifests: []string{"config/components/crd/bases/kueue.x-k8s.io_*.yaml", "config/components/webhook/manifests.yaml"},
	},
}

// needed are the modules without those that only tests run.
func needed() []module {
	return slices.DeleteFunc(slices.Clone(modules), func(m module) bool { return m.testsOnly })
}

// Manifests is the folder in the cache with the manifests of one of the modules below e2e/binaries,
// such as the CustomResourceDefinitions of the controller that it pins.
func Manifests(cache, folder string) string { return filepath.Join(cache, "manifests", folder) }

// kubernetesFlags tells the programs their version, which the kubelet reports and Helm charts ask
// for. The Go toolchain's own stamp is that of the main module, which is not Kubernetes.
func kubernetesFlags(version string) string {
	const pkg = "k8s.io/component-base/version."
	numbers := strings.Split(strings.TrimPrefix(version, "v"), ".")
	flags := "-s -w -X " + pkg + "gitVersion=" + version
	if len(numbers) >= 2 {
		flags += " -X " + pkg + "gitMajor=" + numbers[0] + " -X " + pkg + "gitMinor=" + numbers[1]
	}
	return flags
}

// CacheDir is the folder of what is built once and kept: $SLUICE_CACHE, or .cache/sluice in the
// user's home. Its folder bin has the programs.
func CacheDir() (string, error) {
	if dir := os.Getenv("SLUICE_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("cache folder: %w; set SLUICE_CACHE", err)
	}
	return filepath.Join(home, ".cache", "sluice"), nil
}

// Build builds the programs that a cluster and the demonstration run into the cache, from the modules
// in the folder source (e2e/binaries). A module whose pins, flags and Go version are those of the
// last build is left as it is. The first build takes about 15 minutes on two cores; log says how far
// it is.
func Build(ctx context.Context, source string, log io.Writer) error {
	return build(ctx, source, needed(), log)
}

// BuildAll builds those that only tests run as well, which takes about as long again.
func BuildAll(ctx context.Context, source string, log io.Writer) error {
	return build(ctx, source, modules, log)
}

func build(ctx context.Context, source string, modules []module, log io.Writer) error {
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	bin := filepath.Join(cache, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	unlock, err := lockCache(bin, log)
	if err != nil {
		return err
	}
	defer unlock()
	goVersion, err := exec.CommandContext(ctx, "go", "env", "GOVERSION").Output()
	if err != nil {
		return fmt.Errorf("go env: %w; Go is needed to build the cluster's programs", err)
	}
	for i, m := range modules {
		if err := m.build(ctx, filepath.Join(source, m.folder), bin, string(goVersion), fmt.Sprintf("[%d/%d] ", i+1, len(modules)), log); err != nil {
			return fmt.Errorf("build %s: %w", m.folder, err)
		}
	}
	return nil
}

// lockCache lets one build at a time write to the cache.
func lockCache(bin string, log io.Writer) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(bin, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		fmt.Fprintln(log, "another build is running: waiting for it")
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
		}
	}
	return func() { file.Close() }, nil
}

// build brings the module's programs in bin up to date.
func (m module) build(ctx context.Context, source, bin, goVersion, prefix string, log io.Writer) error {
	version, err := pinnedVersion(filepath.Join(source, "go.mod"), m.requires)
	if err != nil {
		return err
	}
	key, err := m.key(source, goVersion)
	if err != nil {
		return err
	}
	stamp := filepath.Join(bin, "."+m.folder+".built")
	if have, err := os.ReadFile(stamp); err == nil && string(have) == key && m.present(bin) {
		fmt.Fprintf(log, "%s%s %s: built already\n", prefix, m.folder, version)
		return nil
	}
	start := time.Now()
	fmt.Fprintf(log, "%s%s %s: building\n", prefix, m.folder, version)
	staging, err := os.MkdirTemp(bin, ".building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(staging)
	var p progress
	stop := p.report(prefix+m.folder, log)
	defer stop()
	p.packages.Store(int64(m.countPackages(ctx, source)))
	args := []string{"build", "-v", "-tags", m.tags, "-ldflags", m.ldflags(version), "-o", staging + "/"}
	cmd := exec.CommandContext(ctx, "go", append(args, m.commands...)...)
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
	if err := p.run(cmd); err != nil {
		return err
	}
	// Replaced, not rewritten: a cluster that is up may be running the old ones.
	for _, command := range m.commands {
		name := path.Base(command)
		if err := os.Rename(filepath.Join(staging, name), filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	if err := m.copyManifests(ctx, source, Manifests(filepath.Dir(bin), m.folder)); err != nil {
		return err
	}
	if err := os.WriteFile(stamp, []byte(key), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(log, "%s%s %s: built in %s\n", prefix, m.folder, version, time.Since(start).Round(time.Second))
	return nil
}

// copyManifests puts the module's manifests into a folder of their own.
func (m module) copyManifests(ctx context.Context, source, to string) error {
	if len(m.manifests) == 0 {
		return nil
	}
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", m.requires)
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
	root, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("find module %s: %w", m.requires, err)
	}
	if err := errors.Join(os.RemoveAll(to), os.MkdirAll(to, 0o755)); err != nil {
		return err
	}
	for _, pattern := range m.manifests {
		files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), pattern))
		if err != nil || len(files) == 0 {
			return fmt.Errorf("module %s has no %s: %w", m.requires, pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(to, filepath.Base(file)), data, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// key changes whenever the module's programs could.
func (m module) key(source, goVersion string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, goVersion, m.commands, m.tags, m.ldflags("v1.2.3"))
	if len(m.manifests) > 0 {
		fmt.Fprintln(h, m.manifests)
	}
	names, err := filepath.Glob(filepath.Join(source, "*.go"))
	if err != nil {
		return "", err
	}
	for _, name := range append([]string{filepath.Join(source, "go.mod"), filepath.Join(source, "go.sum")}, names...) {
		data, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, filepath.Base(name), len(data))
		h.Write(data)
	}
	return fmt.Sprintf("%x\n", h.Sum(nil)), nil
}

func (m module) present(bin string) bool {
	for _, command := range m.commands {
		if _, err := os.Stat(filepath.Join(bin, path.Base(command))); err != nil {
			return false
		}
	}
	return true
}

// pinnedVersion is the version at which a go.mod requires a module.
func pinnedVersion(goMod, requires string) (string, error) {
	data, err := os.ReadFile(goMod)
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`(?m)^(?:require)?\s*` + regexp.QuoteMeta(requires) + `\s+(v\S+)`).FindSubmatch(data)
	if found == nil {
		return "", fmt.Errorf("%s does not require %s", goMod, requires)
	}
	return string(found[1]), nil
}

// countPackages is how many packages the programs consist of, and with that the most that can have
// to be compiled; 0 when that cannot be told. It downloads the modules.
func (m module) countPackages(ctx context.Context, source string) int {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-deps", "-tags", m.tags, "-f", "."}, m.commands...)...)
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		return 0 // go build will say what is wrong
	}
	return strings.Count(string(out), "\n")
}

// progress is how far a build is.
type progress struct {
	packages, compiled atomic.Int64 // packages is 0 while modules are being fetched
}

// report tells every ten seconds how far the build is, until it is stopped.
func (p *progress) report(what string, log io.Writer) (stop func()) {
	start, done := time.Now(), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			doing := "fetching modules"
			if n := p.packages.Load(); n > 0 {
				doing = fmt.Sprintf("%d packages compiled, of at most %d", p.compiled.Load(), n)
			}
			fmt.Fprintf(log, "%s: %s, %s\n", what, doing, time.Since(start).Round(time.Second))
		}
	})
	return func() { close(done); wg.Wait() }
}

// run runs `go build -v`, which prints the name of each package when it compiles it. What it prints
// beyond that is its error.
func (p *progress) run(cmd *exec.Cmd) error {
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var messages []string
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case !strings.ContainsAny(line, " :"):
			p.compiled.Add(1)
		case !strings.HasPrefix(line, "go: downloading "):
			messages = append(messages, line)
		}
	}
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil {
		return fmt.Errorf("%w:\n%s", err, strings.Join(messages, "\n"))
	}
	return nil
}

// FindSource looks for the folder e2e/binaries from the working folder upwards.
func FindSource() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		for _, candidate := range []string{filepath.Join(dir, "e2e", "binaries"), filepath.Join(dir, "binaries")} {
			if _, err := os.Stat(filepath.Join(candidate, modules[0].folder, "go.mod")); err == nil {
				return candidate, nil
			}
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("e2e/binaries not found from the working folder upwards: run this inside the source tree")
		}
		dir = filepath.Dir(dir)
	}
}
