package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Options say which cluster is meant and what is done with it.
type Options struct {
	// Name tells clusters apart. Empty means DefaultName.
	Name string
	// Log receives one line for each step. Nil means none.
	Log io.Writer
	// Hardware installs the nodes' simulated cards. Without it only nodes without GPUs can boot.
	Hardware Hardware
}

// Cluster is a cluster that is up, or can be brought up.
type Cluster struct {
	name     string
	log      io.Writer
	hardware Hardware
	dir      string // its state
	bin      string // the cache's binaries
	config   Config // of the cluster that is up
}

// Open names a cluster, whether it is up or not.
func Open(o Options) (*Cluster, error) {
	if o.Name == "" {
		o.Name = DefaultName
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if err := validateName(o.Name); err != nil {
		return nil, err
	}
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	root := os.Getenv("SLUICE_STATE")
	if root == "" {
		root = "/var/lib/sluice-e2e"
	}
	if root, err = filepath.Abs(root); err != nil {
		return nil, err
	}
	c := &Cluster{name: o.Name, log: o.Log, hardware: o.Hardware, dir: filepath.Join(root, o.Name), bin: filepath.Join(cache, "bin")}
	if c.config, err = c.savedConfig(); err != nil {
		return nil, err
	}
	return c, nil
}

// Load finds a cluster that is up.
func Load(o Options) (*Cluster, error) {
	c, err := Open(o)
	if err != nil {
		return nil, err
	}
	if !c.IsUp() {
		return nil, fmt.Errorf("cluster %s is not up", c.name)
	}
	return c, nil
}

// Name is the cluster's name.
func (c *Cluster) Name() string { return c.name }

// Config is what the cluster was brought up with; empty when it is not up.
func (c *Cluster) Config() Config { return c.config }

// IsUp says whether the cluster was brought up completely and not down since. Its parts may have
// died or been stopped: see Status.
func (c *Cluster) IsUp() bool {
	_, err := os.Stat(c.path(upMark))
	return err == nil
}

// upMark is the file that says that Up came to its end.
const upMark = "up"

func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

func (c *Cluster) logf(format string, args ...any) { fmt.Fprintf(c.log, format+"\n", args...) }

func (c *Cluster) saveConfig(config Config) error {
	data, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return err
	}
	c.config = config
	return os.WriteFile(c.path("config.json"), data, 0o644)
}

func (c *Cluster) savedConfig() (Config, error) {
	var config Config
	data, err := os.ReadFile(c.path("config.json"))
	if errors.Is(err, os.ErrNotExist) {
		return config, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &config)
	}
	if err != nil {
		return config, fmt.Errorf("state of cluster %s: %w", c.name, err)
	}
	return config, nil
}

// lock keeps two commands from changing one cluster at once.
func (c *Cluster) lock() (unlock func(), err error) {
	// An abstract socket (unix(7)) leaves no file, and is free again however its holder ends.
	l, err := net.Listen("unix", "@sluice-e2e"+c.dir)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("another command is changing cluster %s now: wait for it", c.name)
	}
	if err != nil {
		return nil, fmt.Errorf("lock of cluster %s: %w", c.name, err)
	}
	return func() { l.Close() }, nil
}

// index is a node's number in the address plan; 0 is the control plane.
func (c *Cluster) index(name string) (int, error) {
	if name == ControlPlane {
		return 0, nil
	}
	for i, n := range c.config.Nodes {
		if n.Name == name {
			return i + 1, nil
		}
	}
	return 0, fmt.Errorf("cluster %s has no machine %q: it has %s and %v", c.name, name, ControlPlane, c.nodeNames())
}

func (c *Cluster) nodeNames() []string {
	var names []string
	for _, n := range c.config.Nodes {
		names = append(names, n.Name)
	}
	return names
}

func (c *Cluster) machine(name string) *machine {
	return &machine{name: name, netns: netnsPath(c.name, name), dir: c.path("machines", name), bin: c.bin}
}

// findMachine is machine for a name that a caller gave.
func (c *Cluster) findMachine(name string) (*machine, error) {
	if _, err := c.index(name); err != nil {
		return nil, err
	}
	return c.machine(name), nil
}

// NodeExec runs a command on a machine, in all of its namespaces, and waits for its end. A nil
// stdin is an empty one. A command that fails gives an *exec.ExitError.
func (c *Cluster) NodeExec(ctx context.Context, machine string, stdin io.Reader, stdout, stderr io.Writer, argv ...string) error {
	m, err := c.findMachine(machine)
	if err != nil {
		return err
	}
	return m.run(ctx, stdin, stdout, stderr, argv...)
}

// NodePath is where the outer machine sees a path of a machine, such as HardwareDir. It is good
// until that machine reboots.
func (c *Cluster) NodePath(machine, path string) (string, error) {
	m, err := c.findMachine(machine)
	if err != nil {
		return "", err
	}
	return m.hostPath(path)
}

// LogFile is where a component of a machine logs to, on the outer machine.
func (c *Cluster) LogFile(machine, component string) string {
	return c.machine(machine).logFile(component)
}

// until calls f until it returns nil or the context ends. When the context's time is over the error
// is f's last one; when it was cancelled, the context's.
func until(ctx context.Context, every time.Duration, f func(context.Context) error) error {
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		var stop *fatalError
		if errors.As(err, &stop) {
			return stop.error
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
			return err
		case <-time.After(every):
		}
	}
}

// fatalError ends until early.
type fatalError struct{ error }
