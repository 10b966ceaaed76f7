package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/sluice-gpu/sluice/cdi"
	"github.com/sluice-gpu/sluice/driver"
	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/enforce"
	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/gpu/gputest"
	"github.com/sluice-gpu/sluice/driver/limit"
	"github.com/sluice-gpu/sluice/driver/state"
)

// node is a machine with made-up cards on which drivers are started and
// stopped. Its folders, boot id and API objects outlive each driver.
type node struct {
	t      testing.TB
	dir    string
	lib    *gputest.Library
	source *source
	cards  *gpu.Scanner
	client *fake.Clientset
	edits  *edits
	config string
	// enforce gives drivers a limiter.
	enforce bool
	// xids lets error events of cards count.
	xids   bool
	podUID types.UID
}

func newNode(t testing.TB, models ...gpus.Config) *node {
	t.Helper()
	// t.TempDir is too long for a socket's path.
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &node{t: t, dir: dir, lib: gputest.New(models...), edits: &edits{}}
	scanner := &gpu.Scanner{
		Open:  func() (nvml.Interface, error) { return n.lib, nil },
		Sysfs: os.DirFS(n.path("sys")).(fs.ReadLinkFS),
	}
	n.cards = scanner
	n.source = &source{scan: func() (gpu.Inventory, error) {
		scanner.WatchXIDs = n.xids
		return scanner.Scan()
	}}
	n.client = fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-uid", Labels: map[string]string{"gpu-type": "a100"}}})
	// The API server makes the names that the fake one leaves empty.
	var made atomic.Int64
	n.client.PrependReactor("create", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if o, ok := a.(clienttesting.CreateAction).GetObject().(metav1.Object); ok && o.GetName() == "" {
			o.SetName(fmt.Sprintf("%s%05d", o.GetGenerateName(), made.Add(1)))
		}
		return false, nil, nil
	})
	n.mkdir("plugins_registry")
	n.mkdir("sys")
	n.reboot("boot-1")
	for _, f := range []string{"shim.so", "guard.so"} {
		n.write(f, f)
	}
	return n
}

func (n *node) path(elem ...string) string { return filepath.Join(append([]string{n.dir}, elem...)...) }
func (n *node) mkdir(name string) {
	if err := os.MkdirAll(n.path(name), 0o755); err != nil {
		n.t.Fatal(err)
	}
}
func (n *node) write(name, content string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(n.path(name)), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(n.path(name), []byte(content), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// reboot changes the boot id and empties the CDI folder, which is a tmpfs.
func (n *node) reboot(id string) {
	n.write("boot_id", id+"\n")
	if err := os.RemoveAll(n.path("cdi")); err != nil {
		n.t.Fatal(err)
	}
}

// instance is one running driver.
type instance struct {
	*Driver
	n      *node
	stop   func()
	ended  chan error
	client drapb.DRAPluginClient
}

func (n *node) instanceConfig() Config {
	cfg := config.Default()
	if n.config != "" {
		var err error
		if cfg, err = config.Decode([]byte("apiVersion: gpu.sluice.dev/v1alpha1\nkind: DriverConfiguration\n" + n.config)); err != nil {
			n.t.Fatal(err)
		}
	}
	c := Config{
		NodeName: "n1", PodUID: n.podUID, KubeClient: n.client,
		PluginDir: n.path("plugin"), RegistryDir: n.path("plugins_registry"), CDIDir: n.path("cdi"), BootIDFile: n.path("boot_id"),
		Configuration: cfg, Source: n.source, Edits: n.edits, MIG: n.cards,
		ScanInterval: 20 * time.Millisecond, ReconcileInterval: 30 * time.Millisecond,
	}
	if n.enforce {
		l, err := limit.Install(limit.Sources{CUDA: n.path("shim.so")}, n.path("plugin", "lib"))
		if err != nil {
			n.t.Fatal(err)
		}
		c.Backends = map[config.Enforcement]enforce.Backend{config.Limiter: l}
	}
	return c
}

// start runs a driver and connects to it as the kubelet does.
func (n *node) start() *instance {
	n.t.Helper()
	return n.startWith(n.instanceConfig())
}

func (n *node) startWith(c Config) *instance {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	i := &instance{Driver: New(c), n: n, ended: make(chan error, 1)}
	go func() { i.ended <- i.Run(ctx) }()
	var once sync.Once
	i.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-i.ended; err != nil {
				n.t.Errorf("driver ended: %v", err)
			}
		})
	}
	n.t.Cleanup(i.stop)
	socket := "dra.sock"
	if c.PodUID != "" {
		socket = "dra-" + string(c.PodUID) + ".sock"
	}
	conn, err := grpc.NewClient("unix://"+n.path("plugin", socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	i.client = drapb.NewDRAPluginClient(conn)
	// The socket's name is there a moment before anybody listens.
	eventually(n.t, "socket", func() bool {
		conn, err := net.Dial("unix", n.path("plugin", socket))
		return err == nil && conn.Close() == nil
	})
	return i
}

// prepare asks for claims as the kubelet does; the answers are in order.
func (i *instance) prepare(claims ...*resourceapi.ResourceClaim) []*drapb.NodePrepareResourceResponse {
	i.n.t.Helper()
	req := &drapb.NodePrepareResourcesRequest{}
	for _, c := range claims {
		req.Claims = append(req.Claims, &drapb.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)})
	}
	resp, err := i.client.NodePrepareResources(i.n.t.Context(), req)
	if err != nil {
		i.n.t.Fatalf("prepare: %v", err)
	}
	var out []*drapb.NodePrepareResourceResponse
	for _, c := range claims {
		r, ok := resp.Claims[string(c.UID)]
		if !ok {
			i.n.t.Fatalf("no answer for claim %s", c.Name)
		}
		out = append(out, r)
	}
	return out
}

// mustPrepare returns the devices of claims that must be accepted.
func (i *instance) mustPrepare(claims ...*resourceapi.ResourceClaim) []*drapb.Device {
	i.n.t.Helper()
	var out []*drapb.Device
	for k, r := range i.prepare(claims...) {
		if r.Error != "" {
			i.n.t.Fatalf("claim %s refused: %s", claims[k].Name, r.Error)
		}
		out = append(out, r.Devices...)
	}
	return out
}

// refused returns the reason for which one claim must be refused.
func (i *instance) refused(claim *resourceapi.ResourceClaim, want ...string) {
	i.n.t.Helper()
	r := i.prepare(claim)[0]
	if r.Error == "" {
		i.n.t.Fatalf("claim %s accepted, want a refusal with %q", claim.Name, want)
	}
	for _, w := range want {
		if !strings.Contains(r.Error, w) {
			i.n.t.Errorf("claim %s refused with\n%s\nwant %q in it", claim.Name, r.Error, w)
		}
	}
}

func (i *instance) unprepare(claims ...*resourceapi.ResourceClaim) {
	i.n.t.Helper()
	req := &drapb.NodeUnprepareResourcesRequest{}
	for _, c := range claims {
		req.Claims = append(req.Claims, &drapb.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)})
	}
	resp, err := i.client.NodeUnprepareResources(i.n.t.Context(), req)
	if err != nil {
		i.n.t.Fatalf("unprepare: %v", err)
	}
	for _, c := range claims {
		if r, ok := resp.Claims[string(c.UID)]; !ok || r.Error != "" {
			i.n.t.Fatalf("unprepare of %s: %v", c.Name, r)
		}
	}
}

// share is what a claim of a test asks of card number card.
type share struct {
	card   int
	memory string
	cores  string
	id     string // share id
	device string // instead of card
	admin  bool
	pool   string
	bare   bool // without consumed capacity
}

// claim makes an allocated claim and stores it in the API.
func (n *node) claim(name string, shares ...share) *resourceapi.ResourceClaim {
	n.t.Helper()
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name)},
		Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}},
	}
	for i, s := range shares {
		r := resourceapi.DeviceRequestAllocationResult{
			Request: fmt.Sprintf("r%d", i), Driver: driver.Name, Pool: "n1", Device: s.device,
		}
		if s.pool != "" {
			r.Pool = s.pool
		}
		if r.Device == "" {
			r.Device = device(s.card)
		}
		if s.admin {
			r.AdminAccess = ptr.To(true)
		}
		if s.device == "" && !s.bare {
			id := s.id
			if id == "" {
				id = fmt.Sprintf("share-%s-%d", name, i)
			}
			r.ShareID = ptr.To(types.UID(id))
			cores := s.cores
			if cores == "" {
				cores = "0"
			}
			r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
				"memory": resource.MustParse(s.memory), "cores": resource.MustParse(cores),
			}
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, r)
	}
	if err := n.client.Tracker().Add(c); err != nil {
		n.t.Fatal(err)
	}
	return c
}

// forget deletes the claim from the API.
func (n *node) forget(c *resourceapi.ResourceClaim) {
	n.t.Helper()
	if err := n.client.ResourceV1().ResourceClaims(c.Namespace).Delete(n.t.Context(), c.Name, metav1.DeleteOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// device is the published name of card i.
func device(i int) string { return "gpu-" + gputest.UUID(i)[4:12] }

// a100Mi is the usable memory of a made-up A100 of 80 GB.
const a100Mi = 81920 - gputest.ReservedMi

func whole(card int) share { return share{card: card, memory: fmt.Sprintf("%dMi", a100Mi)} }

// spec reads the CDI spec of a claim; nil if there is none.
func (n *node) spec(c *resourceapi.ResourceClaim) *specs.Spec {
	n.t.Helper()
	b, err := os.ReadFile(n.path("cdi", cdi.FileName(string(c.UID))))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		n.t.Fatal(err)
	}
	s := &specs.Spec{}
	if err := json.Unmarshal(b, s); err != nil {
		n.t.Fatal(err)
	}
	return s
}

// leftovers lists everything that belongs to claims.
func (n *node) leftovers() []string {
	var out []string
	for _, pattern := range []string{"cdi/*", "plugin/shares/*", "plugin/dra-device-metadata/*"} {
		names, _ := filepath.Glob(n.path(pattern))
		for _, name := range names {
			out = append(out, strings.TrimPrefix(name, n.dir+"/"))
		}
	}
	return out
}

func (i *instance) checkpoint() *state.Checkpoint {
	i.n.t.Helper()
	out, err := i.store.Look()
	if err != nil {
		i.n.t.Fatal(err)
	}
	return out
}

// pool returns the devices in the API, in order, when check is content.
func (n *node) pool(check func([]resourceapi.Device) bool) []resourceapi.Device {
	n.t.Helper()
	var devices []resourceapi.Device
	eventually(n.t, "published devices", func() bool {
		list, err := n.client.ResourceV1().ResourceSlices().List(n.t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) == 0 {
			return false
		}
		slices.SortFunc(list.Items, func(a, b resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
		devices = nil
		for _, s := range list.Items {
			devices = append(devices, s.Spec.Devices...)
		}
		return check == nil || check(devices)
	})
	return devices
}

func names(devices []resourceapi.Device) []string {
	var out []string
	for _, d := range devices {
		out = append(out, d.Name)
	}
	return out
}

// patience is how long a test waits for what must come to be. It costs nothing
// where it does.
const patience = 2 * time.Minute

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("%s: not within %s", what, patience)
}

// source is a gpu.Source that tests change under a running driver.
type source struct {
	mu   sync.Mutex
	scan func() (gpu.Inventory, error)
}

func (s *source) Scan() (gpu.Inventory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scan()
}

// change runs f while nobody scans.
func (s *source) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// edits stands for NVIDIA's generator.
type edits struct {
	mu sync.Mutex
	// failFor is the UUID of a card that cannot be opened.
	failFor string
	// at is called before a claim's files are made. Nil: nobody is.
	at func()
}

func (e *edits) Common() (specs.ContainerEdits, error) {
	if e.at != nil {
		e.at()
	}
	return specs.ContainerEdits{
		Env: []string{"NVIDIA_VISIBLE_DEVICES=void"},
		Mounts: []*specs.Mount{
			{HostPath: "/driver/lib64/libcuda.so." + gputest.DriverVersion, ContainerPath: "/usr/lib64/libcuda.so." + gputest.DriverVersion, Options: []string{"ro", "bind"}},
		},
	}, nil
}

func (e *edits) Card(uuid string) (specs.ContainerEdits, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if uuid == e.failFor {
		return specs.ContainerEdits{}, errors.New("no device node")
	}
	return specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: "/dev/nvidia-" + uuid}}}, nil
}

func (e *edits) fail(uuid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failFor = uuid
}
