package hami

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sluice-gpu/sluice/quota/pricing"
)

// Container is one container of a pod.
type Container struct {
	Init  bool
	Index int
}

// Claim is what one or more containers of a pod use together.
type Claim struct {
	// Name is the claim's in the pod.
	Name string
	// Spec is what it asks for.
	Spec       resourceapi.ResourceClaimSpec
	Containers []Container
}

// Translation is what a pod's limits mean.
type Translation struct {
	Claims []Claim
	// Containers are those whose limits are replaced, also by nothing.
	Containers []Container
	// Warnings say what is done otherwise than the pod says.
	Warnings []string
}

// Translate reads the limits of a pod that [Asked] for something. class is the
// DeviceClass of whatever it asks for; cards are the memory sizes of the cards
// that there are, in bytes, of which a percentage is taken.
//
// An init container that ends before the others start uses the claim of one
// that starts later, where that is enough for it, as HAMi and the scheduler do.
// Errors name the container and what to write instead.
func Translate(spec *corev1.PodSpec, annotations map[string]string, class string, cards []int64) (*Translation, error) {
	choose, err := selectors(annotations)
	if err != nil {
		return nil, err
	}
	t := &Translation{}
	for _, key := range idle {
		if _, ok := annotations[key]; ok {
			t.Warnings = append(t.Warnings, fmt.Sprintf("annotation %s has no meaning here", key))
		}
	}
	short := map[Container]need{}
	var order []Container
	var needs []need
	for _, list := range []struct {
		init bool
		of   []corev1.Container
	}{{true, spec.InitContainers}, {false, spec.Containers}} {
		for i := range list.of {
			c, at := &list.of[i], Container{list.init, i}
			if !asks(c) {
				continue
			}
			n, warnings, err := read(c)
			if err != nil {
				return nil, fmt.Errorf("in container %s %w", c.Name, err)
			}
			for _, w := range warnings {
				t.Warnings = append(t.Warnings, "in container "+c.Name+" "+w)
			}
			t.Containers = append(t.Containers, at)
			switch {
			case n == nil:
			case list.init && (c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways):
				short[at] = *n
				order = append(order, at)
			default:
				if err := t.add(spec, at, *n, class, choose, cards); err != nil {
					return nil, fmt.Errorf("in container %s %w", c.Name, err)
				}
				needs = append(needs, *n)
			}
		}
	}
	// The dearest of the short-lived first: the others use its claim.
	slices.SortStableFunc(order, func(a, b Container) int {
		switch ab, ba := short[a].covers(short[b]), short[b].covers(short[a]); {
		case ab && !ba:
			return -1
		case ba && !ab:
			return 1
		}
		return 0
	})
	for _, at := range order {
		n := short[at]
		i := t.reusable(at, n, needs, short)
		if i >= 0 {
			t.Claims[i].Containers = append(t.Claims[i].Containers, at)
			continue
		}
		if err := t.add(spec, at, n, class, choose, cards); err != nil {
			return nil, fmt.Errorf("in container %s %w", spec.InitContainers[at.Index].Name, err)
		}
		needs = append(needs, n)
	}
	return t, nil
}

// reusable finds the claim that serves a short-lived container too, -1 if there
// is none. A sidecar that started before it holds its own already.
func (t *Translation) reusable(at Container, n need, needs []need, short map[Container]need) int {
	for i, of := range needs {
		first := t.Claims[i].Containers[0]
		_, ends := short[first]
		beside := first.Init && !ends && first.Index < at.Index
		if !beside && of.covers(n) {
			return i
		}
	}
	return -1
}

func (t *Translation) add(spec *corev1.PodSpec, at Container, n need, class string, choose []resourceapi.DeviceSelector, cards []int64) error {
	r, err := n.request(class, choose, cards)
	if err != nil {
		return err
	}
	t.Claims = append(t.Claims, Claim{
		Name:       t.freeName(spec),
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{*r}}},
		Containers: []Container{at},
	})
	return nil
}

// freeName is a name that no claim of the pod has.
func (t *Translation) freeName(spec *corev1.PodSpec) string {
	for i := len(t.Claims); ; i++ {
		name := fmt.Sprintf("gpu-%d", i)
		taken := slices.ContainsFunc(spec.ResourceClaims, func(c corev1.PodResourceClaim) bool { return c.Name == name }) ||
			slices.ContainsFunc(t.Claims, func(c Claim) bool { return c.Name == name })
		if !taken {
			return name
		}
	}
}

const requestName = "gpu"

// request is the need as a claim says it. A percentage of memory is an
// alternative for each size of card, the smallest first.
func (n need) request(class string, choose []resourceapi.DeviceSelector, cards []int64) (*resourceapi.DeviceRequest, error) {
	capacity := func(memory int64) *resourceapi.CapacityRequirements {
		list := map[resourceapi.QualifiedName]resource.Quantity{}
		if memory > 0 {
			list[pricing.CapacityMemory] = *resource.NewQuantity(memory, resource.BinarySI)
		}
		if n.cores >= 0 {
			list[pricing.CapacityCores] = *resource.NewQuantity(n.cores, resource.DecimalSI)
		}
		if len(list) == 0 {
			return nil
		}
		return &resourceapi.CapacityRequirements{Requests: list}
	}
	exactly := func(memory int64) *resourceapi.DeviceRequest {
		return &resourceapi.DeviceRequest{Name: requestName, Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: n.count,
			Selectors: choose, Capacity: capacity(memory),
		}}
	}
	if n.percent == 0 {
		return exactly(n.memory), nil
	}
	sizes := slices.Compact(slices.Sorted(slices.Values(cards)))
	part := func(size int64) int64 { return size / mi * n.percent / 100 * mi }
	switch {
	case len(sizes) == 0:
		return nil, fmt.Errorf("%s is %d, and no card is there yet of which it could be a part; try again when there is one, or name the memory by %s", MemoryPercent, n.percent, MemoryMi)
	case len(sizes) == 1:
		return exactly(max(part(sizes[0]), mi)), nil
	case len(sizes) > resourceapi.FirstAvailableDeviceRequestMaxSize:
		return nil, fmt.Errorf("%s is %d, and there are cards of %d sizes, of which a claim can name %d; name the memory by %s", MemoryPercent, n.percent, len(sizes), resourceapi.FirstAvailableDeviceRequestMaxSize, MemoryMi)
	}
	r := &resourceapi.DeviceRequest{Name: requestName}
	for _, size := range sizes {
		of := fmt.Sprintf(`device.capacity["%s"].%s.compareTo(quantity("%d")) == 0`, pricing.DriverName, pricing.CapacityMemory, size)
		r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{
			Name: fmt.Sprintf("of-%dmi", size/mi), DeviceClassName: class,
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: n.count,
			Selectors: append(slices.Clone(choose), resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: of}}),
			Capacity:  capacity(max(part(size), mi)),
		})
	}
	return r, nil
}

// TemplateName is the name of the ResourceClaimTemplate for a claim: the same
// for all that ask for the same.
func TemplateName(spec *resourceapi.ResourceClaimSpec) string {
	// No field of the type can fail.
	text, _ := json.Marshal(spec)
	sum := sha256.Sum256(text)
	return "gpu-" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:10]))
}

// Without is the pod as it is once its limits are replaced: what its containers
// ask of nodes. The claims are not put in.
func (t *Translation) Without(spec *corev1.PodSpec) *corev1.PodSpec {
	spec = spec.DeepCopy()
	for _, at := range t.Containers {
		c := at.In(spec)
		for _, r := range known {
			delete(c.Resources.Limits, r)
			delete(c.Resources.Requests, r)
		}
	}
	return spec
}

// In is the container in a pod's spec.
func (c Container) In(spec *corev1.PodSpec) *corev1.Container {
	if c.Init {
		return &spec.InitContainers[c.Index]
	}
	return &spec.Containers[c.Index]
}

// Limits are the limits and requests of a container that are replaced, in order.
func Limits(of corev1.ResourceList) []corev1.ResourceName {
	var all []corev1.ResourceName
	for _, r := range known {
		if _, ok := of[r]; ok {
			all = append(all, r)
		}
	}
	return all
}
