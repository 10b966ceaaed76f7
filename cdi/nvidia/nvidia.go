// Package nvidia asks NVIDIA's CDI generator what a container needs to use
// the installed driver and a card, and adds for MIG devices what that leaves
// out (mig.go). It makes two choices: paths are the host's even if this process
// sees the driver elsewhere, and the hook that prefers a CUDA compatibility library of the
// image is off, since such a library would be used instead of the limiter.
package nvidia

import (
	"fmt"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/spec"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"github.com/go-logr/logr"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Generator makes CDI edits. Safe for concurrent use. Answers are kept until
// Forget: they change only with the driver or the cards.
type Generator struct {
	// DriverRoot and DevRoot are folders of the host.
	DriverRoot, DevRoot string
	// DriverRootMount and DevRootMount are where this process sees them;
	// empty: at the same path.
	DriverRootMount, DevRootMount string
	// HookPath is nvidia-cdi-hook on the host.
	HookPath string
	// Logger gets the generator's remarks at verbosity 5.
	Logger logr.Logger

	mu     sync.Mutex
	lib    nvml.Interface
	common *specs.ContainerEdits
	cards  map[string]specs.ContainerEdits
}

// Forget drops what is kept and sets the NVML library, which must be
// initialised, for the next questions.
func (g *Generator) Forget(lib nvml.Interface) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lib, g.common, g.cards = lib, nil, map[string]specs.ContainerEdits{}
}

// Common are the edits for the driver: libraries, control devices, hooks.
func (g *Generator) Common() (specs.ContainerEdits, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.common != nil {
		return *g.common, nil
	}
	lib, err := g.open()
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	edits, err := lib.GetCommonEdits()
	if err != nil {
		return specs.ContainerEdits{}, fmt.Errorf("CDI edits of the driver at %s: %w", g.driverMount(), err)
	}
	onHost, err := g.onHost(*edits.ContainerEdits)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	g.common = &onHost
	return onHost, nil
}

// Card are the edits that open the card or MIG device with the given UUID.
// Those of MIG devices are not kept: another instance may be the next to have
// the UUID.
func (g *Generator) Card(uuid string) (specs.ContainerEdits, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if strings.HasPrefix(uuid, "MIG-") {
		return g.mig(uuid)
	}
	if edits, ok := g.cards[uuid]; ok {
		return edits, nil
	}
	lib, err := g.open()
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	devices, err := lib.GetDeviceSpecsByID(uuid)
	if err != nil {
		return specs.ContainerEdits{}, fmt.Errorf("CDI edits of card %s: %w", uuid, err)
	}
	if len(devices) == 0 {
		return specs.ContainerEdits{}, fmt.Errorf("CDI edits of card %s: none", uuid)
	}
	onHost, err := g.onHost(devices[0].ContainerEdits)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	if len(onHost.DeviceNodes) == 0 {
		return specs.ContainerEdits{}, fmt.Errorf("CDI edits of card %s: no device node below %s", uuid, g.devMount())
	}
	g.cards[uuid] = onHost
	return onHost, nil
}

func (g *Generator) open() (nvcdi.Interface, error) {
	if g.lib == nil {
		return nil, fmt.Errorf("the NVIDIA driver is not available now")
	}
	return nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithNvmlLib(g.lib),
		nvcdi.WithDriverRoot(g.driverMount()),
		nvcdi.WithDevRoot(g.devMount()),
		nvcdi.WithNVIDIACDIHookPath(g.HookPath),
		nvcdi.WithLogger(remarks{g.Logger}),
		nvcdi.WithDisabledHooks(nvcdi.EnableCudaCompatHook),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
}

// onHost rewrites paths below the mounts to the folders they show.
func (g *Generator) onHost(edits specs.ContainerEdits) (specs.ContainerEdits, error) {
	s, err := spec.New(spec.WithDeviceSpecs([]specs.Device{{Name: "x", ContainerEdits: edits}}), spec.WithVendor("x.y"), spec.WithClass("z"))
	if err != nil {
		return edits, err
	}
	raw := s.Raw()
	for _, t := range []struct{ from, to string }{{g.devMount(), g.devRoot()}, {g.driverMount(), g.DriverRoot}} {
		if t.from == t.to {
			continue
		}
		if err := root.New(root.WithRoot(t.from), root.WithTargetRoot(t.to), root.WithRelativeTo("host")).Transform(raw); err != nil {
			return edits, err
		}
	}
	return raw.Devices[0].ContainerEdits, nil
}

func (g *Generator) driverMount() string { return first(g.DriverRootMount, g.DriverRoot) }
func (g *Generator) devRoot() string     { return first(g.DevRoot, g.DriverRoot) }
func (g *Generator) devMount() string {
	if g.DevRootMount == "" && g.devRoot() == g.DriverRoot {
		return g.driverMount()
	}
	return first(g.DevRootMount, g.devRoot())
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// remarks speaks the generator's logging interface.
type remarks struct{ l logr.Logger }

func (r remarks) Debugf(f string, a ...interface{})   { r.l.V(6).Info(fmt.Sprintf(f, a...)) }
func (r remarks) Tracef(f string, a ...interface{})   { r.l.V(6).Info(fmt.Sprintf(f, a...)) }
func (r remarks) Infof(f string, a ...interface{})    { r.l.V(5).Info(fmt.Sprintf(f, a...)) }
func (r remarks) Warningf(f string, a ...interface{}) { r.l.V(5).Info(fmt.Sprintf(f, a...)) }
func (r remarks) Errorf(f string, a ...interface{})   { r.l.V(2).Info(fmt.Sprintf(f, a...)) }
