package plugin

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/driver"
	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/gpu/gputest"
)

// taints lists the taints of cards, "<card>:<key>" each.
func taints(devices []resourceapi.Device) string {
	var out []string
	for _, d := range devices {
		for _, t := range d.Taints {
			for i := range 8 {
				if d.Name == device(i) {
					out = append(out, fmt.Sprintf("%d:%s=%s", i, strings.TrimPrefix(t.Key, "gpu.sluice.dev/"), t.Effect))
				}
			}
		}
	}
	return strings.Join(out, " ")
}

func (n *node) wantTaints(want string) {
	n.t.Helper()
	got := ""
	defer func() {
		if n.t.Failed() {
			n.t.Logf("taints were %q, want %q", got, want)
		}
	}()
	n.pool(func(d []resourceapi.Device) bool { got = taints(d); return len(d) > 0 && got == want })
}

// D25, one half
func TestCardsOfANodeWithADevicePluginAreNotHandedOutTwice(t *testing.T) {
	n := newNode(t, a100, a100)
	offer := func(cards string) {
		node, err := n.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		node.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(cards)}
		if _, err := n.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	offer("2")
	d := n.start()
	n.wantTaints("0:device-plugin-active=NoSchedule 1:device-plugin-active=NoSchedule")
	report, _ := d.health.report()
	for _, h := range report.Devices {
		if h.Message != "" {
			t.Errorf("%s is called unhealthy: %s", h.DeviceName, h.Message)
		}
	}
	// What a pod gets whose claim tolerates the taint.
	bold := n.claim("bold", share{card: 0, memory: "1Gi"})
	d.refused(bold, device(0), "nvidia.com/gpu by a device plugin", "handed out twice", "trying again", "device-plugin-active")
	d.mustPrepare(n.claim("admin", share{card: 0, memory: "1Gi", admin: true}), n.claim("monitor", share{device: driver.MonitorDevice, admin: true}))
	offer("0") // what stays in the status of a node whose plugin was removed
	n.wantTaints("")
	d.mustPrepare(bold)
	// What runs is not touched when the plugin comes back.
	offer("2")
	n.wantTaints("0:device-plugin-active=NoSchedule 1:device-plugin-active=NoSchedule")
	d.mustPrepare(bold)
}

// cardsInUse is a monitor's view that tests change.
type cardsInUse struct {
	mu  sync.Mutex
	use []gpu.Use
}

func (c *cardsInUse) Use() ([]gpu.Use, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.use, nil
}

// D25, the other half
func TestACardWithProcessesThatUseNoShareIsTainted(t *testing.T) {
	n := newNode(t, a100, a100)
	cards := &cardsInUse{use: []gpu.Use{
		{UUID: gputest.UUID(0)},
		{UUID: gputest.UUID(1), Processes: []gpu.ProcessUse{{PID: os.Getpid(), Memory: 1 << 30}}},
	}}
	c := n.instanceConfig()
	c.Use = cards
	d := n.startWith(c)
	n.wantTaints("1:in-use-elsewhere=NoSchedule")
	bold := n.claim("bold", share{card: 1, memory: "1Gi"})
	d.refused(bold, device(1), "processes run on it that use no share", "handed out twice", "trying again", "in-use-elsewhere")
	d.mustPrepare(n.claim("admin", share{card: 1, memory: "1Gi", admin: true}), n.claim("other", share{card: 0, memory: "1Gi"}))
	cards.mu.Lock()
	cards.use = []gpu.Use{{UUID: gputest.UUID(0)}, {UUID: gputest.UUID(1)}}
	cards.mu.Unlock()
	n.wantTaints("")
	d.mustPrepare(bold)
}

// D20
func TestACardWithAnXIDTakesNothingNewAndItsPodsAreTold(t *testing.T) {
	n := newNode(t, a100, a100)
	n.xids = true
	d := n.start()
	n.wantTaints("")
	n.source.change(func() { n.lib.XID(1, 79) })
	n.wantTaints("1:faulty=NoExecute") // nothing on it can go on
	report, _ := d.health.report()
	told := ""
	for _, h := range report.Devices {
		if h.DeviceName == device(1) {
			told = h.Message
		}
	}
	if !strings.Contains(told, "XID 79") {
		t.Errorf("the kubelet hears %q", told)
	}
	n.source.change(func() { n.lib.Energy = map[int]uint64{}; n.lib.XID(0, 32) })
	n.wantTaints("0:faulty=NoSchedule 1:faulty=NoExecute")
}
