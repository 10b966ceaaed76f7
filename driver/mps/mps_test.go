package mps

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gpu/sluice/driver/enforce"
	"github.com/sluice-gpu/sluice/driver/state"
)

// The test program is the daemon, and the program that speaks to it, when it is
// told so.
func TestMain(m *testing.M) {
	switch os.Getenv("STANDIN") {
	case "daemon":
		standIn()
	case "control":
		speak()
	default:
		os.Exit(m.Run())
	}
}

// standIn does what the control daemon does as far as the driver sees it: a
// socket, commands, a log of what it was told.
func standIn() {
	dir := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	d := Daemon{Dir: filepath.Dir(dir), Proc: "/proc"}
	if os.Getenv("STANDIN_FAILS") != "" {
		fmt.Println("no such card")
		os.Exit(1)
	}
	if err := d.Record(); err != nil {
		panic(err)
	}
	if os.Getenv("STANDIN_SILENT") != "" {
		select {}
	}
	if os.Getenv("STANDIN_DEAF") != "" {
		signal.Ignore(syscall.SIGTERM)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "control"))
	if err != nil {
		panic(err)
	}
	tell(dir, "started for "+os.Getenv("CUDA_VISIBLE_DEVICES"))
	for {
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		line, _ := bufio.NewReader(c).ReadString('\n')
		line = strings.TrimSpace(line)
		if line != "get_server_list" {
			tell(dir, line)
		}
		_, _ = fmt.Fprintln(c, "ok")
		_ = c.Close()
		if line == "quit" && os.Getenv("STANDIN_DEAF") == "" {
			os.Exit(0)
		}
	}
}

func tell(pipe, what string) {
	f, err := os.OpenFile(filepath.Join(pipe, "..", "..", "told"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	_, _ = fmt.Fprintln(f, what)
	_ = f.Close()
}

func speak() {
	c, err := net.Dial("unix", filepath.Join(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "control"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	_, _ = fmt.Fprint(c, line)
	answer, _ := bufio.NewReader(c).ReadString('\n')
	fmt.Print(answer)
	os.Exit(0)
}

// host is a node with two cards.
type host struct {
	t     *testing.T
	dir   string
	env   []string
	mu    sync.Mutex
	modes map[string]bool
	fails error
}

func newHost(t *testing.T, env ...string) *host {
	dir, err := os.MkdirTemp("", "mps") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, dir: dir, env: env, modes: map[string]bool{}}
	t.Cleanup(func() {
		for _, card := range []string{"GPU-a", "GPU-b"} {
			if pid := h.backend().daemon(card).PID(); pid != 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		_ = os.RemoveAll(dir)
	})
	return h
}

func (h *host) SetExclusive(uuid string, exclusive bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fails != nil {
		return h.fails
	}
	h.modes[uuid] = exclusive
	return nil
}

// backend is that of a driver that was just started.
func (h *host) backend() *Backend {
	self, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	return New(Config{
		Dir: filepath.Join(h.dir, "mps"), DriverRoot: "/", Proc: "/proc", Cards: h, Ready: patient, Quit: patient,
		Run: func(d Daemon, control bool) (string, []string) {
			role := "daemon"
			if control {
				role = "control"
			}
			args := append([]string{"STANDIN=" + role}, d.Environment(d.pipe(), d.logs())...)
			return "/usr/bin/env", append(append(args, h.env...), self)
		},
	})
}

// patient is longer than a healthy daemon takes on a busy machine.
const patient = 90 * time.Second

func (h *host) share(name, card string, memoryMi, cores int64) enforce.Share {
	return enforce.Share{
		Share: state.Share{Device: "gpu-x", Cards: []string{card}, MemoryMi: memoryMi, Cores: cores},
		Name:  name, Dir: filepath.Join(h.dir, "shares", name),
	}
}

// told is what daemons heard, and clears it.
func (h *host) told() string {
	b, _ := os.ReadFile(filepath.Join(h.dir, "mps", "told"))
	_ = os.Remove(filepath.Join(h.dir, "mps", "told"))
	return strings.TrimSpace(string(b))
}

// try prepares as the plugin does: what has to start is waited for.
func (h *host) try(b *Backend, s enforce.Share) (enforce.Result, error) {
	r, err := b.Prepare(h.t.Context(), s)
	var starting *enforce.NotReady
	if !errors.As(err, &starting) {
		return r, err
	}
	if err := starting.Wait(h.t.Context()); err != nil {
		return r, err
	}
	return b.Prepare(h.t.Context(), s)
}

func (h *host) prepare(b *Backend, s enforce.Share) enforce.Result {
	h.t.Helper()
	r, err := h.try(b, s)
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

func (h *host) settle(b *Backend, live ...enforce.Share) {
	h.t.Helper()
	if err := b.Settle(h.t.Context(), live); err != nil {
		h.t.Fatal(err)
	}
	for _, s := range live { // it waits for nothing
		h.prepare(b, s)
	}
}

// A daemon that starts and says nothing would, if somebody waited for it with the
// checkpoint, keep every pod of the node from starting.
func TestNothingWaitsForASilentDaemonButItsOwnShare(t *testing.T) {
	h := newHost(t, "STANDIN_SILENT=1")
	b := h.backend()
	b.cfg.Ready = time.Hour // whoever waited would wait for ever
	s := h.share("s", "GPU-a", 1024, 0)
	d := b.daemon("GPU-a")
	var starting *enforce.NotReady
	if _, err := b.Prepare(t.Context(), s); !errors.As(err, &starting) {
		t.Fatalf("got %v", err)
	}
	for end := time.Now().Add(patient); d.PID() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not start")
		}
	}
	pid := d.PID()
	// Neither its own share nor what tends daemons waits, or starts another.
	for _, live := range [][]enforce.Share{{s}, nil} {
		if err := b.Settle(t.Context(), live); err != nil {
			t.Error(err)
		}
		if _, err := b.Prepare(t.Context(), h.share("next", "GPU-a", 1024, 0)); !errors.As(err, &starting) {
			t.Errorf("got %v", err)
		}
		if now := d.PID(); now != pid {
			t.Errorf("the daemon was %d and is %d", pid, now)
		}
	}
	if h.modes["GPU-a"] {
		t.Error("the card is exclusive before anybody can use it")
	}
	b.cfg.Ready = time.Millisecond
	if err := starting.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "not ready after 1ms; it said: nothing") {
		t.Errorf("got %v", err)
	}
	h.settle(b)
	if d.PID() != 0 {
		t.Error("it was not ended")
	}
}

// Between the two rounds of a Prepare the share is nowhere to be seen.
func TestADaemonIsKeptForTheShareThatWaitedForIt(t *testing.T) {
	h := newHost(t)
	b := h.backend()
	s := h.share("s", "GPU-a", 1024, 0)
	d := b.daemon("GPU-a")
	var starting *enforce.NotReady
	if _, err := b.Prepare(t.Context(), s); !errors.As(err, &starting) {
		t.Fatalf("got %v", err)
	}
	if err := starting.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := d.PID()
	h.settle(b) // as an Unprepare of another claim does
	if _, err := b.Prepare(t.Context(), s); err != nil || d.PID() != pid {
		t.Errorf("the daemon was %d and is %d; the share got %v", pid, d.PID(), err)
	}
	// A share that never comes back for it does not keep it for ever.
	if err := state.WriteFile(d.mark(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.cfg.Ready = time.Nanosecond
	if h.settle(b); d.PID() != 0 {
		t.Error("it was not ended")
	}
}

func TestACardHasOneDaemonFromItsFirstShareToItsLast(t *testing.T) {
	h := newHost(t)
	b := h.backend()
	one, two, other := h.share("one", "GPU-a", 1024, 0), h.share("two", "GPU-a", 2048, 30), h.share("other", "GPU-b", 512, 0)
	h.prepare(b, one)
	pid := b.daemon("GPU-a").PID()
	h.prepare(b, two)
	h.prepare(b, other)
	if now := b.daemon("GPU-a").PID(); pid == 0 || now != pid {
		t.Errorf("the daemon was %d and is %d", pid, now)
	}
	if got := h.told(); got != "started for GPU-a\nstarted for GPU-b" {
		t.Errorf("daemons were told:\n%s", got)
	}
	if diff := cmp.Diff(map[string]bool{"GPU-a": true, "GPU-b": true}, h.modes); diff != "" {
		t.Error(diff)
	}
	h.settle(b, two, other)
	if b.daemon("GPU-a").PID() != pid {
		t.Error("ended though a share is there")
	}
	h.settle(b, other)
	if b.daemon("GPU-a").PID() != 0 || b.daemon("GPU-b").PID() == 0 {
		t.Error("the daemon of the card without shares runs, or the other does not")
	}
	if got := h.told(); got != "quit" {
		t.Errorf("it was told %q", got)
	}
	if _, err := os.Stat(filepath.Join(h.dir, "mps", "GPU-a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder: %v", err)
	}
	if diff := cmp.Diff(map[string]bool{"GPU-a": false, "GPU-b": true}, h.modes); diff != "" {
		t.Error(diff)
	}
}

// A container that cleans its /tmp as root removes the daemon's socket. The
// programs that are connected are not touched, and nobody is kept waiting.
func TestADaemonWhoseSocketWasRemovedIsToldOfAtOnce(t *testing.T) {
	h := newHost(t)
	b := h.backend()
	s := h.share("s", "GPU-a", 1024, 0)
	h.prepare(b, s)
	d := b.daemon("GPU-a")
	pid := d.PID()
	if err := os.Remove(filepath.Join(d.pipe(), "control")); err != nil {
		t.Fatal(err)
	}
	b.cfg.Ready = time.Hour
	_, err := b.Prepare(t.Context(), h.share("next", "GPU-a", 1024, 0))
	if err == nil || !strings.Contains(err.Error(), "/tmp/nvidia-mps/control is gone") {
		t.Errorf("got %v", err)
	}
	if d.PID() != pid {
		t.Error("the daemon was ended under its clients")
	}
	h.settle(b)
	if d.PID() != 0 {
		t.Error("it runs without shares")
	}
	h.prepare(b, s)
}

// The pipe folder is a tenant's to write to.
func TestClientsDoNotFillTheNodesDisk(t *testing.T) {
	h := newHost(t)
	b := h.backend()
	s := h.share("s", "GPU-a", 1024, 0)
	h.prepare(b, s)
	pipe := b.daemon("GPU-a").pipe()
	elsewhere := filepath.Join(h.dir, "elsewhere")
	for _, name := range []string{elsewhere, filepath.Join(pipe, "small"), filepath.Join(pipe, "large")} {
		if err := os.WriteFile(name, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	size := func(name string) int64 {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	h.settle(b, s)
	if size(filepath.Join(pipe, "small")) != 1 {
		t.Error("a file was emptied while there is little in all")
	}
	if err := errors.Join(os.Truncate(filepath.Join(pipe, "large"), pipeBytes), os.Symlink(elsewhere, filepath.Join(pipe, "link")), syscall.Mkfifo(filepath.Join(pipe, "fifo"), 0o644)); err != nil {
		t.Fatal(err)
	}
	h.settle(b, s)
	if got := size(filepath.Join(pipe, "large")) + size(filepath.Join(pipe, "small")); got != 0 {
		t.Errorf("%d bytes are left", got)
	}
	if size(elsewhere) != 1 {
		t.Error("a link of the tenant's was followed")
	}
	if b.daemon("GPU-a").PID() == 0 {
		t.Error("the daemon ended")
	}
}

func TestADriverThatStartsGoesOnWithTheDaemonItFinds(t *testing.T) {
	h := newHost(t)
	s := h.share("s", "GPU-a", 1024, 0)
	h.prepare(h.backend(), s)
	pid := h.backend().daemon("GPU-a").PID()
	next := h.backend()
	if !next.There(s) {
		t.Error("what is there is not seen")
	}
	h.settle(next, s)
	h.prepare(next, h.share("t", "GPU-a", 1024, 0))
	if now := next.daemon("GPU-a").PID(); now != pid || pid == 0 {
		t.Errorf("the daemon was %d and is %d: clients were cut", pid, now)
	}
}

func TestADaemonThatDiedIsStartedAgainInTheSameFolder(t *testing.T) {
	h := newHost(t)
	b := h.backend()
	s := h.share("s", "GPU-a", 1024, 0)
	h.prepare(b, s)
	d := b.daemon("GPU-a")
	before, err := os.Stat(d.pipe())
	if err != nil {
		t.Fatal(err)
	}
	pid := d.PID()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if !gone(t.Context(), d, pid) {
		t.Fatal("it lives")
	}
	if b.There(s) {
		t.Error("a share is there whose daemon is not")
	}
	h.settle(b, s)
	if now := d.PID(); now == 0 || now == pid {
		t.Errorf("the daemon was %d and is %d", pid, now)
	}
	// Containers have the folder mounted: another one would be out of their sight.
	if after, err := os.Stat(d.pipe()); err != nil || !os.SameFile(before, after) {
		t.Errorf("the pipe folder is another one (%v)", err)
	}
}

func TestAShareWhoseDaemonDoesNotStartIsRefusedWithWhatItSaid(t *testing.T) {
	h := newHost(t, "STANDIN_FAILS=1")
	b := h.backend()
	b.cfg.Ready = time.Hour // nobody waits for what has ended
	_, err := h.try(b, h.share("s", "GPU-a", 1024, 0))
	if err == nil || !strings.Contains(err.Error(), "GPU-a") || !strings.Contains(err.Error(), "ended before it was ready; it said: no such card") {
		t.Fatalf("got %v", err)
	}
	h.settle(b)
	if list, _ := os.ReadDir(filepath.Join(h.dir, "mps")); len(list) != 0 {
		t.Errorf("left: %v", list)
	}
	if h.modes["GPU-a"] {
		t.Error("the card is still exclusive")
	}
}

func TestADaemonThatDoesNotListenIsKilled(t *testing.T) {
	h := newHost(t, "STANDIN_DEAF=1")
	b := h.backend()
	h.prepare(b, h.share("s", "GPU-a", 1024, 0))
	pid := b.daemon("GPU-a").PID()
	b.cfg.Quit = 100 * time.Millisecond // as patient as the test
	h.settle(b)
	if _, ended, err := statOf("/proc", pid); err == nil && !ended {
		t.Errorf("process %d lives", pid)
	}
}

func TestACardWhoseModeCannotBeSetIsNotShared(t *testing.T) {
	h := newHost(t)
	h.fails = errors.New("no permission")
	if _, err := h.try(h.backend(), h.share("s", "GPU-a", 1024, 0)); err == nil || !strings.Contains(err.Error(), "EXCLUSIVE_PROCESS: no permission") {
		t.Errorf("got %v", err)
	}
}

// TestARecordOfAnotherProcessIsNotBelieved: PIDs are used again.
func TestARecordOfAnotherProcessIsNotBelieved(t *testing.T) {
	h := newHost(t)
	d := h.backend().daemon("GPU-a")
	if err := os.MkdirAll(d.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	start, _, err := statOf("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]record{
		"this process, started at another time": {PID: os.Getpid(), Start: start + 1},
		"no process":                            {PID: 1 << 30, Start: 1},
		"nothing":                               {},
	} {
		b, _ := json.Marshal(r)
		if err := os.WriteFile(d.record(), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := d.PID(); got != 0 {
			t.Errorf("%s: %d", name, got)
		}
	}
	if err := os.WriteFile(d.record(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if d.PID() != 0 {
		t.Error("a damaged record is believed")
	}
}

func TestContainersAreToldTheirShareAndJoined(t *testing.T) {
	h := newHost(t)
	s := h.share("s", "GPU-a", 20480, 30)
	r := h.prepare(h.backend(), s)
	want := []string{"CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30"}
	if diff := cmp.Diff(want, r.Edits.Env); diff != "" {
		t.Error(diff)
	}
	got := map[string]string{}
	for _, m := range r.Edits.Mounts {
		got[m.ContainerPath] = strings.TrimPrefix(m.HostPath, h.dir)
	}
	if diff := cmp.Diff(map[string]string{
		"/tmp/nvidia-mps": "/mps/GPU-a/pipe", "/dev/shm": "/mps/GPU-a/shm", "/run/sluice/shares/s/mps": "/shares/s/mps",
	}, got); diff != "" {
		t.Error(diff)
	}
	for _, e := range environment(h.share("s", "GPU-a", 1, 0)) {
		if strings.Contains(e, "THREAD") {
			t.Errorf("a share without cores is told %s", e)
		}
	}
}

func TestTheDaemonsGroupIsBesideThatOfPods(t *testing.T) {
	for name, tc := range map[string]struct {
		mine, mounted string
		want          []string
	}{
		"version 2": {
			"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/cri-containerd-2.scope\n",
			"31 23 0:28 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
			[]string{"/sys/fs/cgroup/sluice-mps"},
		},
		"version 1, below a folder": {
			"3:cpu,cpuacct:/nodes/n1/kubepods/besteffort/pod1/2\n2:name=systemd:/nodes/n1/kubepods/besteffort/pod1/2\n1:pids:/elsewhere\n",
			"32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n33 31 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n34 31 0:31 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n",
			[]string{"/sys/fs/cgroup/cpu,cpuacct/nodes/n1/sluice-mps", "/sys/fs/cgroup/systemd/nodes/n1/sluice-mps"},
		},
		"in no pod": {"0::/user.slice\n", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", nil},
	} {
		if diff := cmp.Diff(tc.want, beside([]byte(tc.mine), []byte(tc.mounted))); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}
