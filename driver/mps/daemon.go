package mps

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/sluice-gpu/sluice/driver/state"
)

// Daemon is the MPS control daemon of one card.
type Daemon struct {
	// Card is the card's UUID.
	Card string
	// Dir is the daemon's folder, at the same path on the host.
	Dir string
	// DriverRoot is the folder of the host below which the NVIDIA driver's
	// programs are.
	DriverRoot string
	// Proc is where procfs is mounted, of the host's PID namespace.
	Proc string
}

func (d Daemon) pipe() string   { return filepath.Join(d.Dir, "pipe") }
func (d Daemon) shm() string    { return filepath.Join(d.Dir, "shm") }
func (d Daemon) logs() string   { return filepath.Join(d.Dir, "log") }
func (d Daemon) record() string { return filepath.Join(d.Dir, "daemon.json") }

// mark is there from before the daemon's start until a share has it, or it has
// failed. In between nobody may end it: the share is not in the checkpoint yet.
func (d Daemon) mark() string { return filepath.Join(d.Dir, "started") }

// Log is where the daemon's output goes.
func (d Daemon) Log() string { return filepath.Join(d.logs(), "daemon.log") }

// lastLog is the output of the daemon before this one, which may say why it ended.
func (d Daemon) lastLog() string { return d.Log() + ".1" }

// record tells which process is the daemon. A PID alone does not: it may be
// another process by now.
type record struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot
}

// Record notes that this very process, by its PID in Proc, is the daemon.
func (d Daemon) Record() error {
	pid := os.Getpid()
	start, _, err := statOf(d.Proc, pid)
	if err != nil {
		return err
	}
	b, err := json.Marshal(record{PID: pid, Start: start})
	if err != nil {
		return err
	}
	return state.WriteFile(d.record(), b, 0o600)
}

// PID is the daemon's; 0 if it does not run.
func (d Daemon) PID() int {
	r := d.recorded()
	if r.PID <= 0 {
		return 0
	}
	start, ended, err := statOf(d.Proc, r.PID)
	if err != nil || ended || start != r.Start {
		return 0
	}
	return r.PID
}

// recorded is the record as it lies there; none has PID 0.
func (d Daemon) recorded() (r record) {
	b, err := os.ReadFile(d.record())
	if err != nil || json.Unmarshal(b, &r) != nil {
		return record{}
	}
	return r
}

// awaited tells that the daemon was started less than patience ago and no share
// has it yet. It may not have come to its record.
func (d Daemon) awaited(patience time.Duration) bool {
	info, err := os.Stat(d.mark())
	return err == nil && time.Since(info.ModTime()) < patience
}

func (d Daemon) running() bool { return d.PID() != 0 }

// ready tells whether clients can connect: the daemon has made its socket.
func (d Daemon) ready() bool {
	info, err := os.Stat(filepath.Join(d.pipe(), "control"))
	return err == nil && info.Mode()&os.ModeSocket != 0 && d.running()
}

// Environment is what the daemon and the program that speaks to it are given.
// pipe and logs are where they see those folders.
func (d Daemon) Environment(pipe, logs string) []string {
	return []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"CUDA_VISIBLE_DEVICES=" + d.Card,
		"CUDA_MPS_PIPE_DIRECTORY=" + pipe,
		"CUDA_MPS_LOG_DIRECTORY=" + logs,
	}
}

// start runs the daemon in a session of its own, which outlives this process.
// The channel is closed when it ends while this process lives.
func (b *Backend) start(ctx context.Context, d Daemon) (<-chan struct{}, error) {
	log := klog.FromContext(ctx).WithValues("card", d.Card)
	if before := d.recorded(); before.PID > 0 {
		log.Info("The MPS control daemon of the card is gone; starting another", "was", before.PID, "said", d.said())
	}
	if err := os.Rename(d.Log(), d.lastLog()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	// What a daemon left that died would be taken for the new one's.
	for _, name := range []string{filepath.Join(d.pipe(), "control"), d.record()} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	if err := state.WriteFile(d.mark(), nil, 0o600); err != nil {
		return nil, err
	}
	out, err := os.OpenFile(d.Log(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	program, args := b.cfg.Run(d, false)
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	log.Info("Started the MPS control daemon of the card", "pid", cmd.Process.Pid)
	go func() { // while this process lives it is the parent
		_ = cmd.Wait()
		log.Info("The MPS control daemon of the card ended", "pid", cmd.Process.Pid, "with", cmd.ProcessState.String(), "said", d.said())
		close(ended)
	}()
	return ended, nil
}

// wait returns when the daemon answers, so that clients can connect, or says why
// they cannot: at once when it has ended. The next who asks starts another then.
func (b *Backend) wait(ctx context.Context, d Daemon, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Ready)
	defer cancel()
	fail := func(format string, args ...any) error {
		_ = os.Remove(d.mark())
		return fmt.Errorf(format+"; it said: %s", append(args, d.said())...)
	}
	for {
		if d.ready() {
			if _, err := b.Control(ctx, d, "get_server_list"); err == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fail("is not ready after %s", b.cfg.Ready)
		case <-ended:
			return fail("ended before it was ready")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// said is the last line that the daemon wrote.
func (d Daemon) said() string {
	b, _ := os.ReadFile(d.Log())
	return lastLine(b)
}

func lastLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return last
	}
	return "nothing"
}

// Patience with a command, and with the end of a process that was killed.
const patience = 5 * time.Second

// stop ends the daemon and its servers. Containers have no clients any more, so
// that nothing is lost with one that does not listen and is killed.
func (b *Backend) stop(ctx context.Context, d Daemon) error {
	pid := d.PID()
	if pid == 0 {
		return nil
	}
	if d.ready() {
		soon, cancel := context.WithTimeout(ctx, b.cfg.Quit)
		defer cancel()
		if _, err := b.Control(soon, d, "quit"); err == nil && gone(soon, d, pid) {
			return nil
		}
	}
	for _, p := range session(d.Proc, pid) { // what it started
		if err := syscall.Kill(p, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if !gone(ctx, d, pid) {
		return fmt.Errorf("process %d does not end", pid)
	}
	return nil
}

func gone(ctx context.Context, d Daemon, pid int) bool {
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		if d.PID() != pid {
			return true
		}
	}
	return d.PID() != pid
}

// Control gives the daemon a command and returns what it answers.
func (b *Backend) Control(ctx context.Context, d Daemon, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	program, args := b.cfg.Run(d, true)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(command + "\n")
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("telling it %q: %w: %s", command, err, lastLine(said.Bytes()))
	}
	return strings.TrimSpace(out.String()), nil
}

// statOf reads /proc/<pid>/stat (proc_pid_stat(5)). A process has ended when its
// parent alone knows of it. That its first thread is a zombie is not enough:
// others may still hold the card and the sockets.
func statOf(proc string, pid int) (start uint64, ended bool, err error) {
	fields, err := statFields(proc, pid)
	if err != nil {
		return 0, false, err
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	dead := fields[0] == "Z" || fields[0] == "X"
	return start, dead && (fields[17] == "0" || fields[17] == "1"), err
}

// session lists the processes of the session that pid leads.
func session(proc string, pid int) []int {
	list, _ := os.ReadDir(proc)
	var out []int
	for _, e := range list {
		p, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if fields, err := statFields(proc, p); err == nil && fields[3] == strconv.Itoa(pid) {
			out = append(out, p)
		}
	}
	return out
}

// statFields are those that follow the command's name, which may contain
// anything: the state is the first, the session the fourth, the start time the
// twentieth.
func statFields(proc string, pid int) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("%s/%d/stat has %d fields", proc, pid, len(fields))
	}
	return fields, nil
}
