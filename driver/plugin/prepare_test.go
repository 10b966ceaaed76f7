package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/sluice-gpu/sluice/cdi"
	"github.com/sluice-gpu/sluice/driver/gpu/gputest"
)

var a100 = gpus.A100_SXM4_80GB

func cdiNames(devices []*drapb.Device) []string {
	var out []string
	for _, d := range devices {
		out = append(out, d.CdiDeviceIds...)
	}
	return out
}

func TestAPreparedShareHasACDIDeviceOfItsOwn(t *testing.T) {
	n := newNode(t, a100)
	d := n.start()
	c := n.claim("c", share{card: 0, memory: "20Gi", id: "s1"})
	devices := d.mustPrepare(c)
	if len(devices) != 1 || devices[0].DeviceName != device(0) || devices[0].PoolName != "n1" || devices[0].GetShareId() != "s1" {
		t.Fatalf("answered %v", devices)
	}
	want := cdi.ID("uid-c-" + device(0) + "-s1")
	if got := devices[0].CdiDeviceIds[0]; got != want {
		t.Errorf("CDI id %s, want %s", got, want)
	}
	if s := n.spec(c); s == nil || len(s.Devices) != 1 || s.Devices[0].ContainerEdits.DeviceNodes[0].Path != "/dev/nvidia-"+gputest.UUID(0) {
		t.Errorf("CDI spec %+v does not open the card", s)
	}
	d.unprepare(c)
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left after unprepare: %v", left)
	}
}

// D1
func TestPreparingAgainAfterAKubeletRestartGivesTheSameAnswer(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	d := n.start()
	c := n.claim("c", share{card: 0, memory: "20Gi"}, share{card: 0, memory: "1Gi"})
	first := d.mustPrepare(c)
	before := snapshot(t, n.path("plugin", "shares"))
	again := d.mustPrepare(c)
	if diff := cmp.Diff(first, again, protocmp.Transform()); diff != "" {
		t.Errorf("second answer differs:\n%s", diff)
	}
	if diff := cmp.Diff(before, snapshot(t, n.path("plugin", "shares"))); diff != "" {
		t.Errorf("files that containers have mounted were replaced:\n%s", diff)
	}
	// The card may even be gone meanwhile: what runs is not disturbed.
	n.source.change(func() { n.lib.Devices = nil })
	n.pool(func(d []resourceapi.Device) bool { return len(d) == 0 })
	if diff := cmp.Diff(cdiNames(first), cdiNames(d.mustPrepare(c))); diff != "" {
		t.Errorf("answer without the card differs:\n%s", diff)
	}
	d.unprepare(c)
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left after unprepare: %v", left)
	}
}

// snapshot maps every file to its inode: a mount follows the inode.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		out[path] = fmt.Sprintf("%+v", inode(info))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// D2
func TestAfterAReboot(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	d := n.start()
	kept := n.claim("kept", share{card: 0, memory: "20Gi"})
	ended := n.claim("ended", share{card: 0, memory: "20Gi"})
	d.mustPrepare(kept)
	d.mustPrepare(ended)
	d.stop()
	before := snapshot(t, n.path("plugin", "shares"))
	// An inode whose file is open is not given to a new file, so equal inodes mean the same file.
	for name := range before {
		old, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer old.Close()
	}

	n.reboot("boot-2")
	d = n.start()
	if got := d.checkpoint().Len(); got != 0 {
		t.Errorf("%d claims still count as prepared", got)
	}
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("stale files survived: %v", left)
	}
	d.mustPrepare(kept)
	if n.spec(kept) == nil {
		t.Error("no CDI spec after the reboot")
	}
	for name, inode := range snapshot(t, n.path("plugin", "shares")) {
		if strings.HasSuffix(name, "/account") && before[name] == inode {
			t.Errorf("%s is the file of the earlier boot", name)
		}
	}
}

// D4
func TestAClaimIsPreparedAsAWholeOrNotAtAll(t *testing.T) {
	n := newNode(t, a100, a100, a100)
	n.enforce = true
	d := n.start()
	n.edits.fail(gputest.UUID(2))
	c := n.claim("c", share{card: 0, memory: "1Gi"}, share{card: 1, memory: "1Gi"}, share{card: 2, memory: "1Gi"})
	d.refused(c, device(2), "no device node")
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left of the first two devices: %v", left)
	}
	if got := d.checkpoint().Len(); got != 0 {
		t.Errorf("%d claims in the checkpoint", got)
	}
	n.edits.fail("")
	if got := d.mustPrepare(c); len(got) != 3 {
		t.Errorf("retry gave %d devices", len(got))
	}
}

// D5
func TestUnprepareNeedsNothingButTheUID(t *testing.T) {
	n := newNode(t, a100)
	d := n.start()
	c := n.claim("c", share{card: 0, memory: "1Gi"})
	d.mustPrepare(c)
	n.forget(c)
	n.client.ClearActions()
	d.unprepare(c)
	d.unprepare(c)
	unknown := c.DeepCopy()
	unknown.UID = "never-seen"
	d.unprepare(unknown)
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	for _, a := range n.client.Actions() {
		if a.GetResource().Resource == "resourceclaims" && a.GetVerb() == "get" {
			// The reconcile loop looks at prepared claims; there are none.
			t.Errorf("unprepare asked the API server: %v", a)
		}
	}
}

// D9
func TestTwoSharesOfOneCardAreTwoDevices(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	d := n.start()
	one := n.claim("one", share{card: 0, memory: "20Gi", id: "a"}, share{card: 0, memory: "5Gi", id: "b"})
	two := n.claim("two", share{card: 0, memory: "10Gi", id: "c"})
	devices := d.mustPrepare(one, two)
	ids, shareIDs := map[string]bool{}, map[string]bool{}
	for _, dev := range devices {
		ids[dev.CdiDeviceIds[0]] = true
		shareIDs[dev.GetShareId()] = true
	}
	if len(ids) != 3 || !shareIDs["a"] || !shareIDs["b"] || !shareIDs["c"] {
		t.Errorf("CDI ids %v, share ids %v: want three of each", ids, shareIDs)
	}
	for file, want := range map[string]uint64{"uid-one/*-a": 20 << 30, "uid-one/*-b": 5 << 30, "uid-two/*-c": 10 << 30} {
		if got := limitOf(t, n.path("plugin", "shares", file)); got.Memory != want {
			t.Errorf("%s: limit %d, want %d", file, got.Memory, want)
		}
	}
}

// D16
func TestASharedClaimIsOneShareUntilItsLastUserIsGone(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	d := n.start()
	c := n.claim("c", share{card: 0, memory: "20Gi"})
	first := d.mustPrepare(c) // for the first pod
	before := snapshot(t, n.path("plugin", "shares"))
	second := d.mustPrepare(c) // for the second pod
	if diff := cmp.Diff(before, snapshot(t, n.path("plugin", "shares"))); diff != "" {
		t.Errorf("the second pod got files of its own, so another limit and account:\n%s", diff)
	}
	if diff := cmp.Diff(cdiNames(first), cdiNames(second)); diff != "" {
		t.Errorf("the second pod gets another device:\n%s", diff)
	}
	if memory, _ := d.checkpoint().Held(device(0), ""); memory != 20<<10 {
		t.Errorf("%dMi held, want 20Gi once", memory)
	}
	d.unprepare(c) // the kubelet calls this when the last pod is gone
	if memory, _ := d.checkpoint().Held(device(0), ""); memory != 0 {
		t.Errorf("%dMi still held", memory)
	}
}

// D26
func TestTheMonitorDeviceNeedsAdminAccess(t *testing.T) {
	n := newNode(t, a100, a100)
	d := n.start()
	d.refused(n.claim("plain", share{device: "monitor"}), "monitor", "adminAccess: true")
	admin := n.claim("admin", share{device: "monitor", admin: true})
	d.mustPrepare(admin)
	if got := len(n.spec(admin).Devices[0].ContainerEdits.DeviceNodes); got != 2 {
		t.Errorf("%d cards opened, want 2", got)
	}
}

// D24
func TestMonitoringWorksWhileEveryCardIsFull(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	d := n.start()
	d.mustPrepare(n.claim("all", whole(0)))
	monitor := n.claim("monitor", share{device: "monitor", admin: true})
	d.mustPrepare(monitor)
	if mounted(n.spec(monitor), cdi.SharesDir) {
		t.Error("the monitor is limited")
	}
	d.refused(n.claim("more", share{card: 0, memory: "1Gi"}), "still held on this node")
}

// D27
func TestMemoryThatContainersMayStillUseIsNotGivenAgain(t *testing.T) {
	n := newNode(t, a100)
	d := n.start()
	old := n.claim("old", share{card: 0, memory: "60Gi", cores: "50"})
	d.mustPrepare(old)
	n.forget(old) // by force: the pod's containers run on
	next := n.claim("next", share{card: 0, memory: "20480Mi"})
	d.refused(next, device(0), "20480Mi", "61440Mi", "team/old", "unprepared")
	d.refused(n.claim("cores", share{card: 0, memory: "1Gi", cores: "51"}), "51 cores")
	d.mustPrepare(n.claim("small", share{card: 0, memory: "1Gi", cores: "50"}))
	d.unprepare(old)
	d.mustPrepare(next)
}

func TestTwoClaimsOfAPodDoNotOverfillACardTogether(t *testing.T) {
	n := newNode(t, a100)
	d := n.start()
	a, b := n.claim("a", share{card: 0, memory: "60Gi"}), n.claim("b", share{card: 0, memory: "60Gi"})
	r := d.prepare(a, b)
	if r[0].Error != "" || !strings.Contains(r[1].Error, "still held on this node by [team/a]") {
		t.Errorf("answers %v", r)
	}
}

func TestAllocationsThatCannotBeRightAreRefused(t *testing.T) {
	n := newNode(t, a100)
	d := n.start()
	for _, tc := range []struct {
		name string
		s    share
		want []string
	}{
		{"zero", share{card: 0, memory: "0"}, []string{"0 bytes", "256Mi"}},
		{"negative", share{card: 0, memory: "-1Gi"}, []string{"-1Gi"}},
		{"cores", share{card: 0, memory: "1Gi", cores: "101"}, []string{"101 cores"}},
		{"unknown", share{device: "gpu-ffffffff"}, []string{"gpu-ffffffff", "it has " + device(0)}},
		{"pool", share{card: 0, memory: "1Gi", pool: "n2"}, []string{"n2/", "this node's pool is n1"}},
		{"no-share", share{card: 0, bare: true}, []string{"DRAConsumableCapacity"}},
		{"too-much", share{card: 0, memory: "100Gi"}, []string{"102400Mi", "81408Mi"}},
	} {
		d.refused(n.claim(tc.name, tc.s), tc.want...)
	}
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left of refused claims: %v", left)
	}
}

// D14
func TestParametersAreRefusedWithTheirPath(t *testing.T) {
	n := newNode(t, a100)
	d := n.start()
	with := func(name, driverName, raw string) *resourceapi.ResourceClaim {
		c := n.claim(name, share{card: 0, memory: "1Gi"})
		c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClaim,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: driverName, Parameters: runtime.RawExtension{Raw: []byte(raw)},
			}},
		}}
		if err := n.client.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), c, c.Namespace); err != nil {
			t.Fatal(err)
		}
		return c
	}
	const path = "status.allocation.devices.config[0].opaque.parameters"
	d.refused(with("kind", "gpu.sluice.dev", `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}`), path, "GpuConfig")
	d.refused(with("list", "gpu.sluice.dev", `[1]`), path)
	d.mustPrepare(with("other", "net.example.com", `{"kind":"x"}`))
}

// D10: the kubelet sends a pod's claims that no other pod has, so a whole card
// and a slice of one container may come in two calls, in either order.
func TestAWholeCardAndASliceOfOnePodAgreeOnLibcuda(t *testing.T) {
	for name, sliceFirst := range map[string]bool{"the whole card was there": false, "the slice was there": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, a100, a100)
			n.enforce = true
			d := n.start()
			all := n.claim("all", whole(0))
			slice := n.claim("slice", share{card: 1, memory: "10Gi"})
			calls := []*resourceapi.ResourceClaim{all, slice}
			if sliceFirst {
				calls = []*resourceapi.ResourceClaim{slice, all}
			}
			for _, c := range calls {
				d.mustPrepare(c)
			}
			const libcuda = "/usr/lib64/libcuda.so." + gputest.DriverVersion
			source := func(c *resourceapi.ResourceClaim) string {
				for _, m := range n.spec(c).ContainerEdits.Mounts {
					if m.ContainerPath == libcuda {
						return m.HostPath
					}
				}
				return ""
			}
			if a, b := source(all), source(slice); a != b || filepath.Base(a) != "shim.so" {
				t.Errorf("at libcuda's path the whole card mounts %s and the slice %s: the last one applied decides", a, b)
			}
			for _, c := range calls {
				if !mounted(n.spec(c), cdi.SharesDir) {
					t.Errorf("claim %s has no limit for the limiter to read", c.Name)
				}
			}
			if l := limitOf(t, n.path("plugin/shares/uid-all/*-all-0")); !l.Whole {
				t.Errorf("limit of the whole card is %+v", l)
			}
			if l := limitOf(t, n.path("plugin/shares/uid-slice/*-slice-0")); l.Whole || l.Memory != 10<<30 {
				t.Errorf("limit of the slice is %+v", l)
			}
		})
	}
}

func TestWithoutALimiterNothingIsLimited(t *testing.T) {
	n := newNode(t, a100)
	d := n.start()
	c := n.claim("c", share{card: 0, memory: "10Gi"})
	d.mustPrepare(c)
	if mounted(n.spec(c), cdi.RealCUDA) || mounted(n.spec(c), cdi.SharesDir) {
		t.Errorf("spec has limiter mounts: %+v", n.spec(c))
	}
}

func TestAClaimThatWasAllocatedAnewIsPreparedAnew(t *testing.T) {
	n := newNode(t, a100, a100)
	n.enforce = true
	d := n.start()
	c := n.claim("c", share{card: 0, memory: "10Gi", id: "old"})
	d.mustPrepare(c)
	c.Status.Allocation.Devices.Results[0].Device = device(1)
	*c.Status.Allocation.Devices.Results[0].ShareID = "new"
	if err := n.client.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), c, c.Namespace); err != nil {
		t.Fatal(err)
	}
	devices := d.mustPrepare(c)
	if devices[0].DeviceName != device(1) || devices[0].GetShareId() != "new" {
		t.Errorf("answered %v", devices)
	}
	if memory, _ := d.checkpoint().Held(device(0), ""); memory != 0 {
		t.Errorf("the first card still has %dMi held", memory)
	}
	if old, _ := filepath.Glob(n.path("plugin/shares/uid-c/*-old")); len(old) > 0 {
		t.Errorf("files of the old share: %v", old)
	}
}

// D22
func TestManyCallsAtOnceLeaveNothingBehind(t *testing.T) {
	n := newNode(t, a100, a100)
	n.enforce = true
	d := n.start()
	var wg sync.WaitGroup
	for i := range 40 {
		c := n.claim(fmt.Sprintf("c%d", i), share{card: i % 2, memory: "1Gi"})
		for range 2 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if r := d.prepare(c)[0]; r.Error != "" {
					t.Errorf("claim %s: %s", c.Name, r.Error)
				}
			}()
		}
		if i%2 == 0 {
			wg.Add(1)
			go func() { defer wg.Done(); d.unprepare(c) }()
		}
	}
	wg.Wait()
	cp := d.checkpoint()
	for _, uid := range cp.Order() {
		if _, err := os.Stat(n.path("cdi", cdi.FileName(string(uid)))); err != nil {
			t.Errorf("prepared claim without a spec: %v", err)
		}
	}
	for _, claim := range cp.Claims() {
		c := &resourceapi.ResourceClaim{}
		c.Namespace, c.Name, c.UID = claim.Namespace, claim.Name, claim.UID
		d.unprepare(c)
	}
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
