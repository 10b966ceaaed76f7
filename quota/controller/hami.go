package controller

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/hami"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

// stockClass is the DeviceClass of what HAMi-style limits ask for.
const stockClass = pricing.DriverName

// errUntranslated says why a pod with HAMi-style limits cannot run.
var errUntranslated = errors.New("its limits name GPU memory or time, which become a claim when a pod is made, and no webhook ran when this one was: delete it and make it again")

// translated is a pod template of a workload as its pods will be: its spec
// without HAMi-style limits, and the claims that they become. Templates without
// such limits are returned as they are.
func (c *core) translated(wl *kueue.Workload, template *corev1.PodTemplateSpec) (*corev1.PodSpec, []resourceapi.ResourceClaimSpec, error) {
	if !hami.Asked(&template.Spec) {
		return &template.Spec, nil, nil
	}
	if owner := metav1.GetControllerOf(wl); owner != nil && owner.Kind == "Pod" {
		return &template.Spec, nil, errUntranslated
	}
	t, err := hami.Translate(&template.Spec, template.Annotations, stockClass, c.cards())
	if err != nil {
		return &template.Spec, nil, err
	}
	var claims []resourceapi.ResourceClaimSpec
	for i := range t.Claims {
		claims = append(claims, t.Claims[i].Spec)
	}
	return t.Without(&template.Spec), claims, nil
}

// cards are the memory sizes of the cards that can be shared, in bytes.
func (c *core) cards() []int64 {
	if c.sizes == nil {
		c.sizes = []int64{}
		seen := map[int64]bool{}
		for _, d := range c.devicesOf() {
			memory, ok := d.Capacity[pricing.CapacityMemory]
			if n := memory.Value.Value(); ok && d.Shareable() && !seen[n] {
				seen[n] = true
				c.sizes = append(c.sizes, n)
			}
		}
	}
	return c.sizes
}

// asked is what the claims of one pod of a template ask for: those of its claim
// templates, of its HAMi-style limits and of its extended resources.
type asked struct {
	// spec is the pod without what became claims.
	spec *corev1.PodSpec
	// made are the claims that are made for the pod alone.
	made []resourceapi.ResourceClaimSpec
	// extended is the claim that the scheduler makes, of the resources named.
	extended *resourceapi.DeviceClaim
	names    []corev1.ResourceName
}

// devices lists all that is asked for.
func (a *asked) devices() []resourceapi.DeviceClaim {
	var all []resourceapi.DeviceClaim
	for i := range a.made {
		all = append(all, a.made[i].Devices)
	}
	if a.extended != nil {
		all = append(all, *a.extended)
	}
	return all
}

// asks reads a pod template. The error says what is missing or wrong in it.
func (c *core) asks(wl *kueue.Workload, template *corev1.PodTemplateSpec) (*asked, error) {
	spec, made, err := c.translated(wl, template)
	a := &asked{spec: spec, made: made}
	if err != nil {
		return a, err
	}
	for _, ref := range spec.ResourceClaims {
		if ref.ResourceClaimTemplateName == nil {
			continue
		}
		t := c.templates[types.NamespacedName{Namespace: wl.Namespace, Name: *ref.ResourceClaimTemplateName}]
		if t == nil {
			return a, fmt.Errorf("ResourceClaimTemplate %q does not exist in namespace %s", *ref.ResourceClaimTemplateName, wl.Namespace)
		}
		a.made = append(a.made, t.Spec.Spec)
	}
	a.extended, a.names = pricing.ExtendedResources(spec, c.fit.Classes())
	return a, nil
}
