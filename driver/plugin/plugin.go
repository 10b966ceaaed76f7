// Package plugin is the driver as the kubelet and the API server see it. It
// publishes what package slicing decided and prepares what the scheduler gave
// out. It keeps no truth in memory between two calls of the kubelet: during a
// rolling update two instances serve the same node, and either may be asked.
//
// What may go wrong on a node and what happens then is in docs/user/devices.md;
// each row there has a test here.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/sluice-gpu/sluice/cdi"
	"github.com/sluice-gpu/sluice/driver"
	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/enforce"
	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/mig"
	"github.com/sluice-gpu/sluice/driver/monitor"
	"github.com/sluice-gpu/sluice/driver/slicing"
	"github.com/sluice-gpu/sluice/driver/state"
)

// Config is what a driver instance is made of. All fields without a remark
// are required.
type Config struct {
	NodeName string
	// PodUID tells instances of a rolling update apart. Empty: there is one.
	PodUID     types.UID
	KubeClient kubernetes.Interface

	// PluginDir is the driver's own folder, at the same path on the host.
	PluginDir string
	// RegistryDir is where the kubelet looks for plugins.
	RegistryDir string
	// CDIDir is a folder of the container runtime's CDI search path.
	CDIDir string
	// BootIDFile holds the kernel's boot id.
	BootIDFile string

	// Proc is where procfs is mounted, of the host's PID namespace. Default
	// /proc.
	Proc string

	// Configuration is what the driver begins with, File where changes of it
	// are to be found. Nil: it never changes.
	Configuration *config.DriverConfiguration
	File          *config.File
	Source        gpu.Source
	Edits         Edits
	// Backends hold shares to their size, each in its way. Without a limiter
	// nothing holds shares that ask for no other.
	Backends map[config.Enforcement]enforce.Backend
	// MIG changes the instances of cards in MIG mode. Nil: MIG devices are not
	// prepared.
	MIG mig.Cards
	// Installed are files that were brought to the host at
	// <dir>/<version>/<name>, for containers to run. Other versions in those
	// folders are removed when no prepared claim names them. May be empty.
	Installed []string
	// OnCards is called when the cards or the driver's version changed, before
	// anything is published. Nil: nobody is.
	OnCards func()
	// Use tells what runs on the cards. Nil: nobody looks at it.
	Use monitor.Cards
	// Registerer takes the metrics. Nil: nobody does.
	Registerer prometheus.Registerer

	// ScanInterval is the time between two looks at the cards. Default 2 s.
	ScanInterval time.Duration
	// MonitorInterval is the time between two looks at what runs on the
	// cards. Default 250 ms.
	MonitorInterval time.Duration
	// ReconcileInterval is the time between two comparisons of what is
	// prepared with the API server. Default 3 min.
	ReconcileInterval time.Duration
	// Now is the time of day. Default time.Now.
	Now func() time.Time
}

func (c *Config) setDefaults() {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Proc == "" {
		c.Proc = "/proc"
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&c.ScanInterval, 2 * time.Second}, {&c.ReconcileInterval, 3 * time.Minute}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
}

// Driver is one instance on one node.
type Driver struct {
	cfg     Config
	store   *state.Store
	files   *files
	migs    *mig.Instances // nil: none
	health  *health
	node    *ownNode
	metrics *metrics
	monitor *monitor.Monitor // nil: none

	current    atomic.Pointer[slicing.Plan]
	registered atomic.Bool
	violations atomic.Pointer[config.Violations]
	fatal      context.CancelCauseFunc

	// The rest belongs to the goroutine that looks at the cards.
	serving    bool
	controller *resourceslice.Controller // nil until something was published
	inventory  gpu.Inventory
	published  []resourceslice.Slice
	complained string
	// configuration is in use; pending was read later and did not fit the
	// cards when it was tried last; refused is what was said about that, misfit what
	// was said about the one in use.
	configuration *config.DriverConfiguration
	pending       *config.DriverConfiguration
	refused       string
	misfit        string
	unfit         map[string]string // reasons by device, as logged
}

// New prepares an instance without starting it.
func New(cfg Config) *Driver {
	cfg.setDefaults()
	d := &Driver{cfg: cfg, configuration: cfg.Configuration, health: newHealth(cfg.NodeName), node: newOwnNode(cfg.NodeName, cfg.KubeClient)}
	d.files = &files{
		sharesDir: filepath.Join(cfg.PluginDir, sharesName),
		cdiDir:    cfg.CDIDir,
		metadata:  filepath.Join(cfg.PluginDir, metadataName),
		proc:      cfg.Proc,
		edits:     cfg.Edits,
		backends:  cfg.Backends,
		overhead:  func(string) uint64 { return 0 },
	}
	d.store = &state.Store{Dir: cfg.PluginDir, BootIDFile: cfg.BootIDFile, Rebuild: d.files.rebuild}
	if cfg.MIG != nil {
		d.openMIG()
	}
	d.metrics = newMetrics(cfg.Registerer, d.store.Look)
	if cfg.Use != nil {
		d.startWatching()
	}
	return d
}

// Run serves until ctx ends, and returns nil then. An error means that going
// on makes no sense: the configuration does not fit the cards, or the cluster
// cannot do what the driver is for.
func (d *Driver) Run(ctx context.Context) error {
	ctx, d.fatal = context.WithCancelCause(ctx)
	defer d.fatal(nil)
	log := klog.FromContext(ctx)

	if err := os.MkdirAll(d.cfg.PluginDir, 0o750); err != nil {
		return err
	}
	d.checkCDIDir(ctx)
	d.store.Report = func(f state.Finding) { reportFinding(log, f) }
	d.removeDeadSockets(ctx)
	if err := d.settle(ctx); err != nil {
		return err
	}
	if err := d.look(ctx); err != nil {
		var misfit slicing.Misfit
		if errors.As(err, &misfit) {
			ReportConfiguration(ctx, d.cfg.KubeClient, d.cfg.NodeName, d.node.uid(), err)
			return err
		}
		d.complain(ctx, err)
	}
	helper, err := kubeletplugin.Start(ctx, d,
		kubeletplugin.DriverName(driver.Name),
		kubeletplugin.KubeClient(d.cfg.KubeClient),
		kubeletplugin.NodeName(d.cfg.NodeName),
		kubeletplugin.PluginDataDirectoryPath(d.cfg.PluginDir),
		kubeletplugin.RegistrarDirectoryPath(d.cfg.RegistryDir),
		kubeletplugin.RollingUpdate(d.cfg.PodUID),
		// The helper's lock also covers its metadata files, which it writes
		// after Prepare and removes after Unprepare. It reads claims before.
		kubeletplugin.Serialize(true),
		kubeletplugin.EnableDeviceMetadata(true, []schema.GroupVersion{metadatav1beta1.SchemeGroupVersion}),
		kubeletplugin.CDIDirectory(d.cfg.CDIDir),
		kubeletplugin.GRPCInterceptor(d.watchRegistration),
		kubeletplugin.GRPCInterceptor(d.await),
	)
	if err != nil {
		return fmt.Errorf("serving the kubelet: %w", err)
	}
	defer helper.Stop()
	d.serving = true
	defer func() { d.controller.Stop() }()
	if plan := d.plan(); plan != nil {
		d.publish(ctx, plan)
	}
	// A driver that has ended touches nothing any more: another one may have
	// begun on the same files.
	var loops sync.WaitGroup
	defer loops.Wait()
	for _, loop := range []func(context.Context){d.node.watch, d.reconcileLoop, d.accountsLoop, d.tendLoop} {
		loops.Go(func() { loop(ctx) })
	}
	if d.monitor != nil {
		loops.Go(func() { d.monitor.Run(ctx) })
	}
	d.offerLoop(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// plan is what the node offers now, nil before the first look.
func (d *Driver) plan() *slicing.Plan { return d.current.Load() }

// Ready tells whether pods can be served: the kubelet has registered the
// plugin and the cards were looked at.
func (d *Driver) Ready() error {
	switch {
	case !d.registered.Load():
		return errors.New("the kubelet has not registered the plugin")
	case d.plan() == nil:
		return errors.New("the node's cards are not known yet")
	}
	return nil
}

// watchRegistration notes what the kubelet says about the registration.
func (d *Driver) watchRegistration(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if s, ok := req.(*registerapi.RegistrationStatus); ok {
		d.registered.Store(s.PluginRegistered)
		if !s.PluginRegistered {
			klog.FromContext(ctx).Error(errors.New(s.Error), "The kubelet does not register the plugin")
		}
	}
	return next(ctx, req)
}

// HandleError implements kubeletplugin.DRAPlugin. It hears of the sockets to
// the kubelet; those of publishing go to publishFailed.
func (d *Driver) HandleError(ctx context.Context, err error, msg string) {
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		klog.FromContext(ctx).Error(err, msg)
		return
	}
	d.fatal(fmt.Errorf("%s: %w", msg, err))
}

func reportFinding(log klog.Logger, f state.Finding) {
	switch {
	case f.Err != nil && f.Aside == "":
		log.Error(f.Err, "Checkpoint rebuilt from the claims' own files", "claims", f.Claims)
	case f.Err != nil:
		log.Error(f.Err, "Checkpoint set aside and rebuilt from the claims' own files", "aside", f.Aside, "claims", f.Claims)
	case f.Rebooted && f.Claims > 0:
		log.Info("The node was rebooted: what was prepared is void, the kubelet asks anew", "claims", f.Claims)
	}
}

func cdiID(uid types.UID, s state.Share) string { return cdi.ID(deviceName(uid, s)) }
