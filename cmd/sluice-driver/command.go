package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/sluice-gpu/sluice/cdi/nvidia"
	"github.com/sluice-gpu/sluice/driver"
	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/enforce"
	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/limit"
	"github.com/sluice-gpu/sluice/driver/mps"
	"github.com/sluice-gpu/sluice/driver/plugin"
	"github.com/sluice-gpu/sluice/driver/state"
)

// options are the flags. The chart sets them all; their defaults are those of
// a kubelet with default folders and an NVIDIA driver installed on the host.
type options struct {
	nodeName, podUID string
	kubeconfig       string
	config           string
	kubeletDir       string
	cdiDir           string
	bootIDFile       string
	driverRoot       string
	driverRootMount  string
	devRoot          string
	devRootMount     string
	sysfsRoot        string
	cdiHook          string
	limiterLib       string
	limiterNVML      string
	limiterGuard     string
	limiterHook      string
	mps              bool
	listen           string
	scanInterval     time.Duration
	monitor          time.Duration
	reconcile        time.Duration
}

func newCommand() *cobra.Command {
	var o options
	logging := logsapi.NewLoggingConfiguration()
	cmd := &cobra.Command{
		Use:   "sluice-driver",
		Short: "Offers the GPUs of a node to the cluster and prepares them for containers",
		Long: `sluice-driver is the kubelet plugin of Sluice (DRA driver ` + driver.Name + `).

It publishes one shareable device for each card of the node, with memory and
cores as capacities, or one for each instance of a card in MIG mode, and one
device for monitoring all of them. For each claim that the scheduler gives to a
pod of this node it writes a CDI spec, with which the container runtime opens
the cards, and the files that hold each container to its part. What the cards
are cut into is told by --config.

It serves /healthz, /readyz and /metrics at --listen. It needs the kubelet's
plugin folders, the CDI folder and the NVIDIA driver's files from the host, and
permission to open the card's device nodes.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := logsapi.ValidateAndApply(logging, nil); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return run(ctx, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.nodeName, "node-name", os.Getenv("NODE_NAME"), "name of this node, also the name of its pool (env NODE_NAME)")
	f.StringVar(&o.podUID, "pod-uid", os.Getenv("POD_UID"), "UID of this pod; lets two versions overlap during a rolling update (env POD_UID)")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; empty: the service account of the pod")
	f.StringVar(&o.config, "config", "", "DriverConfiguration file; empty: every card in mode dynamic")
	f.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's root folder")
	f.StringVar(&o.cdiDir, "cdi-dir", "/var/run/cdi", "folder for CDI specs; the container runtime must read it")
	f.StringVar(&o.bootIDFile, "boot-id-file", "/proc/sys/kernel/random/boot_id", "file whose content changes with every boot of the node")
	f.StringVar(&o.driverRoot, "driver-root", "/", "folder of the host below which the NVIDIA driver's files are, for example /run/nvidia/driver")
	f.StringVar(&o.driverRootMount, "driver-root-mount", "", "where this process sees --driver-root; empty: at the same path")
	f.StringVar(&o.devRoot, "dev-root", "", "folder of the host below which dev/nvidia* are; empty: --driver-root")
	f.StringVar(&o.devRootMount, "dev-root-mount", "", "where this process sees --dev-root; empty: at the same path, or at --driver-root-mount if --dev-root is empty")
	f.StringVar(&o.sysfsRoot, "sysfs-root", "/sys", "where sysfs is mounted; tells NUMA nodes and PCIe roots")
	f.StringVar(&o.cdiHook, "cdi-hook", "/usr/bin/nvidia-cdi-hook", "nvidia-cdi-hook in this image; it is copied to the host for the container runtime")
	f.StringVar(&o.limiterLib, "limiter-lib", "", "library that stands in for libcuda in limited containers; empty: nothing holds containers to their share")
	f.StringVar(&o.limiterNVML, "limiter-nvml-lib", "", "library that stands in for libnvidia-ml in limited containers; empty: the driver's own")
	f.StringVar(&o.limiterGuard, "limiter-guard", "", "object that is preloaded in limited containers; empty: none")
	f.StringVar(&o.limiterHook, "limiter-hook", "", "sluice-cdi-hook in this image, which replaces driver libraries of a limited container's image by the limiter before it starts; it is copied to the host; empty: none")
	f.BoolVar(&o.mps, "mps", true, "offer enforcement mps: start NVIDIA's MPS control daemon for cards with such shares; needs the host's PID namespace")
	f.StringVar(&o.listen, "listen", ":9402", "address for /healthz, /readyz and /metrics; empty: none")
	f.DurationVar(&o.scanInterval, "scan-interval", 2*time.Second, "time between two looks at the cards")
	f.DurationVar(&o.monitor, "monitor-interval", 250*time.Millisecond, "time between two looks at what runs on the cards")
	f.DurationVar(&o.reconcile, "reconcile-interval", 3*time.Minute, "time between two comparisons of prepared claims with the API server")
	logsapi.AddFlags(logging, f)
	cmd.AddCommand(daemonCommand(mps.LaunchCommand, "Becomes the MPS control daemon of a card, outside of this container", mps.Daemon.Launch))
	cmd.AddCommand(daemonCommand(mps.ControlCommand, "Passes standard input to the MPS control daemon of a card", mps.Daemon.SpeakTo))
	return cmd
}

func run(ctx context.Context, o options) error {
	log := klog.Background()
	ctx = klog.NewContext(ctx, log)
	if o.nodeName == "" {
		return fmt.Errorf("the name of the node is not known: set --node-name or NODE_NAME")
	}
	client, err := newClient(o.kubeconfig)
	if err != nil {
		return err
	}
	file, cfg, err := config.Open(o.config)
	if err != nil {
		plugin.ReportConfiguration(ctx, client, o.nodeName, "", err)
		return err
	}
	pluginDir := filepath.Join(o.kubeletDir, "plugins", driver.Name)
	if err := os.MkdirAll(pluginDir, 0o750); err != nil {
		return err
	}
	hook, err := limit.InstallFile(o.cdiHook, filepath.Join(pluginDir, "bin"))
	if err != nil {
		return fmt.Errorf("--cdi-hook: %w", err)
	}
	scanner := gpu.NewScanner(first(o.driverRootMount, o.driverRoot), o.sysfsRoot)
	defer scanner.Close()
	scanner.FaultsFile = filepath.Join(pluginDir, "faults.json")
	if scanner.BootID, err = (&state.Store{BootIDFile: o.bootIDFile}).BootID(); err != nil {
		return fmt.Errorf("--boot-id-file: %w", err)
	}
	edits := &nvidia.Generator{
		DriverRoot: o.driverRoot, DriverRootMount: o.driverRootMount,
		DevRoot: o.devRoot, DevRootMount: o.devRootMount,
		HookPath: hook,
		Logger:   klog.LoggerWithName(log, "nvcdi"),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	c := plugin.Config{
		NodeName:          o.nodeName,
		PodUID:            types.UID(o.podUID),
		KubeClient:        client,
		PluginDir:         pluginDir,
		RegistryDir:       filepath.Join(o.kubeletDir, "plugins_registry"),
		CDIDir:            o.cdiDir,
		BootIDFile:        o.bootIDFile,
		Configuration:     cfg,
		File:              file,
		Source:            scanner,
		Use:               scanner,
		MIG:               scanner,
		MonitorInterval:   o.monitor,
		Edits:             edits,
		OnCards:           func() { edits.Forget(scanner.Library()) },
		Registerer:        registry,
		ScanInterval:      o.scanInterval,
		ReconcileInterval: o.reconcile,
	}
	c.Backends = map[config.Enforcement]enforce.Backend{}
	if o.mps {
		c.Backends[config.MPS] = mps.New(mps.Config{Dir: filepath.Join(pluginDir, "mps"), DriverRoot: o.driverRoot, Proc: "/proc", Cards: scanner})
	}
	c.Installed = []string{hook}
	if o.limiterLib != "" {
		l, err := limit.Install(limit.Sources{CUDA: o.limiterLib, NVML: o.limiterNVML, Guard: o.limiterGuard, Hook: o.limiterHook}, filepath.Join(pluginDir, "lib"))
		if err != nil {
			return fmt.Errorf("installing the limiter: %w", err)
		}
		c.Backends[config.Limiter] = l
		c.Installed = append(c.Installed, l.Installed()...)
	} else {
		log.Info("No limiter: containers are told their share and not held to it (--limiter-lib is empty)")
	}
	d := plugin.New(c)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if o.listen != "" {
		stop, err := serve(ctx, o.listen, d.Ready, registry, cancel)
		if err != nil {
			return err
		}
		defer stop()
	}
	log.Info("Starting", "node", o.nodeName, "driver", driver.Name, "driverRoot", o.driverRoot, "nodeGroups", len(cfg.NodeGroups))
	return d.Run(ctx)
}

// daemonCommand is one that the driver runs itself.
func daemonCommand(name, short string, run func(mps.Daemon) error) *cobra.Command {
	var d mps.Daemon
	cmd := &cobra.Command{
		Use: name, Short: short, Hidden: true, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error { return run(d) },
	}
	f := cmd.Flags()
	f.StringVar(&d.Card, "card", "", "UUID of the card")
	f.StringVar(&d.Dir, "dir", "", "the daemon's folder")
	f.StringVar(&d.DriverRoot, "driver-root", "/", "folder of the host with the NVIDIA driver's programs")
	f.StringVar(&d.Proc, "proc", "/proc", "procfs of the host's PID namespace")
	return cmd
}

func newClient(kubeconfig string) (kubernetes.Interface, error) {
	var cfg *rest.Config
	var err error
	if kubeconfig != "" {
		cfg, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	} else {
		cfg, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("access to the API server: %w", err)
	}
	cfg.UserAgent = "sluice-driver"
	// A pod of many claims prepares with one GET each.
	cfg.QPS, cfg.Burst = 50, 100
	return kubernetes.NewForConfig(cfg)
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
