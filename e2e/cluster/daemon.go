package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stopPatience is how long a daemon may take to end when asked to, before it is killed. etcd waits
// seven seconds for the streams of an API server that does not go away.
const stopPatience = 30 * time.Second

// endPatience is how long what was killed may take to be gone.
const endPatience = time.Minute

// machineEnv is the environment of what runs on a machine.
func machineEnv() []string {
	return []string{
		"PATH=" + binDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root",
		"LANG=C.UTF-8",
		"CONTAINERD_ADDRESS=" + containerdSocket,
		"CONTAINERD_NAMESPACE=k8s.io",
	}
}

func (m *machine) pidFile(name string) string { return filepath.Join(m.dir, name+".json") }

// logFile is where the outer machine finds what a daemon printed.
func (m *machine) logFile(name string) string { return filepath.Join(m.dir, name+".log") }

// start starts a daemon of the machine. Its output is appended to its log file. It does not wait
// until the daemon is ready.
func (m *machine) start(c component) error {
	if p, err := readProcess(m.pidFile(c.name)); err == nil && p.alive() {
		return fmt.Errorf("%s: %s runs already, as process %d", m.name, c.name, p.PID)
	}
	log, err := os.OpenFile(m.logFile(c.name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	var cmd *exec.Cmd
	err = m.enter(func() error {
		cmd = &exec.Cmd{
			Path:        c.path,
			Args:        append([]string{c.path}, c.args...),
			Env:         machineEnv(),
			Dir:         "/",
			Stdout:      log,
			Stderr:      log,
			SysProcAttr: &syscall.SysProcAttr{Setsid: true},
		}
		return cmd.Start()
	})
	if err != nil {
		return fmt.Errorf("%s: start %s: %w", m.name, c.name, err)
	}
	p, err := startedProcess(cmd)
	if err != nil {
		return fmt.Errorf("%s: start %s: %w", m.name, c.name, err)
	}
	return p.write(m.pidFile(c.name))
}

// startedProcess identifies what cmd has just started and sees to its being reaped for as long as
// this process lives. An unreaped process would keep its machine's PID namespace from ending.
func startedProcess(cmd *exec.Cmd) (process, error) {
	p, err := identify(cmd.Process.Pid)
	go cmd.Wait() //nolint:errcheck // whoever cares looks at the process
	if errors.Is(err, errEnded) {
		return process{PID: cmd.Process.Pid}, nil // waiting for readiness will tell
	}
	return p, err
}

// stop ends a daemon of the machine and leaves what it started alone. It is no error that the
// daemon is not running.
func (m *machine) stop(name string) error {
	p, err := readProcess(m.pidFile(name))
	if err != nil || !p.alive() {
		return nil
	}
	for _, way := range []struct {
		signal   unix.Signal
		patience time.Duration
	}{{unix.SIGTERM, stopPatience}, {unix.SIGKILL, endPatience}} {
		if err := unix.Kill(p.PID, way.signal); err != nil && err != unix.ESRCH {
			return fmt.Errorf("%s: stop %s: %w", m.name, name, err)
		}
		if p.waitGone(way.patience) {
			return nil
		}
	}
	return fmt.Errorf("%s: %s, process %d, does not end", m.name, name, p.PID)
}

// check says whether a daemon is alive; when not, the error ends with the last lines of its log.
func (m *machine) check(name string) error {
	p, err := readProcess(m.pidFile(name))
	if err == nil && p.alive() {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %s was not started", m.name, name)
	}
	return fmt.Errorf("%s: %s has died; the end of %s:\n%s", m.name, name, m.logFile(name), logTail(m.logFile(name), 15))
}

// logTail is the last lines of a file, or why it cannot be read.
func logTail(file string, lines int) string {
	f, err := os.Open(file)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	const most = 16 << 10
	if size, err := f.Seek(0, io.SeekEnd); err == nil && size > most {
		f.Seek(-most, io.SeekEnd) //nolint:errcheck // within the file
	} else {
		f.Seek(0, io.SeekStart) //nolint:errcheck // within the file
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// run runs a command on the machine and waits for its end. The command's path is looked up on
// the machine. A nil stdin is an empty one.
func (m *machine) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, argv ...string) error {
	if len(argv) == 0 {
		return errors.New("no command given")
	}
	var cmd *exec.Cmd
	err := m.enter(func() error {
		path, err := lookPath(argv[0])
		if err != nil {
			return err
		}
		cmd = exec.CommandContext(ctx, path, argv[1:]...)
		cmd.Env, cmd.Dir = machineEnv(), "/"
		cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
		return cmd.Start()
	})
	if err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	return cmd.Wait()
}

// lookPath finds a program in the machine's own PATH; the caller is on the machine.
func lookPath(program string) (string, error) {
	if strings.Contains(program, "/") {
		return program, nil
	}
	path := strings.TrimPrefix(machineEnv()[0], "PATH=")
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, program)
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s: not found in %s", program, path)
}
