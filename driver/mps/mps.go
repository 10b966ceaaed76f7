// Package mps is the enforcement by NVIDIA's Multi-Process Service: programs of
// all shares of a card are clients of one MPS server, which runs their kernels
// side by side and holds each to the memory and the part of the multiprocessors
// that its environment says.
//
// Each card that has such shares has one MPS control daemon, NVIDIA's own, in a
// folder of its own. The daemon is started with the first share and ended with
// the last. It runs outside of this driver's container (launch.go), so that a
// restart or an upgrade of the driver cuts no client; a driver that starts finds
// it by the record in the folder and goes on with it. While it runs the card is
// in compute mode EXCLUSIVE_PROCESS: a program that turns its back on MPS gets
// no context, rather than one without limits.
//
// Nothing is kept in memory between two calls. What the daemons are told and
// what containers get is decided by the pure functions defaults and edits.
package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/sluice-gpu/sluice/cdi"
	"github.com/sluice-gpu/sluice/driver/enforce"
	"github.com/sluice-gpu/sluice/driver/state"
)

// Where a container finds MPS. The folder is the one in which CUDA looks when
// nobody tells it another.
const (
	ContainerPipe = "/tmp/nvidia-mps"
	ContainerShm  = "/dev/shm"
	// ShareFile is in the folder of each share, and mounted in its containers: by
	// it the driver sees that they run.
	ShareFile = "mps"
)

// Modes sets the compute mode of cards.
type Modes interface {
	// SetExclusive allows one process, the MPS server, to have contexts on the
	// card, or all that ask.
	SetExclusive(uuid string, exclusive bool) error
}

// Config is what a Backend is made of. All fields without a remark are required.
type Config struct {
	// Dir has a folder for each card with a daemon. It has the same path on the
	// host.
	Dir string
	// DriverRoot is the folder of the host below which the NVIDIA driver's
	// programs are.
	DriverRoot string
	// Proc is where procfs is mounted, of the host's PID namespace.
	Proc string
	// Cards sets compute modes. Nil: they stay as they are.
	Cards Modes
	// Run makes the command that starts a daemon, and the one that speaks to it.
	// Default: this program's own, which leave its container for the host.
	Run func(d Daemon, control bool) (program string, args []string)
	// Ready is how long a daemon may take to start. Default 10 s.
	Ready time.Duration
	// Quit is how long a daemon without clients may take to end by itself before
	// it is killed. The whole node waits for it. Default 1 s.
	Quit time.Duration
}

// Backend implements enforce.Backend and enforce.Settler.
type Backend struct{ cfg Config }

// New returns a backend; it starts nothing.
func New(cfg Config) *Backend {
	if cfg.Run == nil {
		cfg.Run = command
	}
	if cfg.Ready <= 0 {
		cfg.Ready = 10 * time.Second
	}
	if cfg.Quit <= 0 {
		cfg.Quit = time.Second
	}
	return &Backend{cfg}
}

// daemon is that of a card.
func (b *Backend) daemon(card string) Daemon {
	return Daemon{Card: card, Dir: filepath.Join(b.cfg.Dir, card), DriverRoot: b.cfg.DriverRoot, Proc: b.cfg.Proc}
}

// Prepare implements enforce.Backend.
func (b *Backend) Prepare(ctx context.Context, s enforce.Share) (enforce.Result, error) {
	if len(s.Cards) != 1 {
		return enforce.Result{}, fmt.Errorf("a share of %d cards cannot be held by MPS: its limits are for one", len(s.Cards))
	}
	d := b.daemon(s.Cards[0])
	if err := b.ensure(ctx, d); err != nil {
		return enforce.Result{}, fmt.Errorf("the MPS control daemon of card %s: %w", d.Card, err)
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return enforce.Result{}, err
	}
	if err := state.WriteFile(filepath.Join(s.Dir, ShareFile), []byte(strings.Join(environment(s), "\n")+"\n"), 0o644); err != nil {
		return enforce.Result{}, err
	}
	return enforce.Result{Edits: edits(d, s)}, nil
}

// environment are the limits of a share as its programs' MPS client reads them.
// The card is number 0 there: the daemon serves no other. Without cores a share
// may use all of the card's multiprocessors.
func environment(s enforce.Share) []string {
	env := []string{
		"CUDA_MPS_PIPE_DIRECTORY=" + ContainerPipe,
		fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", s.MemoryMi),
	}
	if s.Cores > 0 {
		env = append(env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="+strconv.FormatInt(s.Cores, 10))
	}
	return env
}

// edits join containers of a share to the daemon. The server and its clients
// speak by the pipe folder and by files in /dev/shm, which therefore is one for
// all clients of the card.
func edits(d Daemon, s enforce.Share) specs.ContainerEdits {
	mount := func(host, at string, options ...string) *specs.Mount {
		return &specs.Mount{HostPath: host, ContainerPath: at, Options: append(options, "nosuid", "nodev", "noexec", "rbind", "rprivate")}
	}
	return specs.ContainerEdits{
		Env: environment(s),
		Mounts: []*specs.Mount{
			mount(d.pipe(), ContainerPipe, "rw"),
			mount(d.shm(), ContainerShm, "rw"),
			mount(filepath.Join(s.Dir, ShareFile), filepath.Join(cdi.SharesDir, s.Name, ShareFile), "ro"),
		},
	}
}

// There implements enforce.Backend.
func (b *Backend) There(s enforce.Share) bool {
	if len(s.Cards) != 1 {
		return false
	}
	if _, err := os.Stat(filepath.Join(s.Dir, ShareFile)); err != nil {
		return false
	}
	d := b.daemon(s.Cards[0])
	return d.ready()
}

// InUse implements enforce.Backend. Containers of a share have ShareFile
// mounted, which the caller sees by itself; a process that is a client without
// such a container is none of the share's.
func (b *Backend) InUse(enforce.Share) bool { return false }

// Settle implements enforce.Settler: it ends the daemons of cards without
// shares, starts those that should run and do not, and keeps their clients from
// filling the node's disk.
func (b *Backend) Settle(ctx context.Context, live []enforce.Share) error {
	needed := map[string]bool{}
	var errs []error
	for _, s := range live {
		if len(s.Cards) != 1 || needed[s.Cards[0]] {
			continue
		}
		needed[s.Cards[0]] = true
		d := b.daemon(s.Cards[0])
		var starting *enforce.NotReady
		if err := b.ensure(ctx, d); err != nil && !errors.As(err, &starting) {
			errs = append(errs, fmt.Errorf("the MPS control daemon of card %s: %w", s.Cards[0], err))
		}
		over, err := d.trim()
		if err != nil {
			errs = append(errs, fmt.Errorf("what clients left beside the MPS control daemon of card %s: %w", s.Cards[0], err))
		}
		if over > 0 {
			klog.FromContext(ctx).Info("Clients filled the folder of the MPS control daemon; its files were emptied", "card", d.Card, "bytes", over)
		}
	}
	list, err := os.ReadDir(b.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, e := range list {
		d := b.daemon(e.Name())
		if needed[e.Name()] || d.awaited(b.cfg.Ready) {
			continue
		}
		if err := b.end(ctx, d); err != nil {
			errs = append(errs, fmt.Errorf("ending the MPS control daemon of card %s: %w", e.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// ensure has the card's daemon running. It is nil when the daemon is ready and
// the card its alone, and waits for nothing: a daemon that is not ready yet is a
// NotReady. The folder is there before anything else and removed after everything
// else, so that a process that died half way leaves what Settle ends.
func (b *Backend) ensure(ctx context.Context, d Daemon) error {
	if d.ready() {
		if err := os.Remove(d.mark()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if b.cfg.Cards != nil {
			if err := b.cfg.Cards.SetExclusive(d.Card, true); err != nil {
				return fmt.Errorf("compute mode EXCLUSIVE_PROCESS: %w", err)
			}
		}
		return nil
	}
	var ended <-chan struct{}
	switch {
	case d.awaited(b.cfg.Ready):
	case d.running():
		// Its clients can remove what is in the pipe folder. Those that are
		// connected go on.
		return fmt.Errorf("runs and its socket %s is gone: a container removed it; when the pods with shares of the card have ended, another daemon is started", filepath.Join(ContainerPipe, "control"))
	default:
		for _, dir := range []string{d.pipe(), d.shm(), d.logs()} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			// Clients of any user connect to what is in them. Mkdir obeys the umask.
			if err := os.Chmod(dir, 0o1777); err != nil {
				return err
			}
		}
		var err error
		if ended, err = b.start(ctx, d); err != nil {
			return err
		}
	}
	return &enforce.NotReady{What: "it", Wait: func(ctx context.Context) error {
		if err := b.wait(ctx, d, ended); err != nil {
			return fmt.Errorf("the MPS control daemon of card %s: %w", d.Card, err)
		}
		return nil
	}}
}

func (b *Backend) end(ctx context.Context, d Daemon) error {
	klog.FromContext(ctx).Info("No share needs the MPS control daemon of the card any more; ending it", "card", d.Card, "pid", d.PID())
	if err := b.stop(ctx, d); err != nil {
		return err
	}
	if b.cfg.Cards != nil {
		if err := b.cfg.Cards.SetExclusive(d.Card, false); err != nil {
			return fmt.Errorf("compute mode DEFAULT: %w", err)
		}
	}
	// A driver that started after the daemon has the daemon's memory mounted, too.
	// Where it is not, RemoveAll is all there is to do: what other namespaces have
	// mounted on a folder goes with the folder.
	_ = unix.Unmount(d.shm(), unix.MNT_DETACH)
	return os.RemoveAll(d.Dir)
}
