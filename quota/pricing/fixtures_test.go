package pricing

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// card is a shareable card as the driver publishes it in a dynamic group, or,
// with a slice size, in a fixed one.
func card(name, memory, slice string) *resourceapi.Device {
	total := resource.MustParse(memory)
	def, policy := total, &resourceapi.CapacityRequestPolicy{}
	if slice != "" {
		def = resource.MustParse(slice)
		policy.ValidValues = []resource.Quantity{def}
	} else {
		policy.ValidRange = &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("256Mi")), Step: ptr.To(resource.MustParse("1Mi"))}
	}
	policy.Default = &def
	return &resourceapi.Device{
		Name:                     name,
		AllowMultipleAllocations: ptr.To(true),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type":  {StringValue: ptr.To("gpu")},
			"index": {IntValue: ptr.To(int64(name[len(name)-1] - '0'))},
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			CapacityMemory: {Value: total, RequestPolicy: policy},
			CapacityCores: {Value: resource.MustParse("100"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default:    ptr.To(resource.MustParse("0")),
				ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("0")), Step: ptr.To(resource.MustParse("1"))},
			}},
		},
	}
}

func mig(name, memory string) *resourceapi.Device {
	return &resourceapi.Device{
		Name:       name,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: ptr.To("mig")}, "index": {IntValue: ptr.To(int64(0))}},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			CapacityMemory: {Value: resource.MustParse(memory)},
			CapacityCores:  {Value: resource.MustParse("14")},
		},
	}
}

func on(node string, devices ...*resourceapi.Device) []Device {
	var all []Device
	for _, d := range devices {
		all = append(all, Device{Pool: node, Node: node, Device: d})
	}
	return all
}

func class(name, extended string, selectors ...string) *resourceapi.DeviceClass {
	c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if extended != "" {
		c.Spec.ExtendedResourceName = &extended
	}
	for _, s := range selectors {
		c.Spec.Selectors = append(c.Spec.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: s}})
	}
	return c
}

func stockClasses() ClassMap {
	m := ClassMap{}
	for _, c := range []*resourceapi.DeviceClass{
		class("gpu.sluice.dev", "nvidia.com/gpu", `device.driver == "gpu.sluice.dev" && device.attributes["gpu.sluice.dev"].type == "gpu"`),
		class("mig.gpu.sluice.dev", "", `device.driver == "gpu.sluice.dev" && device.attributes["gpu.sluice.dev"].type == "mig"`),
		class("nic.example.com", "", `device.driver == "nic.example.com"`),
	} {
		m[c.Name] = c
	}
	return m
}

// ask is a claim with one request per argument: "class memory cores count",
// "-" for what is not named.
func ask(class, memory, cores string, count int64) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
	}}
	requests := map[resourceapi.QualifiedName]resource.Quantity{}
	if memory != "" {
		requests[CapacityMemory] = resource.MustParse(memory)
	}
	if cores != "" {
		requests[CapacityCores] = resource.MustParse(cores)
	}
	if len(requests) > 0 {
		r.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: requests}
	}
	return r
}

func claim(requests ...resourceapi.DeviceRequest) *resourceapi.DeviceClaim {
	return &resourceapi.DeviceClaim{Requests: requests}
}

func limits(pairs ...string) corev1.ResourceRequirements {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return corev1.ResourceRequirements{Limits: list}
}
