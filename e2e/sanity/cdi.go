package sanity

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	resourceapi "k8s.io/api/resource/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
)

// runtimeCache is the view of a container runtime that has just read the CDI
// folders.
func (s *suite) runtimeCache() (*cdi.Cache, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(s.d.CDIDirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, err
	}
	// Errors of single files are looked at where they concern the driver.
	_ = cache.Refresh()
	return cache, nil
}

// cdiNames are the qualified names that a container could ask for now.
func (s *suite) cdiNames() map[string]bool {
	cache, err := s.runtimeCache()
	if err != nil {
		return nil
	}
	all := map[string]bool{}
	for _, name := range cache.ListDevices() {
		all[name] = true
	}
	return all
}

// removeSpecsAddedSince removes the spec files of CDI devices that were not
// there before, as a reboot does with a folder in memory.
func (s *suite) removeSpecsAddedSince(before map[string]bool) error {
	cache, err := s.runtimeCache()
	if err != nil {
		return err
	}
	for name := range s.cdiNames() {
		if before[name] {
			continue
		}
		if err := os.Remove(cache.GetDevice(name).GetSpec().GetPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (s *suite) nothingNewInCDI(before map[string]bool, asked string) error {
	now := s.cdiNames()
	maps.DeleteFunc(now, func(name string, _ bool) bool { return before[name] })
	if len(now) > 0 {
		return violated(asked, "still there: %s", keys(now))
	}
	return nil
}

// resolvable tells whether a container runtime finds all CDI devices of the
// answer.
func (s *suite) resolvable(claim *resourceapi.ResourceClaim, a answer) (*cdi.Cache, error) {
	cache, err := s.runtimeCache()
	if err != nil {
		return nil, err
	}
	for _, id := range a.ids() {
		asked := fmt.Sprintf("CDI device %s of claim %s in %s", id, claim.Name, strings.Join(s.d.CDIDirs, ", "))
		if _, _, _, err := parser.ParseQualifiedName(id); err != nil {
			return nil, violated(asked, "not a qualified name: %v", err)
		}
		found := cache.GetDevice(id)
		if found == nil {
			return nil, violated(asked, "not found%s", problems(cache))
		}
		if errs := cache.GetSpecErrors(found.GetSpec()); len(errs) > 0 {
			return nil, violated(asked, "the spec %s has faults: %v", found.GetSpec().GetPath(), errors.Join(errs...))
		}
	}
	return cache, nil
}

// problems tells what is wrong with files in the CDI folders; a file with a
// fault is left out by the runtime.
func problems(cache *cdi.Cache) string {
	var all []string
	for path, errs := range cache.GetErrors() {
		all = append(all, fmt.Sprintf("; %s: %v", path, errors.Join(errs...)))
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

// injectable tells whether a container with the devices of the answer can
// start: what a runtime puts together for it is complete and names files that
// exist.
func (s *suite) injectable(claim *resourceapi.ResourceClaim, a answer) error {
	cache, err := s.resolvable(claim, a)
	if err != nil {
		return err
	}
	return inject(cache, fmt.Sprintf("injection of the CDI devices of claim %s into a container", claim.Name), a.ids())
}

func inject(cache *cdi.Cache, asked string, ids []string) error {
	if len(ids) == 0 {
		return nil // a device without anything to inject is allowed
	}
	spec := &oci.Spec{
		Version: oci.Version,
		Process: &oci.Process{Args: []string{"/bin/true"}, Cwd: "/", Env: []string{"PATH=/bin"}},
		Root:    &oci.Root{Path: "rootfs"},
		Linux:   &oci.Linux{},
	}
	if missing, err := cache.InjectDevices(spec, ids...); err != nil {
		return violated(asked, "%v %v", err, missing)
	}
	if err := startable(spec); err != nil {
		return violated(asked+": "+strings.Join(ids, ", "), "%v", err)
	}
	return nil
}

// startable tells what would keep an OCI runtime from starting the container.
func startable(spec *oci.Spec) error {
	var problems []error
	report := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	for _, e := range spec.Process.Env {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" || strings.ContainsRune(e, 0) {
			report("environment variable %q", e)
		}
	}
	for _, m := range spec.Mounts {
		if !filepath.IsAbs(m.Destination) {
			report("mount at %q, which is not an absolute path", m.Destination)
		}
		if isBind(m) {
			if _, err := os.Stat(m.Source); err != nil {
				report("mount at %s of a file that is not there: %w", m.Destination, err)
			}
		}
	}
	for _, d := range spec.Linux.Devices {
		if !filepath.IsAbs(d.Path) {
			report("device node %q, which is not an absolute path", d.Path)
		}
		if !slices.Contains([]string{"b", "c", "u", "p"}, d.Type) {
			report("device node %s of type %q", d.Path, d.Type)
		}
	}
	if h := spec.Hooks; h != nil {
		//lint:ignore SA1019 prestart hooks are deprecated, and runtimes still run them
		for _, hook := range slices.Concat(h.Prestart, h.CreateRuntime, h.CreateContainer, h.StartContainer, h.Poststart, h.Poststop) {
			info, err := os.Stat(hook.Path)
			switch {
			case !filepath.IsAbs(hook.Path):
				report("hook %q, which is not an absolute path", hook.Path)
			case err != nil:
				report("hook that is not there: %w", err)
			case info.IsDir() || info.Mode()&0o111 == 0:
				report("hook %s cannot be executed", hook.Path)
			}
		}
	}
	return errors.Join(problems...)
}

func isBind(m oci.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}
