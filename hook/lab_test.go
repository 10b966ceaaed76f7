package hook

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gpu/sluice/hook/account"
	"github.com/sluice-gpu/sluice/hook/bench/coretime"
)

// lab is what the tests build once: the limiter with paths of its own, the
// simulated driver where the limiter looks for the real one, and the program
// that does what it is told.
//
// The limiter of the tests looks for its shares in ./shares. A folder that a
// program is started in is therefore its container: what is linked there is
// what it was given, with the inodes of the node's files, as bind mounts give
// them.
type lab struct {
	dir     string
	limiter string // the limiter
	real    string // the driver behind it
	guard   string // the object for ld.so.preload
	lib     string // what the loader finds: libcuda.so.1 and its other names
	play    string
	linked  string // play, linked against libcuda
}

const driverVersion = "580.95.05"

// stateSize is more than the simulation maps; the file stays sparse.
const stateSize = 2 << 30

var buildLab = sync.OnceValues(func() (*lab, error) {
	dir, err := os.MkdirTemp("", "sluice-hook-")
	if err != nil {
		return nil, err
	}
	l := &lab{
		dir:     dir,
		limiter: filepath.Join(dir, "out", "libsluice-cuda.so"),
		guard:   filepath.Join(dir, "out", "guard.so"),
		real:    filepath.Join(dir, "driver", "real-cuda.so"),
		lib:     filepath.Join(dir, "lib"),
		play:    filepath.Join(dir, "play"),
		linked:  filepath.Join(dir, "play-linked"),
	}
	var fake string
	versioned := filepath.Join(l.lib, "libcuda.so."+driverVersion)
	steps := []func() error{
		readSources,
		func() error { return os.MkdirAll(l.lib, 0o755) },
		func() error { return os.MkdirAll(filepath.Dir(l.real), 0o755) },
		func() (err error) { fake, err = coretime.SimulatedDriver("../e2e/fakegpu"); return err },
		func() error { return sh("cp", filepath.Join(fake, "libcuda.so."+driverVersion), l.real) },
		func() error {
			return sh("cp", filepath.Join(fake, "libnvidia-ml.so."+driverVersion), filepath.Join(filepath.Dir(l.real), "real-nvidia-ml.so"))
		},
		func() error {
			return sh("env", "REAL_CUDA="+l.real, "REAL_NVML="+filepath.Join(filepath.Dir(l.real), "real-nvidia-ml.so"), "SLUICE_SHARES=shares", "SLUICE_DRIVER="+filepath.Dir(l.real),
				"EXTRA_CFLAGS=-g", "./build.sh", filepath.Dir(l.limiter))
		},
		func() error { return os.Link(l.limiter, filepath.Join(filepath.Dir(l.real), "limiter-cuda.so")) },
		// As the driver's mount does it: the limiter under the versioned name.
		func() error { return os.Link(l.limiter, versioned) },
		func() error {
			return os.Link(filepath.Join(filepath.Dir(l.limiter), "libsluice-nvml.so"), filepath.Join(l.lib, "libnvidia-ml.so.1"))
		},
		func() error { return os.Symlink(filepath.Base(versioned), filepath.Join(l.lib, "libcuda.so.1")) },
		func() error {
			return sh("gcc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-o", l.play, "test/play.c", "-ldl", "-lpthread")
		},
		func() error {
			return sh("gcc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-DLINKED", "-o", l.linked,
				"test/play.c", l.real, "-ldl", "-lpthread")
		},
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return l, err
		}
	}
	return l, nil
})

// readSources opens what the compiler will read. The go command takes a test's
// result from its cache unless a file that the test itself opened has changed.
func readSources() error {
	return fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			_, err = os.ReadFile(name)
		}
		return err
	})
}

func sh(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w\n%s", name, args, err, out)
	}
	return nil
}

func TestMain(m *testing.M) {
	code := m.Run()
	if l, _ := buildLab(); l != nil {
		os.RemoveAll(l.dir)
	}
	os.Exit(code)
}

func theLab(t testing.TB) *lab {
	t.Helper()
	l, err := buildLab()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// node is a machine with simulated cards, and the shares made of them.
type node struct {
	t   testing.TB
	lab *lab
	dir string
}

// cardUUID is the identity of the node's n-th card.
func cardUUID(n int) string { return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", n+1) }

// newNode makes a node with cards of so many bytes, contexts of so many.
func newNode(t testing.TB, cards int, memory, context uint64) *node {
	t.Helper()
	n := &node{t: t, lab: theLab(t), dir: t.TempDir()}
	var desc strings.Builder
	fmt.Fprintf(&desc, "driver %s\ncuda 13000\ncontext_bytes %d\n", driverVersion, context)
	for i := range cards {
		fmt.Fprintf(&desc, "card %d\nminor %d\nname Simulated\nuuid %s\nmemory %d\nsms 8\ncc_major 9\n", i, i, cardUUID(i), memory)
	}
	n.write("node", desc.String())
	n.write("lock", "")
	n.write("state", "")
	if err := os.Truncate(filepath.Join(n.dir, "state"), stateSize); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) write(name, content string) {
	n.t.Helper()
	path := filepath.Join(n.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// share makes a share of a card and returns its folder on the node.
func (n *node) share(name string, card int, memory, overhead uint64) string {
	n.t.Helper()
	uuid, err := account.ParseUUID(cardUUID(card))
	if err != nil {
		n.t.Fatal(err)
	}
	dir := filepath.Join(n.dir, "node-shares", name)
	limit := account.Limit{Card: uuid, Memory: memory, Whole: memory == 0}
	if err := account.Create(dir, limit, account.Grant{ContextOverhead: overhead}); err != nil {
		n.t.Fatal(err)
	}
	return dir
}

// container makes a container that sees the given cards and holds the given
// shares, and returns its folder.
func (n *node) container(name string, cards []int, shares ...string) string {
	n.t.Helper()
	root := filepath.Join(n.dir, "containers", name)
	n.write(filepath.Join("containers", name, "dev", "nvidiactl"), "")
	for _, c := range cards {
		n.write(filepath.Join("containers", name, "dev", fmt.Sprintf("nvidia%d", c)), "")
	}
	for _, s := range shares {
		inside := filepath.Join(root, "shares", s)
		if err := os.MkdirAll(inside, 0o755); err != nil {
			n.t.Fatal(err)
		}
		for _, f := range []string{account.LimitFile, account.GrantFile, account.AccountFile} {
			if err := os.Link(filepath.Join(n.dir, "node-shares", s, f), filepath.Join(inside, f)); err != nil {
				n.t.Fatal(err)
			}
		}
	}
	return root
}

// usage is what the node reads of a share.
func (n *node) usage(share string) account.Usage {
	n.t.Helper()
	u, err := account.Read(filepath.Join(n.dir, "node-shares", share))
	if err != nil {
		n.t.Fatal(err)
	}
	return u
}

// program is a running play.
type program struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr *strings.Builder
}

// command prepares a program of the lab in a container.
func (n *node) command(container, path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Dir = container
	cmd.Env = []string{
		"LD_LIBRARY_PATH=" + n.lab.lib,
		"FAKEGPU_DIR=" + n.dir,
		"FAKEGPU_DEV=" + filepath.Join(container, "dev"),
	}
	return cmd
}

// start runs play in a container; args say how it comes to the driver.
func (n *node) start(container string, args ...string) *program {
	n.t.Helper()
	path := n.lab.play
	if len(args) > 0 && args[0] == "link" {
		path = n.lab.linked
	}
	return n.run(n.command(container, path, args...))
}

func (n *node) run(cmd *exec.Cmd) *program {
	n.t.Helper()
	p := &program{t: n.t, cmd: cmd, stderr: &strings.Builder{}}
	cmd.Stderr = p.stderr
	cmd.WaitDelay = time.Second
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		n.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	// A group of its own, so that forked children end with the test, and an end
	// of all waiting.
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	end := func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	late := time.AfterFunc(5*time.Minute, end)
	n.t.Cleanup(func() { late.Stop(); end(); p.kill() })
	return p
}

// tell gives one command and returns the answer; "dead" if there is none.
func (p *program) tell(command string) string {
	p.t.Helper()
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		return "dead"
	}
	if !p.out.Scan() {
		return "dead"
	}
	return p.out.Text()
}

// want tells and compares.
func (p *program) want(command, answer string) {
	p.t.Helper()
	if got := p.tell(command); got != answer {
		p.t.Errorf("%s: got %q, want %q (stderr: %s)", command, got, answer, p.stderr)
	}
}

// end lets the program run out and returns what it said on stderr.
func (p *program) end() string {
	p.t.Helper()
	p.in.Close()
	for p.out.Scan() {
		p.t.Errorf("unexpected output %q", p.out.Text())
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("program: %v\n%s", err, p.stderr)
	}
	return p.stderr.String()
}

// kill ends the program as the kernel does, and waits for it.
func (p *program) kill() {
	if p.cmd.ProcessState == nil {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	}
}

// openToAll lets other users reach the lab and the simulated driver's state.
func (n *node) openToAll() {
	n.t.Helper()
	for _, f := range []string{"lock", "state"} {
		if err := os.Chmod(filepath.Join(n.dir, f), 0o666); err != nil {
			n.t.Fatal(err)
		}
	}
	for _, top := range []string{n.dir, n.lab.dir} {
		for d := top; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
			if err := os.Chmod(d, 0o755); err != nil {
				n.t.Fatal(err)
			}
		}
	}
}

// within waits for a condition, as many milliseconds as the limiter has for it
// and what a busy machine adds.
func within(t testing.TB, ms int, done func() bool) {
	t.Helper()
	begun := time.Now()
	for !done() {
		if time.Since(begun) > time.Duration(ms)*time.Millisecond+30*time.Second {
			t.Fatalf("not within %d ms", ms)
		}
		time.Sleep(time.Millisecond)
	}
	t.Logf("after %v", time.Since(begun))
}
