package sanity_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/ptr"
)

// referenceEnv makes the test binary a driver; its value is a referenceDriver
// as JSON.
const referenceEnv = "SANITY_REFERENCE_DRIVER"

// referenceDriver is a small DRA driver that keeps the contract, or breaks it
// in the one way that Fault names. It is written against the kubelet's gRPC API
// alone, so that it can do what helper packages do not let drivers do.
type referenceDriver struct {
	drapb.UnimplementedDRAPluginServer `json:"-"`

	Name, Node, Kubeconfig, Dir string
	Fault                       fault

	client kubernetes.Interface

	mu       sync.Mutex
	prepared map[string]preparedClaim
	busy     map[string]bool // claims of calls in flight
}

// preparedClaim is what the driver remembers, in a file.
type preparedClaim struct {
	Namespace, Name string
	Devices         []*drapb.Device
}

func (d *referenceDriver) path(name string) string { return filepath.Join(d.Dir, name) }
func (d *referenceDriver) has(f fault) bool        { return d.Fault == f }

func runReference() int {
	d := &referenceDriver{prepared: map[string]preparedClaim{}, busy: map[string]bool{}}
	err := json.Unmarshal([]byte(os.Getenv(referenceEnv)), d)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		err = d.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (d *referenceDriver) run(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", d.Kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 500, 1000
	if d.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if err := d.load(); err != nil {
		return err
	}
	if err := d.publish(ctx, true); err != nil {
		return err
	}
	dra := grpc.NewServer()
	drapb.RegisterDRAPluginServer(dra, d)
	if !d.has(announcesMoreThanItServes) {
		drav1beta1.RegisterDRAPluginServer(dra, &olderService{driver: d})
	}
	healthv1.RegisterDRAResourceHealthServer(dra, &healthService{driver: d})
	if err := d.serve(dra, d.path(d.socket("dra"))); err != nil {
		return err
	}
	registration := grpc.NewServer()
	registerapi.RegisterRegistrationServer(registration, &registrationService{driver: d, server: registration})
	if err := d.serve(registration, d.path("reg/"+d.socket("reg"))); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if !d.has(publishesOnce) {
			if err := d.publish(ctx, false); err != nil && ctx.Err() == nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	if d.has(cleansAtStop) {
		d.removeSpecs()
	}
	registration.Stop()
	dra.Stop()
	return nil
}

// socket is a name that no other instance has.
func (d *referenceDriver) socket(kind string) string {
	if d.has(hasOneSocketForAllInstances) {
		return kind + ".sock"
	}
	return kind + "-" + os.Getenv("POD_UID")[:8] + ".sock"
}

func (d *referenceDriver) serve(s *grpc.Server, socket string) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go func() { _ = s.Serve(l) }()
	return nil
}

// load reads what an earlier instance prepared, and drops what is gone.
func (d *referenceDriver) load() error {
	if d.has(forgetsAtStart) {
		d.removeSpecs()
		return nil
	}
	if d.has(keepsStateInMemory) {
		return nil
	}
	text, err := os.ReadFile(d.path("state"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &d.prepared)
	}
	if err != nil || d.has(neverReconciles) {
		return err
	}
	for uid, p := range maps.Clone(d.prepared) {
		_, err := d.client.ResourceV1().ResourceClaims(p.Namespace).Get(context.Background(), p.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			d.forget(uid)
		}
	}
	return d.save()
}

func (d *referenceDriver) save() error {
	text, err := json.Marshal(d.prepared)
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.path("state.new"), text, 0o600); err != nil {
		return err
	}
	return os.Rename(d.path("state.new"), d.path("state"))
}

func (d *referenceDriver) removeSpecs() {
	files, _ := filepath.Glob(d.path("cdi/*"))
	for _, f := range files {
		_ = os.Remove(f)
	}
}

// devices are two that are exclusive and one that can be shared.
func (d *referenceDriver) devices() []resourceapi.Device {
	suffix := ""
	if d.has(namesDevicesByProcess) {
		suffix = fmt.Sprintf("-%d", os.Getpid())
	}
	return []resourceapi.Device{
		{Name: "one" + suffix}, {Name: "two" + suffix},
		{Name: "shared" + suffix, AllowMultipleAllocations: ptr.To(true), Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"units": {Value: resource.MustParse("10"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default: ptr.To(resource.MustParse("10")), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("1"))},
			}},
		}},
	}
}

// publish makes the slices that are missing.
func (d *referenceDriver) publish(ctx context.Context, starting bool) error {
	api := d.client.ResourceV1().ResourceSlices()
	list, err := api.List(ctx, metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + d.Name})
	if err != nil {
		return err
	}
	if starting && len(list.Items) > 0 && (d.has(namesDevicesByProcess) || d.has(rewritesAtStart)) {
		slice := &list.Items[0]
		slice.Spec.Devices = d.devices()
		slice.Spec.Pool.Generation++
		_, err := api.Update(ctx, slice, metav1.UpdateOptions{})
		return err
	}
	if len(list.Items) > 0 {
		if d.has(rewritesAtRest) {
			return d.touch(ctx, &list.Items[0])
		}
		return nil
	}
	node, err := d.client.CoreV1().Nodes().Get(ctx, d.Node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "reference-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: d.Name, NodeName: &d.Node, Devices: d.devices(),
			Pool: resourceapi.ResourcePool{Name: d.Node, Generation: 1, ResourceSliceCount: 1},
		},
	}
	if !d.has(doesNotOwnSlices) {
		slice.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	}
	second := slice.DeepCopy()
	second.Spec.Devices = []resourceapi.Device{{Name: "three"}}
	switch {
	case d.has(publishesHalfAPool):
		slice.Spec.Pool.ResourceSliceCount = 2
	case d.has(publishesForTwoNodes):
		second.Spec.NodeName, second.Spec.AllNodes = nil, ptr.To(true)
	case d.has(publishesANameTwice):
		second.Spec.Devices[0].Name = "one"
	}
	made := []*resourceapi.ResourceSlice{slice}
	if d.has(publishesForTwoNodes) || d.has(publishesANameTwice) {
		slice.Spec.Pool.ResourceSliceCount, second.Spec.Pool.ResourceSliceCount = 2, 2
		made = append(made, second)
	}
	for _, s := range made {
		if _, err := api.Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// touch writes a slice without need.
func (d *referenceDriver) touch(ctx context.Context, slice *resourceapi.ResourceSlice) error {
	slice.Annotations = map[string]string{"example.com/touched": time.Now().Format(time.RFC3339Nano)}
	_, err := d.client.ResourceV1().ResourceSlices().Update(ctx, slice, metav1.UpdateOptions{})
	return err
}

type registrationService struct {
	registerapi.UnimplementedRegistrationServer
	driver *referenceDriver
	server *grpc.Server
}

func (r *registrationService) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	info := &registerapi.PluginInfo{
		Type: registerapi.DRAPlugin, Name: r.driver.Name, Endpoint: r.driver.path(r.driver.socket("dra")),
		SupportedVersions: []string{drapb.DRAPluginService, drav1beta1.DRAPluginService, healthv1.DRAResourceHealthService},
	}
	if r.driver.has(registersAsDevicePlugin) {
		info.Type = registerapi.DevicePlugin
	}
	return info, nil
}

func (r *registrationService) NotifyRegistrationStatus(context.Context, *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if r.driver.has(closesRegistration) {
		time.AfterFunc(100*time.Millisecond, r.server.Stop)
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

type healthService struct {
	healthv1.UnimplementedDRAResourceHealthServer
	driver *referenceDriver
}

func (h *healthService) NodeWatchResources(_ *healthv1.NodeWatchResourcesRequest, stream healthv1.DRAResourceHealth_NodeWatchResourcesServer) error {
	for {
		report := &healthv1.NodeWatchResourcesResponse{}
		for _, dev := range h.driver.devices() {
			report.Devices = append(report.Devices, &healthv1.DeviceHealth{
				Device: &healthv1.DeviceIdentifier{PoolName: h.driver.Node, DeviceName: dev.Name},
				Health: healthv1.HealthStatus_HEALTHY, LastUpdatedTime: time.Now().Unix(), HealthCheckTimeoutSeconds: 2,
			})
		}
		if h.driver.has(reportsNotAllHealth) {
			report.Devices = report.Devices[1:]
		}
		if err := stream.Send(report); err != nil {
			return err
		}
		every := time.Second
		if h.driver.has(reportsHealthOnce) {
			every = time.Hour
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(every):
		}
	}
}

// olderService serves the older version of the API with messages of the newer.
type olderService struct {
	drav1beta1.UnimplementedDRAPluginServer
	driver *referenceDriver
}

func (o *olderService) NodePrepareResources(ctx context.Context, request *drav1beta1.NodePrepareResourcesRequest) (*drav1beta1.NodePrepareResourcesResponse, error) {
	newer := &drapb.NodePrepareResourcesRequest{}
	for _, c := range request.Claims {
		newer.Claims = append(newer.Claims, &drapb.Claim{Namespace: c.Namespace, Name: c.Name, Uid: c.Uid})
	}
	response, err := o.driver.NodePrepareResources(ctx, newer)
	if err != nil {
		return nil, err
	}
	older := &drav1beta1.NodePrepareResourcesResponse{Claims: map[string]*drav1beta1.NodePrepareResourceResponse{}}
	for uid, r := range response.Claims {
		one := &drav1beta1.NodePrepareResourceResponse{Error: r.Error}
		for _, dev := range r.Devices {
			one.Devices = append(one.Devices, &drav1beta1.Device{RequestNames: dev.RequestNames, PoolName: dev.PoolName, DeviceName: dev.DeviceName, CdiDeviceIds: dev.CdiDeviceIds})
		}
		older.Claims[uid] = one
	}
	return older, nil
}

func (o *olderService) NodeUnprepareResources(ctx context.Context, request *drav1beta1.NodeUnprepareResourcesRequest) (*drav1beta1.NodeUnprepareResourcesResponse, error) {
	older := &drav1beta1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1beta1.NodeUnprepareResourceResponse{}}
	for _, c := range request.Claims {
		response, err := o.driver.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: c.Namespace, Name: c.Name, Uid: c.Uid}}})
		if err != nil {
			return nil, err
		}
		older.Claims[c.Uid] = &drav1beta1.NodeUnprepareResourceResponse{Error: response.Claims[c.Uid].GetError()}
	}
	return older, nil
}
