package cdi_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/sluice-gpu/sluice/cdi"
)

const lib64 = "/usr/lib/x86_64-linux-gnu/"

// common is what NVIDIA's generator says about a driver.
func common() specs.ContainerEdits {
	mount := func(path string) *specs.Mount {
		return &specs.Mount{HostPath: "/run/nvidia/driver" + path, ContainerPath: path, Options: []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}}
	}
	return specs.ContainerEdits{
		Env: []string{"NVIDIA_VISIBLE_DEVICES=void"},
		Mounts: []*specs.Mount{
			mount(lib64 + "libcuda.so.570.86.15"), mount(lib64 + "libcudadebugger.so.570.86.15"),
			mount(lib64 + "libnvidia-ml.so.570.86.15"), mount("/usr/bin/nvidia-smi"),
		},
		Hooks: []*specs.Hook{{HookName: "createContainer", Path: "/hook", Args: []string{"nvidia-cdi-hook", "update-ldcache"}}},
	}
}

func card(n string) specs.ContainerEdits {
	return specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: "/dev/nvidia" + n, HostPath: "/dev/null"}}}
}

func share(claim, device, id, files string, cards ...string) cdi.Share {
	s := cdi.Share{Name: cdi.DeviceName(claim, device, id), Files: files}
	for _, c := range cards {
		s.Cards = append(s.Cards, card(c))
	}
	return s
}

var limiter = &cdi.Limiter{CUDA: "/plugin/lib/1/libsluice-cuda.so"}

// inject writes claims' specs and lets CDI change an OCI spec, as the runtime does.
func inject(t *testing.T, claims map[string]*specs.Spec, devices ...string) *oci.Spec {
	t.Helper()
	dir := t.TempDir()
	for uid, s := range claims {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, cdi.FileName(uid)), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cache, err := cdiapi.NewCache(cdiapi.WithSpecDirs(dir), cdiapi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if errs := cache.GetErrors(); len(errs) > 0 {
		t.Fatalf("CDI refuses the specs: %v", errs)
	}
	var ids []string
	for _, d := range devices {
		ids = append(ids, cdi.ID(d))
	}
	out := &oci.Spec{Process: &oci.Process{}}
	if unresolved, err := cache.InjectDevices(out, ids...); err != nil {
		t.Fatalf("injecting %v: %v (unresolved %v)", ids, err, unresolved)
	}
	return out
}

func mountsAt(s *oci.Spec, path string) []string {
	var out []string
	for _, m := range s.Mounts {
		if m.Destination == path {
			out = append(out, m.Source)
		}
	}
	return out
}

func mustSpec(t *testing.T, shares []cdi.Share, l *cdi.Limiter) *specs.Spec {
	t.Helper()
	s, err := cdi.Spec(common(), shares, l)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWithoutALimiterTheDriverIsAsItIs(t *testing.T) {
	s := share("uid", "gpu-1", "s", "", "0")
	got := inject(t, map[string]*specs.Spec{"uid": mustSpec(t, []cdi.Share{s}, nil)}, s.Name)
	if m := mountsAt(got, lib64+"libcuda.so.570.86.15"); !slices.Equal(m, []string{"/run/nvidia/driver" + lib64 + "libcuda.so.570.86.15"}) {
		t.Errorf("libcuda is %v", m)
	}
	if len(got.Linux.Devices) != 1 || got.Linux.Devices[0].Path != "/dev/nvidia0" {
		t.Errorf("devices %+v", got.Linux.Devices)
	}
	for _, m := range got.Mounts {
		if strings.HasPrefix(m.Destination, "/run/sluice") {
			t.Errorf("limiter mount %+v", m)
		}
	}
}

func TestALimitedShareFindsTheLimiterAtLibcudasPath(t *testing.T) {
	s := share("uid", "gpu-1", "s", "/plugin/shares/uid/x", "0")
	l := &cdi.Limiter{CUDA: "/lib/cuda-shim", NVML: "/lib/nvml-shim", Guard: "/lib/guard", Preload: "/lib/preload"}
	got := inject(t, map[string]*specs.Spec{"uid": mustSpec(t, []cdi.Share{s}, l)}, s.Name)
	for path, want := range map[string]string{
		lib64 + "libcuda.so.570.86.15":              "/lib/cuda-shim",
		lib64 + "libnvidia-ml.so.570.86.15":         "/lib/nvml-shim",
		lib64 + "libcudadebugger.so.570.86.15":      "/run/nvidia/driver" + lib64 + "libcudadebugger.so.570.86.15",
		"/run/sluice/driver/real-cuda.so":           "/run/nvidia/driver" + lib64 + "libcuda.so.570.86.15",
		"/run/sluice/driver/real-nvidia-ml.so":      "/run/nvidia/driver" + lib64 + "libnvidia-ml.so.570.86.15",
		"/run/sluice/driver/guard.so":               "/lib/guard",
		"/etc/ld.so.preload":                        "/lib/preload",
		"/run/sluice/shares/" + s.Name + "/limit":   "/plugin/shares/uid/x/limit",
		"/run/sluice/shares/" + s.Name + "/grant":   "/plugin/shares/uid/x/grant",
		"/run/sluice/shares/" + s.Name + "/account": "/plugin/shares/uid/x/account",
	} {
		if m := mountsAt(got, path); !slices.Equal(m, []string{want}) {
			t.Errorf("%s is %v, want %s once", path, m, want)
		}
	}
	for _, m := range got.Mounts {
		writable := slices.Contains(m.Options, "rw")
		if account := strings.HasSuffix(m.Destination, "/account"); writable != account || slices.Contains(m.Options, "ro") == account {
			t.Errorf("%s is mounted with %v", m.Destination, m.Options)
		}
	}
}

// The hook finds the limiter at a path of the container, with a guard or
// without, and is run in the container's namespaces.
func TestADriverOfTheImageIsCoveredByAHook(t *testing.T) {
	s := share("uid", "gpu-1", "s", "/plugin/shares/uid/x", "0")
	for _, l := range []*cdi.Limiter{
		{CUDA: "/lib/cuda-shim", NVML: "/lib/nvml-shim", Hook: "/bin/sluice-cdi-hook"},
		{CUDA: "/lib/cuda-shim", Hook: "/bin/sluice-cdi-hook", Guard: "/lib/guard", Preload: "/lib/preload"},
	} {
		got := inject(t, map[string]*specs.Spec{"uid": mustSpec(t, []cdi.Share{s}, l)}, s.Name)
		want := []string{"sluice-cdi-hook", "cover", "libcuda.so=/run/sluice/driver/limiter-cuda.so"}
		if l.NVML != "" {
			want = append(want, "libnvidia-ml.so=/run/sluice/driver/limiter-nvidia-ml.so")
		}
		ours := slices.DeleteFunc(got.Hooks.CreateContainer, func(h oci.Hook) bool { return h.Path != l.Hook })
		if len(ours) != 1 || !slices.Equal(ours[0].Args, want) {
			t.Errorf("hooks %+v, want %q once", ours, want)
		}
		for _, arg := range want[2:] {
			_, path, _ := strings.Cut(arg, "=")
			if m := mountsAt(got, path); len(m) != 1 {
				t.Errorf("%s is mounted from %q", path, m)
			}
		}
	}
}

// D9, D10: no path is mounted twice, whatever a container combines.
func TestSharesOfSeveralClaimsAddUpInOneContainer(t *testing.T) {
	a1 := share("uid-a", "gpu-1", "s1", "/shares/a1", "0")
	a2 := share("uid-a", "gpu-1", "s2", "/shares/a2", "0")
	b := share("uid-b", "gpu-2", "s3", "/shares/b", "1")
	claims := map[string]*specs.Spec{
		"uid-a": mustSpec(t, []cdi.Share{a1, a2}, limiter),
		"uid-b": mustSpec(t, []cdi.Share{b}, limiter),
	}
	all := []string{a1.Name, a2.Name, b.Name}
	var first *oci.Spec
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
		var names []string
		for _, i := range order {
			names = append(names, all[i])
		}
		got := inject(t, claims, names...)
		seen := map[string]bool{}
		for _, m := range got.Mounts {
			if seen[m.Destination] {
				t.Errorf("order %v: %s is mounted twice", order, m.Destination)
			}
			seen[m.Destination] = true
		}
		for _, s := range all {
			if !seen["/run/sluice/shares/"+s+"/limit"] {
				t.Errorf("order %v: no limit of %s", order, s)
			}
		}
		if n := len(got.Linux.Devices); n != 2 {
			t.Errorf("order %v: %d device nodes, want 2", order, n)
		}
		if m := mountsAt(got, lib64+"libcuda.so.570.86.15"); !slices.Equal(m, []string{limiter.CUDA}) {
			t.Errorf("order %v: libcuda is %v", order, m)
		}
		if first == nil {
			first = got
		} else if len(first.Mounts) != len(got.Mounts) {
			t.Errorf("order %v: %d mounts, another order had %d", order, len(got.Mounts), len(first.Mounts))
		}
	}
}

func TestTheMonitorOpensEveryCard(t *testing.T) {
	s := share("uid", "monitor", "", "", "0", "1", "2")
	got := inject(t, map[string]*specs.Spec{"uid": mustSpec(t, []cdi.Share{s}, nil)}, "uid-monitor")
	if n := len(got.Linux.Devices); n != 3 {
		t.Errorf("%d device nodes, want 3", n)
	}
}

func TestADriverWithoutLibcudaIsNotLimitedSilently(t *testing.T) {
	edits := common()
	edits.Mounts = edits.Mounts[1:]
	_, err := cdi.Spec(edits, []cdi.Share{share("uid", "gpu-1", "s", "/f", "0")}, limiter)
	if err == nil || !strings.Contains(err.Error(), "libcuda.so.") {
		t.Errorf("got %v", err)
	}
	_, err = cdi.Spec(common(), []cdi.Share{share("uid", "gpu-1", "s", "/f", "0")}, nil)
	if err == nil || !strings.Contains(err.Error(), "no limiter") {
		t.Errorf("files without a limiter: %v", err)
	}
	if _, err = cdi.Spec(common(), nil, nil); err == nil {
		t.Error("a spec without devices was made")
	}
}

func TestA32BitLibcudaIsNoWayAroundTheLimiter(t *testing.T) {
	edits := common()
	edits.Mounts = append([]*specs.Mount{{HostPath: "/h32", ContainerPath: "/usr/lib/i386-linux-gnu/libcuda.so.570.86.15"}}, edits.Mounts...)
	s := share("uid", "gpu-1", "s", "/f", "0")
	spec, err := cdi.Spec(edits, []cdi.Share{s}, limiter)
	if err != nil {
		t.Fatal(err)
	}
	got := inject(t, map[string]*specs.Spec{"uid": spec}, s.Name)
	if m := mountsAt(got, "/usr/lib/i386-linux-gnu/libcuda.so.570.86.15"); len(m) > 0 {
		t.Errorf("32-bit library is there: %v", m)
	}
	if m := mountsAt(got, cdi.RealCUDA); !slices.Equal(m, []string{"/run/nvidia/driver" + lib64 + "libcuda.so.570.86.15"}) {
		t.Errorf("the limiter calls %v", m)
	}
}

func TestTheInputIsNotChanged(t *testing.T) {
	edits := common()
	before, _ := json.Marshal(edits)
	if _, err := cdi.Spec(edits, []cdi.Share{share("uid", "gpu-1", "s", "/f", "0")}, limiter); err != nil {
		t.Fatal(err)
	}
	if after, _ := json.Marshal(edits); string(before) != string(after) {
		t.Errorf("was\n%s\nis\n%s", before, after)
	}
}

func TestAnOldRuntimeCanReadTheSpec(t *testing.T) {
	s := mustSpec(t, []cdi.Share{share("uid", "gpu-1", "s", "/f", "0")}, limiter)
	if s.Version != "0.5.0" { // hostPath of a device node is of 0.5
		t.Errorf("claims version %s, its fields need 0.5.0", s.Version)
	}
}

func TestFileNamesCarryTheClaim(t *testing.T) {
	name := cdi.FileName("0b7c-uid")
	if uid, ok := cdi.ClaimOf(name); !ok || uid != "0b7c-uid" {
		t.Errorf("%s gives %q, %v", name, uid, ok)
	}
	for _, other := range []string{"nvidia.yaml", "gpu.sluice.dev_metadata_uid_r.json", "k8s.gpu.sluice.dev-share_x.yaml"} {
		if uid, ok := cdi.ClaimOf(other); ok {
			t.Errorf("%s is taken for claim %q", other, uid)
		}
	}
}

func TestEveryDeviceNameIsAValidOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		uid := rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
		s := cdi.Share{
			Name:  cdi.DeviceName(uid.Draw(t, "claim"), "gpu-"+rapid.StringMatching(`[0-9a-f]{8}`).Draw(t, "device"), uid.Draw(t, "share")),
			Cards: []specs.ContainerEdits{card("0")},
		}
		spec, err := cdi.Spec(common(), []cdi.Share{s}, nil)
		if err != nil {
			t.Fatal(err)
		}
		dir, err := os.MkdirTemp("", "cdi")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		b, _ := json.Marshal(spec)
		if err := os.WriteFile(filepath.Join(dir, "x.json"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := cdiapi.ReadSpec(filepath.Join(dir, "x.json"), 0); err != nil {
			t.Fatalf("%v", err)
		}
	})
}
