package sanity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/retry"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"
)

// request is what a claim asks for: one device, or a part of it.
type request struct {
	device device
	// share is the part; nil: what the driver gives to a request without sizes.
	share map[resourceapi.QualifiedName]resource.Quantity
	// admin asks for access beside whoever has the device.
	admin bool
}

// errNoRoom says that the scheduler would not allocate the devices now: they
// are taken, tainted, or not of the class.
var errNoRoom = errors.New("the scheduler's allocator does not give these devices out")

// configuration is an opaque configuration in a claim.
func configuration(driver string, parameters []byte) resourceapi.DeviceClaimConfiguration {
	return resourceapi.DeviceClaimConfiguration{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: parameters}},
	}}
}

// newClaim makes a claim in the API that is not allocated.
func (c *scope) newClaim(requests []request, config ...resourceapi.DeviceClaimConfiguration) (*resourceapi.ResourceClaim, error) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "claim-", Namespace: c.namespace}}
	for i, r := range requests {
		exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: c.class.Name}
		if r.admin {
			exactly.AdminAccess = ptr.To(true)
		}
		if r.share != nil {
			exactly.Capacity = &resourceapi.CapacityRequirements{Requests: r.share}
		}
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: fmt.Sprintf("r%d", i), Exactly: exactly})
	}
	if len(c.d.Parameters) > 0 {
		config = append(config, configuration(c.d.Name, c.d.Parameters))
	}
	claim.Spec.Devices.Config = config
	claim, err := c.client.ResourceV1().ResourceClaims(c.namespace).Create(c.ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("making a claim: %w", err)
	}
	c.claims = append(c.claims, claim)
	return claim, nil
}

// claim makes a claim for the given devices, allocates it as the scheduler
// does, and reserves it for a pod of the node.
func (c *scope) claim(requests ...request) (*resourceapi.ResourceClaim, error) {
	return c.claimWith(requests)
}

func (c *scope) claimWith(requests []request, config ...resourceapi.DeviceClaimConfiguration) (*resourceapi.ResourceClaim, error) {
	items, err := c.published(c.ctx)
	if err != nil {
		return nil, err
	}
	claim, err := c.newClaim(requests, config...)
	if err != nil {
		return nil, err
	}
	allocation, err := c.allocate(claim, items, requests)
	if err != nil {
		return nil, err
	}
	return c.bind(claim, allocation)
}

// allocate computes what the scheduler would give to the claim, were the
// requested devices the only ones.
func (c *scope) allocate(claim *resourceapi.ResourceClaim, items []resourceapi.ResourceSlice, requests []request) (*resourceapi.AllocationResult, error) {
	claims, err := c.client.ResourceV1().ResourceClaims("").List(c.ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	allocator, err := structured.NewAllocator(c.ctx, features, allocated(claims.Items), oneClass{c.class}, onlyDevices(items, requests),
		cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		return nil, fmt.Errorf("allocator: %w", err)
	}
	results, err := allocator.Allocate(c.ctx, c.node, []*resourceapi.ResourceClaim{claim})
	if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
		return nil, fmt.Errorf("allocator: %w", err)
	}
	if len(results) == 0 {
		return nil, errNoRoom
	}
	return &results[0], nil
}

// features are those on by default in the scheduler from Kubernetes 1.36.
var features = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true,
	DeviceBindingAndStatus: true, ConsumableCapacity: true,
}

// allocated is what claims hold, as the allocator wants it told.
func allocated(claims []resourceapi.ResourceClaim) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			switch {
			case ptr.Deref(r.AdminAccess, false):
			case r.ShareID == nil:
				state.AllocatedDevices.Insert(id)
			default:
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
			}
		}
	}
	return state
}

// onlyDevices leaves out of the slices all devices but the requested ones.
func onlyDevices(items []resourceapi.ResourceSlice, requests []request) []*resourceapi.ResourceSlice {
	var out []*resourceapi.ResourceSlice
	for i := range items {
		slice := items[i].DeepCopy()
		slice.Spec.Devices = slices.DeleteFunc(slice.Spec.Devices, func(d resourceapi.Device) bool {
			return !slices.ContainsFunc(requests, func(r request) bool {
				return r.device.pool == slice.Spec.Pool.Name && r.device.Name == d.Name
			})
		})
		out = append(out, slice)
	}
	return out
}

// oneClass is a structured.DeviceClassLister.
type oneClass struct{ *resourceapi.DeviceClass }

func (l oneClass) List() ([]*resourceapi.DeviceClass, error) {
	return []*resourceapi.DeviceClass{l.DeviceClass}, nil
}

func (l oneClass) Get(name string) (*resourceapi.DeviceClass, error) {
	if name != l.Name {
		return nil, apierrors.NewNotFound(resourceapi.Resource("deviceclasses"), name)
	}
	return l.DeviceClass, nil
}

// bind writes an allocation in the two steps of the scheduler, the finalizer
// and then the status, and reserves the claim for a new pod of the node.
func (c *scope) bind(claim *resourceapi.ResourceClaim, allocation *resourceapi.AllocationResult) (*resourceapi.ResourceClaim, error) {
	pod, err := c.client.CoreV1().Pods(c.namespace).Create(c.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-", Namespace: c.namespace},
		Spec: corev1.PodSpec{
			NodeName: c.d.NodeName,
			Containers: []corev1.Container{{
				Name: "c", Image: "example.invalid/sanity",
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "devices"}}},
			}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "devices", ResourceClaimName: &claim.Name}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("making a pod: %w", err)
	}
	c.pods = append(c.pods, pod.Name)
	claims := c.client.ResourceV1().ResourceClaims(c.namespace)
	claim.Finalizers = append(claim.Finalizers, resourceapi.Finalizer)
	if claim, err = claims.Update(c.ctx, claim, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("adding the scheduler's finalizer: %w", err)
	}
	claim.Status.Allocation = allocation
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}}
	if claim, err = claims.UpdateStatus(c.ctx, claim, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("writing the allocation: %w", err)
	}
	return claim, nil
}

// forceDelete removes a claim from the API as somebody does who does not wait
// for its pods: without its finalizers.
func (s *suite) forceDelete(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	claims := s.client.ResourceV1().ResourceClaims(claim.Namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil || len(now.Finalizers) == 0 || now.UID != claim.UID {
			return err
		}
		now.Finalizers = nil
		_, err = claims.Update(ctx, now, metav1.UpdateOptions{})
		return err
	})
	if err == nil {
		err = claims.Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID}, GracePeriodSeconds: ptr.To[int64](0)})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone already, or another of the same name
	}
	return err
}

// onWire is the claim as a kubelet names it to a plugin.
func onWire(claim *resourceapi.ResourceClaim) *drapb.Claim {
	return &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}
}

func allOnWire(claims []*resourceapi.ResourceClaim) []*drapb.Claim {
	var all []*drapb.Claim
	for _, claim := range claims {
		all = append(all, onWire(claim))
	}
	return all
}

// scope is one check at work: it remembers what to clean up after it.
type scope struct {
	*suite
	ctx    context.Context
	claims []*resourceapi.ResourceClaim
	pods   []string
}

// cleanUp unprepares the check's claims and removes its objects, whatever the
// check has left undone.
func (c *scope) cleanUp() error {
	if len(c.claims) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), time.Minute)
	defer cancel()
	c.ctx = ctx
	var errs []error
	if err := c.ready(ctx); err != nil {
		errs = append(errs, err)
	} else if err := c.unprepare(c.claims...); err != nil {
		errs = append(errs, err)
	}
	for _, name := range c.pods {
		err := c.client.CoreV1().Pods(c.namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	for _, claim := range c.claims {
		if err := c.forceDelete(ctx, claim); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
