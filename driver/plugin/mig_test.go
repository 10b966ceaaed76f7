package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/gpu/gputest"
)

const migGroup = "nodeGroups: [{name: m, mode: mig}]"

// migNode is a node with one A100 in MIG mode, of which an administrator has
// cut off the last compute slice.
func migNode(t testing.TB) *node {
	n := newNode(t, gpus.A100_SXM4_80GB)
	n.config = migGroup
	n.enforce = true
	n.lib.Partition(0, true)
	n.lib.Make(0, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 6)
	return n
}

const there = "0@6+" // what the administrator made, as Library.Instances has it

func migDevice(profile string, start int) string {
	return fmt.Sprintf("%s-mig-%s-%d", device(0), strings.ReplaceAll(profile, ".", ""), start)
}

func onMIG(profile string, start int) share { return share{device: migDevice(profile, start)} }

func (n *node) instances(want ...string) {
	n.t.Helper()
	if diff := cmp.Diff(append(want, there), n.lib.Instances(0)); diff != "" {
		n.t.Errorf("instances on the card:\n%s", diff)
	}
}

func TestMIGDevicesArePublishedAsTheyAreAndAsTheyCanBe(t *testing.T) {
	n := migNode(t)
	n.start()
	devices := n.pool(func(d []resourceapi.Device) bool { return len(d) > 1 })
	byName := map[string]resourceapi.Device{}
	for _, d := range devices {
		byName[d.Name] = d
	}
	is, can := byName[migDevice("1g.10gb", 6)], byName[migDevice("3g.40gb", 0)]
	if is.Name == "" || *is.Attributes["uuid"].StringValue == "" || len(is.ConsumesCounters) > 0 {
		t.Errorf("the instance that is there: %+v", is)
	}
	if can.Name == "" || *can.Attributes["uuid"].StringValue != "" || len(can.ConsumesCounters) == 0 {
		t.Errorf("an instance that can be made: %+v", can)
	}
	for _, blocked := range []string{migDevice("3g.40gb", 4), migDevice("7g.80gb", 0), device(0)} {
		if d, ok := byName[blocked]; ok {
			t.Errorf("%s is offered, and the administrator's instance is in its place", d.Name)
		}
	}
}

// The taint of such a device keeps nobody away: a claim may tolerate it.
func TestAPartOfAnInstanceIsNotPrepared(t *testing.T) {
	n := migNode(t)
	n.source.change(func() {
		real := n.source.scan
		n.source.scan = func() (gpu.Inventory, error) {
			inv, err := real()
			for _, g := range inv.GPUs {
				d := &g.Partition.Instances[0].Devices[0]
				d.Profile = "1c." + d.Profile
			}
			return inv, err
		}
	})
	d := n.start()
	d.refused(n.claim("c", share{device: device(0) + "-mig-1c1g10gb-6-0"}), "part of a GPU instance", "ask for an instance by its profile")
}

func TestAnInstanceIsMadeForItsClaimAndEndsWithIt(t *testing.T) {
	n := migNode(t)
	d := n.start()
	a, b := n.claim("a", onMIG("1g.10gb", 4)), n.claim("b", onMIG("3g.40gb", 0))
	d.mustPrepare(a, b)
	n.instances("2@0+", "0@4+")
	if spec := n.spec(b); spec == nil || len(spec.Devices) != 1 || !strings.HasPrefix(spec.Devices[0].ContainerEdits.DeviceNodes[0].Path, "/dev/nvidia-MIG-") {
		t.Errorf("the container opens %+v", spec)
	} else if !mounted(spec, "/run/sluice/driver") || !mounted(spec, "/run/sluice/shares") {
		t.Error("the container has no limiter: a slice of another card in it would have no limit")
	}
	if lim := limitOf(t, n.path("plugin/shares/uid-b/*b*")); !lim.Whole {
		t.Errorf("the limiter is told %+v", lim)
	}
	// What is made changes nothing of what is offered.
	before := names(n.pool(nil))
	eventually(t, "another look", func() bool { return n.lookedAgain(d) })
	if after := names(n.pool(nil)); !slices.Equal(before, after) {
		t.Errorf("offered before %v, after %v", before, after)
	}
	d.unprepare(a)
	n.instances("2@0+")
	d.unprepare(b)
	n.instances()
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func (n *node) lookedAgain(d *instance) bool {
	scans := 0
	n.source.change(func() {
		old := n.source.scan
		n.source.scan = func() (gpu.Inventory, error) { scans++; return old() }
	})
	eventually(n.t, "two looks", func() bool { s := 0; n.source.change(func() { s = scans }); return s > 2 })
	return true
}

func TestAnInstanceThatIsThereIsGivenAsItIs(t *testing.T) {
	n := migNode(t)
	d := n.start()
	a := n.claim("a", onMIG("1g.10gb", 6))
	d.mustPrepare(a)
	n.instances()
	d.refused(n.claim("b", onMIG("1g.10gb", 6)), "still held on this node by [team/a]")
	d.unprepare(a)
	n.instances()
}

// D1
func TestAPreparedInstanceStaysTheSameOverRestarts(t *testing.T) {
	n := migNode(t)
	d := n.start()
	a := n.claim("a", onMIG("2g.20gb", 2))
	first := d.mustPrepare(a)
	d.stop()
	d = n.start()
	if diff := cmp.Diff(cdiNames(first), cdiNames(d.mustPrepare(a))); diff != "" {
		t.Errorf("other answer after a restart:\n%s", diff)
	}
	n.instances("1@2+")
	d.unprepare(a)
	n.instances()
}

// D2: no instance outlives a reboot, and another one may have its number.
func TestAfterARebootInstancesAreMadeAnewAndOthersLeftAlone(t *testing.T) {
	n := migNode(t)
	d := n.start()
	a := n.claim("a", onMIG("3g.40gb", 0))
	d.mustPrepare(a)
	d.stop()
	n.reboot("boot-2")
	n.lib = gputest.New(gpus.A100_SXM4_80GB)
	n.lib.Partition(0, true)
	n.lib.Make(0, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 6)
	n.lib.Make(0, nvml.GPU_INSTANCE_PROFILE_3_SLICE, 0) // the administrator's, where ours was, with its number
	n.cards.Close()
	d = n.start()
	n.instances("2@0+")
	d.mustPrepare(a) // it is the device of that name now
	n.instances("2@0+")
	d.unprepare(a)
	n.instances("2@0+")
}

// D27: the scheduler gives a place again before its instance is gone.
func TestAPlaceIsNotGivenTwice(t *testing.T) {
	n := migNode(t)
	d := n.start()
	a := n.claim("a", onMIG("3g.40gb", 0))
	d.mustPrepare(a)
	overlapping := n.claim("b", onMIG("2g.20gb", 2))
	d.refused(overlapping, "still has the instance", "team/a", "trying again")
	d.refused(n.claim("c", onMIG("3g.40gb", 0)), "team/a")
	n.instances("2@0+")
	// Programs run on: the instance stays, whatever the kubelet says.
	n.lib.Busy(0, true)
	d.unprepare(a)
	d.refused(overlapping, "still has the instance", "team/a")
	n.instances("2@0+")
	n.lib.Busy(0, false)
	d.mustPrepare(overlapping)
	n.instances("1@2+")
	d.unprepare(overlapping)
	n.instances()
}

func TestAnInstanceOfSomebodyElseInThePlaceIsLeftAlone(t *testing.T) {
	n := migNode(t)
	c := n.instanceConfig()
	c.ScanInterval = 1 << 40
	d := n.startWith(c)
	n.lib.Make(0, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 3) // after the last look
	d.refused(n.claim("a", onMIG("3g.40gb", 0)), "memory slices 3 to 3", "Sluice did not make")
	n.instances("0@3+")
	if records := glob(t, n.path("plugin/mig/*")); len(records) > 0 {
		t.Errorf("left: %v", records)
	}
}

// D6
func TestInstancesOfClaimsThatEndedWhileNobodyLookedEnd(t *testing.T) {
	n := migNode(t)
	d := n.start()
	a := n.claim("a", onMIG("3g.40gb", 0))
	d.mustPrepare(a)
	d.stop()
	n.forget(a)
	d = n.start()
	eventually(t, "release", func() bool { return d.checkpoint().Len() == 0 })
	eventually(t, "end of the instance", func() bool { return len(n.lib.Instances(0)) == 1 })
}

// D4
func TestAClaimOfWhichOneDeviceFailsLeavesNoInstance(t *testing.T) {
	n := migNode(t)
	d := n.start()
	a := n.claim("a", onMIG("2g.20gb", 0), onMIG("2g.20gb", 2), share{device: migDevice("9g.99gb", 0)})
	d.refused(a, migDevice("9g.99gb", 0), "as 21 MIG devices")
	n.instances()
	n.lib.OnChange(func(what string) {
		if what == "made instance" && len(n.lib.Instances(0)) == 3 {
			n.lib.OnChange(nil)
			n.lib.Make(0, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 5)
		}
	})
	b := n.claim("b", onMIG("2g.20gb", 0), onMIG("2g.20gb", 2), onMIG("2g.20gb", 4))
	d.refused(b, migDevice("2g.20gb", 4))
	n.instances("0@5+")
}

// D3: what a process leaves that dies before or after any step on the card, or
// between them and the claim's files.
func TestADriverThatDiedWithAnInstanceHalfMadeOrHalfEndedLeavesNone(t *testing.T) {
	steps := []string{
		"make instance", "made instance", "make compute", "made compute", "files",
		"end compute", "ended compute", "end instance", "ended instance",
	}
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			n := migNode(t)
			good := n.claim("good", onMIG("2g.20gb", 4))
			half := n.claim("half", onMIG("3g.40gb", 0))
			d := n.start()
			d.mustPrepare(good)
			if strings.HasPrefix(step, "end") {
				d.mustPrepare(half)
			}
			die := func(at string) {
				if at == step {
					panic(dead(step))
				}
			}
			n.lib.OnChange(die)
			n.edits.at = func() { die("files") }
			died := func() (yes bool) {
				defer func() { _, yes = recover().(dead) }()
				if strings.HasPrefix(step, "end") {
					_, _ = d.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: half.UID}})
				} else {
					_, _ = d.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{half})
				}
				return false
			}()
			if !died {
				t.Fatal("the driver never came to the step")
			}
			n.lib.OnChange(nil)
			n.edits.at = nil
			d.stop()

			d = n.start()
			if _, prepared := d.checkpoint().Get(half.UID); !prepared {
				n.instances("1@4+")
			}
			d.mustPrepare(half)
			n.instances("2@0+", "1@4+")
			d.unprepare(half)
			n.instances("1@4+")
			d.unprepare(good)
			n.instances()
			if records := glob(t, n.path("plugin/mig/*")); len(records) > 0 {
				t.Errorf("left: %v", records)
			}
		})
	}
}

type dead string

// A process dies; before the next one starts, somebody else uses the place.
func TestWhatSomebodyElseMadeMeanwhileIsNotTakenForOurs(t *testing.T) {
	for _, step := range []string{"make instance", "ended instance"} {
		t.Run(step, func(t *testing.T) {
			n := migNode(t)
			d := n.start()
			a := n.claim("a", onMIG("3g.40gb", 0))
			if step == "ended instance" {
				d.mustPrepare(a)
			}
			n.lib.OnChange(func(at string) {
				if at == step {
					panic(dead(step))
				}
			})
			func() {
				defer func() { _ = recover() }()
				if step == "ended instance" {
					_, _ = d.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: a.UID}})
				} else {
					_, _ = d.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{a})
				}
			}()
			n.lib.OnChange(nil)
			d.stop()
			n.lib.Card(0).GpuInstanceCounter = 1 // it gets the number that ours had
			n.lib.Make(0, nvml.GPU_INSTANCE_PROFILE_3_SLICE, 0)
			d = n.start()
			d.unprepare(a)
			eventually(t, "a pass", func() bool { return len(glob(t, n.path("plugin/mig/*"))) == 0 })
			n.instances("2@0+")
		})
	}
}

// D17
func TestTwoDriversDuringAnUpgradeShareWhatTheyMade(t *testing.T) {
	n := migNode(t)
	n.podUID = "pod-old"
	old := n.start()
	a := n.claim("a", onMIG("3g.40gb", 0))
	old.mustPrepare(a)
	n.podUID = "pod-new"
	newer := n.start()
	newer.refused(n.claim("b", onMIG("4g.40gb", 0)), "team/a")
	n.instances("2@0+")
	old.stop()
	newer.unprepare(a)
	n.instances()
}

func TestAMIGDeviceTakesNoOtherEnforcement(t *testing.T) {
	n := migNode(t)
	d := n.start()
	a := n.claim("a", onMIG("1g.10gb", 6))
	n.parameters(a, `{"apiVersion":"gpu.sluice.dev/v1alpha1","kind":"SliceConfig","enforcement":"limiter"}`)
	d.refused(a, "held by the hardware")
	b := n.claim("b", onMIG("1g.10gb", 6))
	n.parameters(b, `{"apiVersion":"gpu.sluice.dev/v1alpha1","kind":"SliceConfig","enforcement":"mig"}`)
	d.mustPrepare(b)

	cards := newNode(t, a100)
	cards.enforce = true
	e := cards.start()
	c := cards.claim("c", share{card: 0, memory: "1Gi"})
	cards.parameters(c, `{"apiVersion":"gpu.sluice.dev/v1alpha1","kind":"SliceConfig","enforcement":"mig"}`)
	e.refused(c, "no MIG device")
}

func (n *node) parameters(c *resourceapi.ResourceClaim, raw string) {
	n.t.Helper()
	entry := resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClaim}
	entry.Opaque = &resourceapi.OpaqueDeviceConfiguration{Driver: "gpu.sluice.dev"}
	entry.Opaque.Parameters.Raw = []byte(raw)
	c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config, entry)
	n.update(c)
}

func TestMIGModeOfACardIsSeenWithoutARestart(t *testing.T) {
	t.Parallel()
	n := migNode(t)
	n.start()
	n.pool(func(d []resourceapi.Device) bool { return len(d) > 2 })
	n.source.change(func() { n.lib.Partition(0, false) })
	devices := n.pool(func(d []resourceapi.Device) bool { return len(d) == 2 })
	if devices[0].Name != device(0) || len(devices[0].Taints) != 1 || devices[0].Taints[0].Key != "gpu.sluice.dev/mig-mode" {
		t.Errorf("a card whose mode is off in a group of mode mig: %+v", devices[0])
	}
	n.source.change(func() { n.lib.Partition(0, true) })
	n.pool(func(d []resourceapi.Device) bool { return len(d) > 2 })
}

// An instance that was ours, or that reported an error, is told of by name.
func TestAnInstanceThatIsIllIsTaintedAndReported(t *testing.T) {
	t.Parallel()
	n := migNode(t)
	n.xids = true
	d := n.start()
	a := n.claim("a", onMIG("3g.40gb", 0))
	d.mustPrepare(a)
	taints := func(name, key string) func([]resourceapi.Device) bool {
		return func(devices []resourceapi.Device) bool {
			for _, dev := range devices {
				if len(dev.Taints) > 0 && (dev.Name != name || dev.Taints[0].Key != "gpu.sluice.dev/"+key) {
					return false
				}
				if dev.Name == name && (len(dev.Taints) == 1) != (key != "") {
					return false
				}
			}
			return true
		}
	}
	ours, theirs := migDevice("3g.40gb", 0), migDevice("1g.10gb", 6)
	n.source.change(func() { n.lib.XIDOn(0, 1, 94) })
	n.pool(taints(ours, "faulty"))
	report, _ := d.health.report()
	for _, h := range report.Devices {
		want := kubeletplugin.HealthStatusHealthy
		if h.DeviceName == ours {
			want = kubeletplugin.HealthStatusUnhealthy
		}
		if h.Health != want {
			t.Errorf("%s is %s: %s", h.DeviceName, h.Health, h.Message)
		}
	}
	d.unprepare(a)
	n.pool(taints(ours, ""))
	d.mustPrepare(n.claim("b", onMIG("3g.40gb", 0)))
	n.pool(taints(ours, ""))
	n.source.change(func() {
		for gi := range n.lib.Card(0).GpuInstances {
			if gi.Info.Placement.Start == 0 {
				delete(n.lib.Card(0).GpuInstances, gi)
			}
		}
	})
	n.pool(taints(ours, "mig-gone"))
	if _, in, _ := d.plan().Instance(theirs); in.Unfit != nil {
		t.Errorf("%s: %+v", theirs, in.Unfit)
	}
}

// D25
func TestAnInstanceThatSomebodyElseUsesIsTainted(t *testing.T) {
	t.Parallel()
	n := migNode(t)
	uuid := *n.firstInstance(t)
	c := n.instanceConfig()
	c.Use = &cardsInUse{use: []gpu.Use{{UUID: uuid, Processes: []gpu.ProcessUse{{PID: os.Getpid(), Memory: 1 << 20}}}}}
	d := n.startWith(c)
	n.pool(func(devices []resourceapi.Device) bool {
		for _, dev := range devices {
			if dev.Name == migDevice("1g.10gb", 6) {
				return len(dev.Taints) == 1 && dev.Taints[0].Key == "gpu.sluice.dev/in-use-elsewhere"
			}
		}
		return false
	})
	d.refused(n.claim("bold", share{device: migDevice("1g.10gb", 6)}), migDevice("1g.10gb", 6), "handed out twice", "in-use-elsewhere")
	d.mustPrepare(n.claim("beside", share{device: migDevice("1g.10gb", 0)}))
}

func (n *node) firstInstance(t *testing.T) *string {
	t.Helper()
	inv, err := n.cards.Scan()
	if err != nil {
		t.Fatal(err)
	}
	return &inv.GPUs[0].Partition.Instances[0].Devices[0].UUID
}

// D11: sixteen cards in MIG mode are far more devices than one slice takes.
func TestManyMIGDevicesFillSeveralSlices(t *testing.T) {
	t.Parallel()
	n := newNode(t, gpus.Multiple(16, gpus.A100_SXM4_80GB)...)
	n.config = migGroup
	for i := range 16 {
		n.lib.Partition(i, true)
	}
	n.start()
	devices := n.pool(func(d []resourceapi.Device) bool { return len(d) == 16*25+1 })
	seen := map[string]bool{}
	for _, d := range devices {
		if seen[d.Name] {
			t.Errorf("%s is there twice", d.Name)
		}
		seen[d.Name] = true
	}
	var list *resourceapi.ResourceSliceList
	eventually(t, "all slices of the pool", func() (complete bool) {
		var err error
		if list, err = n.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		return len(list.Items) > 0 && list.Items[0].Spec.Pool.ResourceSliceCount == int64(len(list.Items))
	})
	sets := 0
	for _, s := range list.Items {
		sets += len(s.Spec.SharedCounters)
		if len(s.Spec.Devices) > 64 || len(s.Spec.SharedCounters) > 8 || (len(s.Spec.Devices) > 0 && len(s.Spec.SharedCounters) > 0) {
			t.Errorf("a slice with %d devices and %d sets of counters", len(s.Spec.Devices), len(s.Spec.SharedCounters))
		}
		if s.Spec.Pool.ResourceSliceCount != int64(len(list.Items)) {
			t.Errorf("a slice of %d, there are %d", s.Spec.Pool.ResourceSliceCount, len(list.Items))
		}
	}
	if sets != 16 {
		t.Errorf("%d sets of counters for 16 cards", sets)
	}
}

// D22
func TestInstancesOfClaimsPreparedAtOnceAreAllThere(t *testing.T) {
	n := migNode(t)
	d := n.start()
	var claims []*resourceapi.ResourceClaim
	for i := range 6 {
		claims = append(claims, n.claim(fmt.Sprint("c", i), onMIG("1g.10gb", i)))
	}
	for range 5 {
		all := make(chan string, len(claims))
		for _, c := range claims {
			go func() {
				resp, err := d.client.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}}})
				if err != nil {
					all <- err.Error()
					return
				}
				all <- resp.Claims[string(c.UID)].Error
			}()
		}
		for range claims {
			if text := <-all; text != "" {
				t.Error(text)
			}
		}
		n.instances("0@0+", "0@1+", "0@2+", "0@3+", "0@4+", "0@5+")
		d.unprepare(claims...)
		n.instances()
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return names
}
