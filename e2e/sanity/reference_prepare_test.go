package sanity_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// NodePrepareResources implements the DRA service.
func (d *referenceDriver) NodePrepareResources(ctx context.Context, request *drapb.NodePrepareResourcesRequest) (*drapb.NodePrepareResourcesResponse, error) {
	response := &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{}}
	wanted := request.Claims
	if d.has(skipsAClaim) && len(wanted) > 1 {
		wanted = wanted[1:]
	}
	for _, c := range wanted {
		devices, err := d.prepareOne(ctx, c)
		one := &drapb.NodePrepareResourceResponse{Devices: devices}
		if err != nil {
			if d.has(failsTheWholeCall) || d.has(failsTheWholeCallIfNotAllocated) && errors.Is(err, errNotAllocated) {
				return nil, err
			}
			one = &drapb.NodePrepareResourceResponse{Error: err.Error()}
		}
		response.Claims[c.Uid] = one
	}
	return response, nil
}

var errNotAllocated = errors.New("the claim is not allocated")

func (d *referenceDriver) prepareOne(ctx context.Context, c *drapb.Claim) ([]*drapb.Device, error) {
	if d.has(refusesWhileBusy) || d.has(refusesASecondCall) {
		key := c.Uid
		if d.has(refusesWhileBusy) {
			key = ""
		}
		if !d.enter(key) {
			return nil, errors.New("another call is not finished")
		}
		defer d.leave(key)
		time.Sleep(20 * time.Millisecond)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if p, ok := d.prepared[c.Uid]; ok && !d.has(makesNewIDsEachTime) {
		if d.has(trustsItsState) {
			return p.Devices, nil
		}
		return p.Devices, d.writeSpec(c.Uid, p.Devices)
	}
	if d.has(leavesALockWhenKilled) {
		lock := d.path("lock-" + c.Uid)
		if _, err := os.Stat(lock); err == nil {
			return nil, errors.New("the claim is being prepared")
		}
		if err := os.WriteFile(lock, nil, 0o600); err != nil {
			return nil, err
		}
		time.Sleep(20 * time.Millisecond)
		defer os.Remove(lock)
	}
	if d.has(refusesASecondLife) {
		if _, err := os.Stat(d.path("ended-" + c.Uid)); err == nil {
			return nil, errors.New("the claim was unprepared")
		}
	}
	claim, err := d.client.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	if err != nil {
		if d.has(takesAbsentClaims) {
			return nil, nil
		}
		return nil, err
	}
	if string(claim.UID) != c.Uid && !d.has(takesReplacedClaims) {
		return nil, fmt.Errorf("the claim has UID %s", claim.UID)
	}
	devices, err := d.devicesFor(claim)
	if err != nil {
		return nil, err
	}
	if err := d.writeSpec(c.Uid, devices); err != nil {
		return nil, err
	}
	if d.has(marksDevicesInUse) {
		list, err := d.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + d.Name})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			if err := d.touch(ctx, &list.Items[i]); err != nil {
				return nil, err
			}
		}
	}
	d.prepared[c.Uid] = preparedClaim{c.Namespace, c.Name, devices}
	return devices, d.save()
}

func (d *referenceDriver) enter(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy[key] {
		return false
	}
	d.busy[key] = true
	return true
}

func (d *referenceDriver) leave(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.busy, key)
}

// devicesFor answers an allocation.
func (d *referenceDriver) devicesFor(claim *resourceapi.ResourceClaim) ([]*drapb.Device, error) {
	if claim.Status.Allocation == nil {
		if d.has(takesUnallocatedClaims) {
			return nil, nil
		}
		return nil, errNotAllocated
	}
	for _, c := range claim.Status.Allocation.Devices.Config {
		if c.Opaque != nil && (c.Opaque.Driver == d.Name && !d.has(ignoresParameters) || d.has(readsParametersOfOthers)) {
			return nil, errors.New("unknown parameters")
		}
	}
	var devices []*drapb.Device
	var requests []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		requests = append(requests, r.Request)
		if r.Pool != d.Node && !d.has(takesOtherPools) {
			return nil, fmt.Errorf("the pool of this node is %s, not %s", d.Node, r.Pool)
		}
		known := slices.ContainsFunc(d.devices(), func(own resourceapi.Device) bool { return own.Name == r.Device })
		if !known && !d.has(takesMissingDevices) {
			return nil, fmt.Errorf("no device %s", r.Device)
		}
		if ptr.Deref(r.AdminAccess, false) && d.has(knowsNoAdminAccess) {
			return nil, errors.New("admin access is not supported")
		}
		if holder := d.holder(r, string(claim.UID)); holder != "" && !d.has(givesHeldDevices) {
			return nil, fmt.Errorf("device %s is held by claim %s", r.Device, holder)
		}
		dev := &drapb.Device{RequestNames: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, ShareId: (*string)(r.ShareID)}
		name := string(claim.UID) + "-" + r.Device
		if r.ShareID != nil {
			name += "-" + string(*r.ShareID)
		}
		switch {
		case d.has(makesIDsByDevice):
			name = r.Device
		case d.has(makesIDsByClaim):
			name = string(claim.UID)
		case d.has(makesOneIDForAll):
			name = "all"
		case d.has(makesNewIDsEachTime):
			name = fmt.Sprint(time.Now().UnixNano())
		}
		dev.CdiDeviceIds = []string{"example.com/" + d.cdiClass() + "=" + name}
		if d.has(tellsAnotherShare) && dev.ShareId != nil {
			dev.ShareId = ptr.To("another")
		}
		devices = append(devices, dev)
	}
	if d.has(tellsAllRequests) {
		for _, dev := range devices {
			dev.RequestNames = requests
		}
	}
	if d.has(tellsNoDevices) {
		return nil, nil
	}
	return devices, nil
}

// cdiClass keeps the IDs of drivers apart.
func (d *referenceDriver) cdiClass() string { return strings.ReplaceAll(d.Name, ".", "-") }

// holder is another claim that has the exclusive device.
func (d *referenceDriver) holder(r resourceapi.DeviceRequestAllocationResult, but string) string {
	for uid, p := range d.prepared {
		for _, dev := range p.Devices {
			if dev.DeviceName == r.Device && r.ShareID == nil && uid != but && !ptr.Deref(r.AdminAccess, false) {
				return p.Name
			}
		}
	}
	return ""
}

func (d *referenceDriver) specFile(uid string) string { return d.path("cdi/" + uid + ".json") }

func (d *referenceDriver) writeSpec(uid string, devices []*drapb.Device) error {
	spec := &specs.Spec{Version: "0.6.0", Kind: "example.com/" + d.cdiClass()}
	file := d.specFile(uid)
	if d.has(makesOneIDForAll) {
		file = d.specFile("all")
	}
	seen := map[string]bool{}
	for _, dev := range devices {
		_, name, _ := strings.Cut(dev.CdiDeviceIds[0], "=")
		if seen[name] {
			continue
		}
		seen[name] = true
		edits := specs.ContainerEdits{Env: []string{"DEVICE_" + strings.ToUpper(dev.DeviceName) + "=yes"}}
		if d.has(mountsWhatIsNotThere) {
			edits.Mounts = []*specs.Mount{{HostPath: d.path("not-there"), ContainerPath: "/x", Options: []string{"bind"}}}
		}
		spec.Devices = append(spec.Devices, specs.Device{Name: name, ContainerEdits: edits})
	}
	if len(spec.Devices) == 0 {
		return nil
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(d.path("cdi")), cdi.WithAutoRefresh(false))
	if err != nil {
		return err
	}
	if d.has(writesCDILate) {
		time.AfterFunc(time.Second, func() { _ = cache.WriteSpec(spec, filepath.Base(file)) })
		return nil
	}
	return cache.WriteSpec(spec, filepath.Base(file))
}

// forget undoes what was prepared.
func (d *referenceDriver) forget(uid string) {
	if d.has(endsAllShares) {
		for _, dev := range d.prepared[uid].Devices {
			for other, p := range d.prepared {
				if other != uid && slices.ContainsFunc(p.Devices, func(o *drapb.Device) bool { return o.DeviceName == dev.DeviceName }) {
					_ = os.Remove(d.specFile(other))
				}
			}
		}
	}
	if _, known := d.prepared[uid]; !d.has(leavesCDI) && (known || !d.has(keepsStateInMemory)) {
		_ = os.Remove(d.specFile(uid))
	}
	delete(d.prepared, uid)
}

// NodeUnprepareResources implements the DRA service.
func (d *referenceDriver) NodeUnprepareResources(ctx context.Context, request *drapb.NodeUnprepareResourcesRequest) (*drapb.NodeUnprepareResourcesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	response := &drapb.NodeUnprepareResourcesResponse{Claims: map[string]*drapb.NodeUnprepareResourceResponse{}}
	if d.has(unpreparesWithoutAnswer) {
		return response, nil
	}
	for _, c := range request.Claims {
		response.Claims[c.Uid] = &drapb.NodeUnprepareResourceResponse{}
		_, known := d.prepared[c.Uid]
		if !known && d.has(unpreparesOnlyWhatItKnows) {
			response.Claims[c.Uid].Error = "the claim is not prepared"
			continue
		}
		if !known && d.has(unpreparesAllOrNothing) && len(request.Claims) > 1 {
			return nil, fmt.Errorf("claim %s is not prepared", c.Name)
		}
		if d.has(unpreparesByReading) {
			if _, err := d.client.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{}); err != nil {
				response.Claims[c.Uid].Error = err.Error()
				continue
			}
		}
		d.forget(c.Uid)
		if d.has(refusesASecondLife) {
			if err := os.WriteFile(d.path("ended-"+c.Uid), nil, 0o600); err != nil {
				return nil, err
			}
		}
	}
	return response, d.save()
}
