package pricing

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// ExtendedResources returns the claim that the scheduler will make for a pod
// whose containers ask for devices by limits such as `nvidia.com/gpu: 1`
// (KEP-5004), and the names of those resources. The claim is nil if no limit is
// served by a DeviceClass.
//
// As in the scheduler, an init container that ends before the others start
// uses their devices first; only what it needs beyond them is asked for.
func ExtendedResources(spec *corev1.PodSpec, classes Classes) (*resourceapi.DeviceClaim, []corev1.ResourceName) {
	var names []corev1.ResourceName
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
			for name := range list {
				if asked(&c, name) > 0 && !slices.Contains(names, name) && classes.ForExtendedResource(name) != nil {
					names = append(names, name)
				}
			}
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	slices.Sort(names)
	claim := &resourceapi.DeviceClaim{}
	for _, name := range names {
		claim.Requests = append(claim.Requests, requestsFor(spec, name, classes.ForExtendedResource(name).Name)...)
	}
	slices.SortFunc(claim.Requests, func(a, b resourceapi.DeviceRequest) int { return cmp.Compare(a.Name, b.Name) })
	return claim, names
}

// requestsFor is one request for each container that lives as long as the pod,
// and one for the largest need of the short-lived ones that those do not meet.
func requestsFor(spec *corev1.PodSpec, name corev1.ResourceName, class string) []resourceapi.DeviceRequest {
	containers := append(slices.Clone(spec.InitContainers), spec.Containers...)
	long := make([]int64, len(containers))
	short := func(i int) bool {
		return i < len(spec.InitContainers) &&
			(containers[i].RestartPolicy == nil || *containers[i].RestartPolicy != corev1.ContainerRestartPolicyAlways)
	}
	var requests []resourceapi.DeviceRequest
	for i := range containers {
		if n := asked(&containers[i], name); n > 0 && !short(i) {
			long[i] = n
			requests = append(requests, extendedRequest(i, &containers[i], name, class, n))
		}
	}
	extra, at := int64(0), -1
	for i := range containers {
		if !short(i) {
			continue
		}
		need := asked(&containers[i], name)
		for _, n := range long[i:] {
			need -= n
		}
		if need > extra {
			extra, at = need, i
		}
	}
	if at >= 0 {
		requests = append(requests, extendedRequest(at, &containers[at], name, class, extra))
	}
	return requests
}

func extendedRequest(i int, c *corev1.Container, name corev1.ResourceName, class string, count int64) resourceapi.DeviceRequest {
	keys := make([]string, 0, len(c.Resources.Requests))
	for k := range c.Resources.Requests {
		keys = append(keys, string(k))
	}
	slices.Sort(keys)
	return resourceapi.DeviceRequest{
		Name: fmt.Sprintf("container-%d-request-%d", i, max(0, slices.Index(keys, string(name)))),
		Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: class,
			AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
			Count:           count,
		},
	}
}

// asked is what a container asks of a resource. Extended resources may be given
// as a limit alone; the API server sets the request to it, a pod template keeps
// it as it was written.
func asked(c *corev1.Container, name corev1.ResourceName) int64 {
	if q, ok := c.Resources.Requests[name]; ok {
		return q.Value()
	}
	if q, ok := c.Resources.Limits[name]; ok {
		return q.Value()
	}
	return 0
}
