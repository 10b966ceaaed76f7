package beside

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Kueue refuses Workloads whose pods have claims, and counts what containers
// request. So where Kueue admits, a Workload is stored sealed: claims and limits
// that stand for devices are taken out of its pod templates, and what they cost
// is put in as a request of the first container. What was taken out is kept in an
// annotation, by which the Workload is opened again when it is read. Kueue sees
// the sealed form alone, everything here the open one.

// SealAnnotation holds what was taken out of a sealed Workload's pod templates,
// and what was put in.
const SealAnnotation = "quota.sluice.dev/sealed-pod-sets"

// Charge is what one pod of a set costs.
type Charge struct {
	// Amounts are the priced resources that the pod's ClusterQueue counts.
	Amounts corev1.ResourceList `json:"amounts,omitempty"`
	// Instead are the names of requests and limits that stand for devices and are
	// in the price.
	Instead []corev1.ResourceName `json:"instead,omitempty"`
}

// Equal says whether two charges are the same.
func (c Charge) Equal(d Charge) bool {
	return slices.Equal(c.Instead, d.Instead) && maps.EqualFunc(c.Amounts, d.Amounts, func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
}

// taken is the charge of a pod set, and what its template lost.
type taken struct {
	Charge
	// Sealed says that the rest tells of a template.
	Sealed bool                      `json:"sealed,omitempty"`
	Claims []corev1.PodResourceClaim `json:"claims,omitempty"`
	// Init and Main are the resources of the containers, in their order.
	Init []corev1.ResourceRequirements `json:"init,omitempty"`
	Main []corev1.ResourceRequirements `json:"main,omitempty"`
}

func read(o client.Object) (map[string]taken, error) {
	text := o.GetAnnotations()[SealAnnotation]
	if text == "" {
		return nil, nil
	}
	var all map[string]taken
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", SealAnnotation, err)
	}
	return all, nil
}

func write(wl *kueue.Workload, all map[string]taken) {
	b, err := json.Marshal(all)
	if err != nil {
		// Nothing in it can fail.
		panic(err)
	}
	wl.Annotations = maps.Clone(wl.Annotations)
	if wl.Annotations == nil {
		wl.Annotations = map[string]string{}
	}
	wl.Annotations[SealAnnotation] = string(b)
}

// Charges are those of a Workload, by pod set; nil if it has none.
func Charges(wl *kueue.Workload) map[string]Charge {
	all, err := read(wl)
	if err != nil || all == nil {
		return nil
	}
	charges := map[string]Charge{}
	for set, t := range all {
		charges[set] = t.Charge
	}
	return charges
}

// SetCharges notes what pods cost on an open Workload; it will be sealed by that
// when it is written.
func SetCharges(wl *kueue.Workload, charges map[string]Charge) {
	all := map[string]taken{}
	for set, c := range charges {
		all[set] = taken{Charge: c}
	}
	write(wl, all)
}

// Seal seals an open Workload that has charges.
func Seal(wl *kueue.Workload) error {
	all, err := read(wl)
	if err != nil || all == nil {
		return err
	}
	for i := range wl.Spec.PodSets {
		set := &wl.Spec.PodSets[i]
		t, charged := all[string(set.Name)]
		if !charged {
			continue
		}
		spec := &set.Template.Spec
		t.Sealed, t.Claims = true, spec.ResourceClaims
		t.Init, t.Main = resourcesOf(spec.InitContainers), resourcesOf(spec.Containers)
		all[string(set.Name)] = t
		spec.ResourceClaims = nil
		for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
			for j := range list {
				r := &list[j].Resources
				r.Claims, r.Requests, r.Limits = nil, without(r.Requests, &t.Charge), without(r.Limits, &t.Charge)
			}
		}
		if len(spec.Containers) > 0 && len(t.Amounts) > 0 {
			first := &spec.Containers[0].Resources
			if first.Requests == nil {
				first.Requests = corev1.ResourceList{}
			}
			maps.Copy(first.Requests, t.Amounts)
		}
	}
	write(wl, all)
	return nil
}

// Open opens a Workload that may be sealed. The annotation stays; opening twice
// changes nothing.
func Open(wl *kueue.Workload) error {
	all, err := read(wl)
	if err != nil {
		return err
	}
	for i := range wl.Spec.PodSets {
		set := &wl.Spec.PodSets[i]
		t := all[string(set.Name)]
		spec := &set.Template.Spec
		if !t.Sealed {
			continue
		}
		if len(t.Init) != len(spec.InitContainers) || len(t.Main) != len(spec.Containers) {
			return fmt.Errorf("annotation %s tells of %d and %d containers in pod set %q, which has %d and %d", SealAnnotation, len(t.Init), len(t.Main), set.Name, len(spec.InitContainers), len(spec.Containers))
		}
		spec.ResourceClaims = t.Claims
		for j := range spec.InitContainers {
			spec.InitContainers[j].Resources = t.Init[j]
		}
		for j := range spec.Containers {
			spec.Containers[j].Resources = t.Main[j]
		}
	}
	return nil
}

func resourcesOf(list []corev1.Container) []corev1.ResourceRequirements {
	var all []corev1.ResourceRequirements
	for i := range list {
		all = append(all, *list[i].Resources.DeepCopy())
	}
	return all
}

func without(list corev1.ResourceList, c *Charge) corev1.ResourceList {
	list = maps.Clone(list)
	maps.DeleteFunc(list, func(name corev1.ResourceName, _ resource.Quantity) bool {
		_, priced := c.Amounts[name]
		return priced || slices.Contains(c.Instead, name)
	})
	return list
}
