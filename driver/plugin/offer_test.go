package plugin

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/gpu/gputest"
	"github.com/sluice-gpu/sluice/driver/slicing"
)

func (n *node) update(o runtime.Object) {
	n.t.Helper()
	resource, namespace := resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), "team"
	if err := n.client.Tracker().Update(resource, o, namespace); err != nil {
		n.t.Fatal(err)
	}
}

func TestCardsArePublishedInPCIOrderWithAMonitor(t *testing.T) {
	n := newNode(t, a100, gputest.T4, a100)
	n.start()
	devices := n.pool(func(d []resourceapi.Device) bool { return len(d) == 4 })
	want := []string{device(0), device(1), device(2), "monitor"}
	if got := names(devices); !slices.Equal(got, want) {
		t.Errorf("published %v, want %v", got, want)
	}
}

// D8
func TestACardThatFallsOffTheBusChangesNothingForTheOthers(t *testing.T) {
	n := newNode(t, a100, a100, a100)
	d := n.start()
	before := n.pool(func(d []resourceapi.Device) bool { return len(d) == 4 })
	running := n.claim("running", share{card: 1, memory: "1Gi"})
	lost := n.claim("lost", share{card: 0, memory: "1Gi"})
	answer := cdiNames(d.mustPrepare(running, lost))
	n.source.change(func() {
		n.lib.Devices = []nvml.Device{n.lib.Devices[2], n.lib.Devices[1]} // and in another order
		for i, dev := range n.lib.Devices {
			dev.(*server.Device).Index = i
		}
	})
	after := n.pool(func(d []resourceapi.Device) bool { return len(d) == 3 })
	for _, name := range []string{device(1), device(2)} {
		x, y := find(before, name), find(after, name)
		if x == nil || y == nil || !reflect.DeepEqual(x.Capacity, y.Capacity) || *x.Attributes["uuid"].StringValue != *y.Attributes["uuid"].StringValue {
			t.Errorf("device %s changed:\n%+v\n%+v", name, x, y)
		}
	}
	if got := cdiNames(d.mustPrepare(running, lost)); !slices.Equal(got, answer) {
		t.Errorf("running claims get %v, had %v", got, answer)
	}
	report, _ := d.health.report()
	for _, h := range report.Devices {
		want := kubeletplugin.HealthStatusHealthy
		if h.DeviceName == device(0) {
			want = kubeletplugin.HealthStatusUnhealthy
		}
		if h.Health != want {
			t.Errorf("%s is %s (%s), want %s", h.DeviceName, h.Health, h.Message, want)
		}
	}
}

func find(devices []resourceapi.Device, name string) *resourceapi.Device {
	for i := range devices {
		if devices[i].Name == name {
			return &devices[i]
		}
	}
	return nil
}

// D11
func TestMoreThan64DevicesAreOneCompletePool(t *testing.T) {
	n := newNode(t, gpus.Multiple(70, a100)...)
	n.start()
	n.pool(func(d []resourceapi.Device) bool { return len(d) == 71 })
	list, err := n.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 2 {
		t.Fatalf("%d slices, want 2", len(list.Items))
	}
	for _, s := range list.Items {
		if s.Spec.Pool.ResourceSliceCount != 2 || s.Spec.Pool.Generation != list.Items[0].Spec.Pool.Generation || s.Spec.Pool.Name != "n1" {
			t.Errorf("slice %s: pool %+v", s.Name, s.Spec.Pool)
		}
		if len(s.Spec.Devices) > 64 {
			t.Errorf("slice %s has %d devices", s.Name, len(s.Spec.Devices))
		}
	}
}

// D12
func TestNothingIsWrittenWhileNothingChanges(t *testing.T) {
	n := newNode(t, a100, a100)
	n.start()
	n.pool(func(d []resourceapi.Device) bool { return len(d) == 3 })
	n.client.ClearActions()
	time.Sleep(300 * time.Millisecond) // 15 looks at the cards
	for _, a := range n.client.Actions() {
		if a.GetResource().Resource == "resourceslices" && a.GetVerb() != "watch" && a.GetVerb() != "list" {
			t.Errorf("wrote without a reason: %v", a)
		}
	}
}

// D12
func TestSlicesThatTheKubeletDeletedComeBack(t *testing.T) {
	n := newNode(t, a100)
	n.start()
	n.pool(func(d []resourceapi.Device) bool { return len(d) == 2 })
	list, err := n.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	// Past the controller's own second look at what it just created.
	time.Sleep(trustOwn + 2*time.Second)
	if err := n.client.ResourceV1().ResourceSlices().Delete(t.Context(), list.Items[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.pool(func(d []resourceapi.Device) bool { return len(d) == 2 })
}

// D13
func TestAnAPIServerThatDropsFieldsEndsTheDriverWithTheGatesName(t *testing.T) {
	n := newNode(t, a100)
	n.client.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		s := a.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		s.Name = s.GenerateName + "x"
		for i := range s.Spec.Devices {
			s.Spec.Devices[i].AllowMultipleAllocations = nil
			for name, c := range s.Spec.Devices[i].Capacity {
				c.RequestPolicy = nil
				s.Spec.Devices[i].Capacity[name] = c
			}
		}
		return true, s, nil
	})
	d := New(n.instanceConfig())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(t.Context()) }()
	select {
	case err := <-ended:
		for _, want := range []string{"DRAConsumableCapacity", "Kubernetes 1.36"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("ended with %v, want %q in it", err, want)
			}
		}
	case <-time.After(patience):
		t.Fatal("still running")
	}
}

// D19
func TestANodeWithoutADriverOffersNothingUntilItHasOne(t *testing.T) {
	n := newNode(t, a100)
	works := n.source.scan
	n.source.change(func() {
		n.source.scan = func() (gpu.Inventory, error) {
			return gpu.Inventory{}, fmt.Errorf("no libnvidia-ml.so.1: %w", gpu.ErrUnavailable)
		}
	})
	d := n.start()
	if devices := n.pool(nil); len(devices) != 0 {
		t.Errorf("published %v", names(devices))
	}
	d.refused(n.claim("c", share{card: 0, memory: "1Gi"}), "it has none")
	n.source.change(func() { n.source.scan = works })
	n.pool(func(d []resourceapi.Device) bool { return len(d) == 2 })
	n.source.change(func() {
		n.source.scan = func() (gpu.Inventory, error) {
			return gpu.Inventory{}, fmt.Errorf("driver not loaded: %w", gpu.ErrUnavailable)
		}
	})
	n.pool(func(d []resourceapi.Device) bool { return len(d) == 0 })
}

// D29
func TestSlicesThatDoNotFitEndTheDriverWithTheLargestThatDo(t *testing.T) {
	n := newNode(t, gputest.T4)
	n.config = "nodeGroups:\n- name: t4\n  mode: fixed\n  slices: 2\n  memory: 8000Mi\n"
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := New(n.instanceConfig()).Run(ctx)
	for _, want := range []string{`"t4"`, "2 slices of 8000Mi", "14848Mi usable", "memory: 7424Mi", "memory: auto"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ended with %v, want %q in it", err, want)
		}
	}
	n.config = "nodeGroups:\n- name: t4\n  mode: fixed\n  slices: 2\n  memory: auto\n"
	n.start()
	devices := n.pool(func(d []resourceapi.Device) bool { return len(d) == 2 })
	if got := devices[0].Capacity["memory"].RequestPolicy.Default.String(); got != "7424Mi" {
		t.Errorf("a slice is %s, want 7424Mi", got)
	}
}

func TestARelabelledNodeIsCutAnew(t *testing.T) {
	n := newNode(t, a100)
	n.config = "nodeGroups:\n- name: four\n  nodeSelector: {role: small}\n  mode: fixed\n  slices: 4\n- name: rest\n"
	n.start()
	n.pool(func(d []resourceapi.Device) bool {
		return len(d) == 2 && d[0].Capacity["memory"].RequestPolicy.ValidRange != nil
	})
	node, err := n.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Labels["role"] = "small"
	if _, err := n.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.pool(func(d []resourceapi.Device) bool {
		return len(d) == 2 && len(d[0].Capacity["memory"].RequestPolicy.ValidValues) == 1
	})
}

func TestHealthIsReportedAgainAndAtEveryChange(t *testing.T) {
	n := newNode(t, a100)
	d := n.start()
	ctx, cancel := context.WithCancel(t.Context())
	reports := make(chan kubeletplugin.DeviceHealthReport)
	ended := make(chan error, 1)
	go func() { ended <- d.WatchHealthStatus(ctx, reports) }()
	if r := <-reports; len(r.Devices) != 2 || r.Devices[0].Health != kubeletplugin.HealthStatusHealthy {
		t.Fatalf("first report %+v", r)
	}
	n.source.change(func() { n.lib.Devices = nil })
	select {
	case r := <-reports:
		if r.Devices[0].Health != kubeletplugin.HealthStatusUnhealthy || r.Devices[0].Message == "" {
			t.Errorf("second report %+v", r)
		}
	case <-time.After(patience):
		t.Fatal("no report of the change")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestTheDriverIsReadyOnceTheKubeletKnowsIt(t *testing.T) {
	d := New(newNode(t, a100).instanceConfig())
	if err := d.Ready(); err == nil || !strings.Contains(err.Error(), "kubelet") {
		t.Errorf("ready before anything: %v", err)
	}
	d.registered.Store(true)
	if err := d.Ready(); err == nil || !strings.Contains(err.Error(), "cards") {
		t.Errorf("ready before the cards are known: %v", err)
	}
	d.current.Store(&slicing.Plan{})
	if err := d.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
}

func TestErrorsOfOneSliceDoNotEndTheDriver(t *testing.T) {
	d := New(newNode(t, a100).instanceConfig())
	ctx, cancel := context.WithCancelCause(t.Context())
	d.fatal = cancel
	d.HandleError(ctx, fmt.Errorf("conflict: %w", kubeletplugin.ErrRecoverable), "writing")
	if ctx.Err() != nil {
		t.Errorf("ended: %v", context.Cause(ctx))
	}
	d.HandleError(ctx, errors.New("listener closed"), "gRPC")
	if ctx.Err() == nil {
		t.Error("goes on without its socket")
	}
}
