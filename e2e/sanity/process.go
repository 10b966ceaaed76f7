package sanity

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
)

// process is a driver that the suite starts and ends.
type process struct {
	argv   []string
	env    []string
	output io.Writer
	// podUIDs gives each start a POD_UID of its own.
	podUIDs bool

	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
	err  error         // how it ended
}

func (p *process) start() error {
	cmd := exec.Command(p.argv[0], p.argv[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	if p.podUIDs {
		cmd.Env = append(cmd.Env, "POD_UID="+string(uuid.NewUUID()))
	}
	cmd.Stdout, cmd.Stderr = p.output, p.output
	// A group of its own, so that a shell in between is ended with the driver;
	// and no driver outlives a suite that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// Something that the driver left behind may hold its output open.
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start of the driver: %w", err)
	}
	p.cmd, p.done = cmd, make(chan struct{})
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return nil
}

// ended tells that the driver is not running, and why.
func (p *process) ended() error {
	if p.cmd == nil {
		return errors.New("the driver was not started")
	}
	select {
	case <-p.done:
		return fmt.Errorf("the driver has ended: %s", p.cmd.ProcessState)
	default:
		return nil
	}
}

// stop asks the driver to end, and kills it if it does not within the time.
func (p *process) stop(within time.Duration) error {
	if p.ended() != nil {
		return nil
	}
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return nil
	case <-time.After(within):
		p.kill()
		return violated("SIGTERM", "the driver did not end within %s and was killed", within)
	}
}

// kill ends the driver as a crash would.
func (p *process) kill() {
	if p.ended() != nil {
		return
	}
	p.signal(syscall.SIGKILL)
	<-p.done
}

func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }
