package testbed

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DeviceClass is the class whose devices are cards and parts of cards.
const DeviceClass = "gpu.sluice.dev"

// Capacity is what a claim asks of a card; an empty field is left out of the claim.
type Capacity struct{ Memory, Cores string }

func (c Capacity) requirements() *resourcev1.CapacityRequirements {
	requests := map[resourcev1.QualifiedName]resource.Quantity{}
	if c.Memory != "" {
		requests["memory"] = resource.MustParse(c.Memory)
	}
	if c.Cores != "" {
		requests["cores"] = resource.MustParse(c.Cores)
	}
	if len(requests) == 0 {
		return nil
	}
	return &resourcev1.CapacityRequirements{Requests: requests}
}

// ClaimSpec asks for one device of the class DeviceClass for every capacity in the list; the
// requests are named gpu-0, gpu-1 and so on.
func ClaimSpec(capacities ...Capacity) resourcev1.ResourceClaimSpec {
	var spec resourcev1.ResourceClaimSpec
	for i, capacity := range capacities {
		spec.Devices.Requests = append(spec.Devices.Requests, resourcev1.DeviceRequest{
			Name: "gpu-" + string(rune('0'+i)),
			Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: DeviceClass,
				Capacity:        capacity.requirements(),
			},
		})
	}
	return spec
}

// Template is a ResourceClaimTemplate for ClaimSpec(capacities...).
func Template(name string, capacities ...Capacity) *resourcev1.ResourceClaimTemplate {
	return &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourcev1.ResourceClaimTemplateSpec{Spec: ClaimSpec(capacities...)},
	}
}

// Claim is a ResourceClaim for ClaimSpec(capacities...), to be shared by pods.
func Claim(name string, capacities ...Capacity) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: ClaimSpec(capacities...)}
}

// PodOption changes a pod that Pod makes.
type PodOption func(*corev1.Pod)

// Pod is a pod with one container "main" that runs cudaprobe with args, tolerates the GPU taint
// and is never restarted.
func Pod(name string, args []string, options ...PodOption) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: new(int64(1)),
			Tolerations:                   []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "main", Image: ProbeImage, ImagePullPolicy: corev1.PullNever, Args: args,
			}},
		},
	}
	for _, option := range options {
		option(pod)
	}
	return pod
}

// OnNode lets the scheduler place the pod on that node only.
func OnNode(node string) PodOption {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": node} }
}

// WithTemplate gives the pod a claim made from the template, and all containers the claim.
func WithTemplate(template string) PodOption {
	return withClaim(corev1.PodResourceClaim{Name: template, ResourceClaimTemplateName: &template})
}

// WithClaim gives the pod the named claim, and all containers too.
func WithClaim(claim string) PodOption {
	return withClaim(corev1.PodResourceClaim{Name: claim, ResourceClaimName: &claim})
}

func withClaim(claim corev1.PodResourceClaim) PodOption {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, claim)
		for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range containers {
				containers[i].Resources.Claims = append(containers[i].Resources.Claims, corev1.ResourceClaim{Name: claim.Name})
			}
		}
	}
}

// WithLimit sets a limit of the first container, such as nvidia.com/gpu: 1.
func WithLimit(name, quantity string) PodOption {
	return func(p *corev1.Pod) {
		limits := &p.Spec.Containers[0].Resources.Limits
		if *limits == nil {
			*limits = corev1.ResourceList{}
		}
		(*limits)[corev1.ResourceName(name)] = resource.MustParse(quantity)
	}
}

// WithLabel sets a label of the pod.
func WithLabel(key, value string) PodOption {
	return func(p *corev1.Pod) {
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[key] = value
	}
}

// WithContainer adds a container that runs cudaprobe with args; give it before the claims.
func WithContainer(name string, args ...string) PodOption {
	return func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: name, Image: ProbeImage, ImagePullPolicy: corev1.PullNever, Args: args,
		})
	}
}
