// Package cdi describes prepared shares to the container runtime.
//
// It is a pure transformation: the edits that NVIDIA's own generator makes for
// the driver and for each card go in, together with the shares of one claim;
// one CDI spec comes out. It reads and writes no file and knows neither NVML
// nor the kubelet. Its caller, the kubelet plugin, writes the spec.
//
// One claim is one spec with one CDI device a share, so that preparing and
// unpreparing touch one file. What every share needs (libraries, control
// devices, hooks) is in the spec's common edits and applied once however many
// of its devices a container asks for. Two claims in one container apply it
// twice, which CDI resolves: the later mount on a path replaces the earlier.
// Hence the rule that the limiter's library stands at libcuda's path for every
// share of a card, whole cards included; see Limiter.
package cdi

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Vendor and Class make the kind of every device: "<vendor>/<class>=<name>".
const (
	Vendor = "k8s.gpu.sluice.dev"
	Class  = "share"
)

// Where a container finds what the limiter needs.
const (
	// SharesDir has a folder for each share, named like its CDI device.
	SharesDir = "/run/sluice/shares"
	// RealCUDA and RealNVML are the driver's libraries when the limiter's
	// stand at their usual places. The names do not begin with "lib" and the
	// folder is no library folder, so that ldconfig never prefers them.
	RealCUDA = "/run/sluice/driver/real-cuda.so"
	RealNVML = "/run/sluice/driver/real-nvidia-ml.so"
	// LimiterCUDA and LimiterNVML are where the guard and the hook find the
	// limiter's libraries: at a path that they can know, whatever the image's
	// folders are.
	LimiterCUDA = "/run/sluice/driver/limiter-cuda.so"
	LimiterNVML = "/run/sluice/driver/limiter-nvidia-ml.so"
	// Guard is preloaded into every program of a limited container.
	Guard   = "/run/sluice/driver/guard.so"
	Preload = "/etc/ld.so.preload"
)

// Share is one device of the claim.
type Share struct {
	// Name is the CDI device's name, see DeviceName.
	Name string
	// Cards are the edits that open the cards, one or all of a node.
	Cards []specs.ContainerEdits
	// Extra are further edits: what the share's enforcement needs, and the
	// environment that the claim asks for. They come last.
	Extra specs.ContainerEdits
	// Files is the host's folder with the share's limit, grant and account;
	// empty for a share without a limit: on a node without the limiter, and
	// for the monitor.
	Files string
}

// Limiter are the host's paths of the limiter's libraries.
type Limiter struct {
	// CUDA stands in for libcuda. Required.
	CUDA string
	// NVML stands in for libnvidia-ml. Empty: the real one stays.
	NVML string
	// Guard and Preload are the object to preload and the ld.so.preload file
	// that names it. Both or none.
	Guard, Preload string
	// Hook is sluice-cdi-hook, which covers driver libraries that the image
	// brings. Empty: none.
	Hook string
}

// DeviceName is the name of a share's CDI device. Claim UID and share ID make
// it unique for ever, which CDI caches rely on.
func DeviceName(claimUID, device, shareID string) string {
	name := claimUID + "-" + device
	if shareID != "" {
		name += "-" + shareID
	}
	return name
}

// ID is what the kubelet hands to the runtime for a device name.
func ID(name string) string { return parser.QualifiedName(Vendor, Class, name) }

// FileName is the file that holds a claim's spec.
func FileName(claimUID string) string {
	return cdi.GenerateTransientSpecName(Vendor, Class, claimUID) + ".json"
}

// ClaimOf returns the claim UID that a file name made by FileName carries.
func ClaimOf(fileName string) (claimUID string, ok bool) {
	rest, ok := strings.CutPrefix(fileName, cdi.GenerateTransientSpecName(Vendor, Class, ""))
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, ".json")
}

// Spec describes the shares of one claim. common are the edits that every
// container with a card needs. With a limiter, its libraries take the places
// of the driver's; without, limiter is nil and no share may have files.
func Spec(common specs.ContainerEdits, shares []Share, limiter *Limiter) (*specs.Spec, error) {
	if len(shares) == 0 {
		return nil, errors.New("a claim without shares has no CDI spec")
	}
	common = clone(common)
	if limiter != nil {
		if err := limiter.replace(&common); err != nil {
			return nil, err
		}
	}
	common.Mounts = lastOfEachPath(common.Mounts)
	spec := &specs.Spec{Kind: Vendor + "/" + Class, ContainerEdits: common}
	for _, s := range shares {
		edits, err := s.edits(limiter != nil)
		if err != nil {
			return nil, err
		}
		spec.Devices = append(spec.Devices, specs.Device{Name: s.Name, ContainerEdits: edits})
	}
	// An older runtime rejects a spec that claims a version it does not know,
	// so the spec claims the oldest that has all its fields.
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return nil, fmt.Errorf("CDI spec: %w", err)
	}
	spec.Version = version
	return spec, nil
}

func (s Share) edits(limited bool) (specs.ContainerEdits, error) {
	var edits specs.ContainerEdits
	for _, c := range s.Cards {
		edits = appendEdits(edits, clone(c))
	}
	edits = appendEdits(edits, clone(s.Extra))
	edits.DeviceNodes = lastOfEachNode(edits.DeviceNodes)
	edits.Mounts = lastOfEachPath(edits.Mounts)
	switch {
	case s.Files != "" && !limited:
		return edits, fmt.Errorf("share %s has limit files but there is no limiter to read them", s.Name)
	case s.Files != "":
		for _, f := range []struct{ name, mode string }{{"limit", "ro"}, {"grant", "ro"}, {"account", "rw"}} {
			edits.Mounts = append(edits.Mounts, bind(path.Join(s.Files, f.name), path.Join(SharesDir, s.Name, f.name), f.mode, "noexec"))
		}
	}
	return edits, nil
}

// replace puts the limiter's libraries where programs look for the driver's.
func (l *Limiter) replace(edits *specs.ContainerEdits) error {
	if err := swap(edits, "libcuda.so.", l.CUDA, RealCUDA); err != nil {
		return err
	}
	if l.NVML != "" {
		if err := swap(edits, "libnvidia-ml.so.", l.NVML, RealNVML); err != nil {
			return err
		}
	}
	if l.Guard == "" && l.Hook == "" {
		return nil
	}
	edits.Mounts = append(edits.Mounts, bind(l.CUDA, LimiterCUDA, "ro"))
	covers := []string{path.Base(l.Hook), "cover", "libcuda.so=" + LimiterCUDA}
	if l.NVML != "" {
		edits.Mounts = append(edits.Mounts, bind(l.NVML, LimiterNVML, "ro"))
		covers = append(covers, "libnvidia-ml.so="+LimiterNVML)
	}
	if l.Guard != "" {
		edits.Mounts = append(edits.Mounts, bind(l.Guard, Guard, "ro"), bind(l.Preload, Preload, "ro"))
	}
	if l.Hook != "" {
		edits.Hooks = append(edits.Hooks, &specs.Hook{HookName: cdi.CreateContainerHook, Path: l.Hook, Args: covers})
	}
	return nil
}

// swap mounts standIn at the path of the library whose name begins with
// prefix, and the library itself at private. Copies for other word sizes are
// left out: the limiter has one, and a copy it does not cover would be a way
// around it.
func swap(edits *specs.ContainerEdits, prefix, standIn, private string) error {
	versioned := regexp.MustCompile(`^` + regexp.QuoteMeta(prefix) + `[0-9]+(\.[0-9]+)+$`)
	var found []*specs.Mount
	for _, m := range edits.Mounts {
		if versioned.MatchString(path.Base(m.ContainerPath)) {
			found = append(found, m)
		}
	}
	if len(found) == 0 {
		return fmt.Errorf("the driver has no %s<version> for the limiter to stand in for", prefix)
	}
	real := slices.MinFunc(found, func(a, b *specs.Mount) int { return wordSize(a) - wordSize(b) })
	at := real.ContainerPath
	host := real.HostPath
	edits.Mounts = slices.DeleteFunc(edits.Mounts, func(m *specs.Mount) bool { return slices.Contains(found, m) })
	edits.Mounts = append(edits.Mounts, bind(host, private, "ro"), bind(standIn, at, "ro"))
	return nil
}

// wordSize orders library folders: those of 64-bit programs first.
func wordSize(m *specs.Mount) int {
	dir := path.Dir(m.ContainerPath)
	switch {
	case strings.Contains(dir, "i386"), strings.Contains(dir, "lib32"), strings.Contains(dir, "armhf"):
		return 2
	case strings.Contains(dir, "64"):
		return 0
	default:
		return 1
	}
}

func bind(host, container string, options ...string) *specs.Mount {
	return &specs.Mount{
		HostPath:      host,
		ContainerPath: container,
		Options:       append(options, "nosuid", "nodev", "rbind", "rprivate"),
	}
}

// lastOfEachPath keeps for every container path the mount that would win.
func lastOfEachPath(mounts []*specs.Mount) []*specs.Mount {
	return lastOfEach(mounts, func(m *specs.Mount) string { return m.ContainerPath })
}

func lastOfEachNode(nodes []*specs.DeviceNode) []*specs.DeviceNode {
	return lastOfEach(nodes, func(d *specs.DeviceNode) string { return d.Path })
}

func lastOfEach[T any](in []T, key func(T) string) []T {
	last := map[string]int{}
	for i, v := range in {
		last[key(v)] = i
	}
	var out []T
	for i, v := range in {
		if last[key(v)] == i {
			out = append(out, v)
		}
	}
	return out
}

// clone copies the lists that this package changes.
func clone(e specs.ContainerEdits) specs.ContainerEdits {
	e.Env = slices.Clone(e.Env)
	e.DeviceNodes = slices.Clone(e.DeviceNodes)
	e.Mounts = slices.Clone(e.Mounts)
	e.Hooks = slices.Clone(e.Hooks)
	e.AdditionalGIDs = slices.Clone(e.AdditionalGIDs)
	return e
}

func appendEdits(a, b specs.ContainerEdits) specs.ContainerEdits {
	var out cdi.ContainerEdits
	out.ContainerEdits = &a
	out.Append(&cdi.ContainerEdits{ContainerEdits: &b})
	return a
}
