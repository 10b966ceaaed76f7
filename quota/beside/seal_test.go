package beside_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/beside"
)

func TestKueueSeesThePriceInsteadOfClaimsAndCards(t *testing.T) {
	wl := &kueue.Workload{Spec: kueue.WorkloadSpec{PodSets: []kueue.PodSet{{Name: "main", Count: 2}}}}
	cpu := corev1.ResourceList{"cpu": resource.MustParse("2")}
	wl.Spec.PodSets[0].Template.Spec = corev1.PodSpec{
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("half")}},
		InitContainers: []corev1.Container{{Name: "i", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}},
		Containers: []corev1.Container{
			{Name: "a", Resources: corev1.ResourceRequirements{Requests: cpu, Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1"), "nvidia.com/gpumem": resource.MustParse("3000")}}},
			{Name: "b", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}},
		},
	}
	price := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2"), "nvidia.com/gpu-memory": resource.MustParse("60Gi")}
	beside.SetCharges(wl, map[string]beside.Charge{"main": {Amounts: price, Instead: []corev1.ResourceName{"nvidia.com/gpumem"}}})
	if err := beside.Seal(wl); err != nil {
		t.Fatal(err)
	}
	spec := &wl.Spec.PodSets[0].Template.Spec
	want := corev1.ResourceList{"cpu": resource.MustParse("2"), "nvidia.com/gpu": resource.MustParse("2"), "nvidia.com/gpu-memory": resource.MustParse("60Gi")}
	if got := spec.Containers[0].Resources.Requests; !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("the first container requests %v, want %v", got, want)
	}
	for _, c := range append(spec.Containers, spec.InitContainers...) {
		if len(c.Resources.Limits)+len(c.Resources.Claims) > 0 {
			t.Errorf("container %s has %v", c.Name, c.Resources)
		}
	}
	if len(spec.ResourceClaims) > 0 {
		t.Errorf("claims %v", spec.ResourceClaims)
	}
	if got := beside.Charges(wl)["main"]; !got.Equal(beside.Charge{Amounts: price, Instead: []corev1.ResourceName{"nvidia.com/gpumem"}}) {
		t.Errorf("it is charged %v", got)
	}
}

func TestASealedWorkloadOpensToWhatItWas(t *testing.T) {
	names := rapid.SampledFrom([]corev1.ResourceName{"cpu", "memory", "nvidia.com/gpu", "nvidia.com/gpumem", "example.com/x"})
	list := rapid.Custom(func(t *rapid.T) corev1.ResourceList {
		var l corev1.ResourceList
		for _, name := range rapid.SliceOfN(names, 0, 3).Draw(t, "names") {
			if l == nil {
				l = corev1.ResourceList{}
			}
			l[name] = *resource.NewQuantity(rapid.Int64Range(0, 9).Draw(t, "amount"), resource.DecimalSI)
		}
		return l
	})
	container := rapid.Custom(func(t *rapid.T) corev1.Container {
		c := corev1.Container{Name: rapid.StringMatching("[a-z]{3}").Draw(t, "container")}
		c.Resources.Requests, c.Resources.Limits = list.Draw(t, "requests"), list.Draw(t, "limits")
		if rapid.Bool().Draw(t, "claims") {
			c.Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
		}
		return c
	})
	rapid.Check(t, func(t *rapid.T) {
		wl, charges := &kueue.Workload{}, map[string]beside.Charge{}
		for _, name := range []string{"main", "workers"}[:rapid.IntRange(1, 2).Draw(t, "sets")] {
			set := kueue.PodSet{Name: kueue.PodSetReference(name)}
			set.Template.Spec.InitContainers = rapid.SliceOfN(container, 0, 2).Draw(t, "init")
			set.Template.Spec.Containers = rapid.SliceOfN(container, 1, 3).Draw(t, "containers")
			if rapid.Bool().Draw(t, "claim") {
				set.Template.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("c")}}
			}
			wl.Spec.PodSets = append(wl.Spec.PodSets, set)
			if rapid.Bool().Draw(t, "charged") {
				charges[name] = beside.Charge{Amounts: list.Draw(t, "price"), Instead: rapid.SliceOfN(names, 0, 2).Draw(t, "instead")}
			}
		}
		was := wl.DeepCopy()
		beside.SetCharges(wl, charges)
		// Twice: what is read is written again.
		for range 2 {
			for _, f := range []func(*kueue.Workload) error{beside.Seal, beside.Open, beside.Open} {
				if err := f(wl); err != nil {
					t.Fatal(err)
				}
			}
			if !equality.Semantic.DeepEqual(wl.Spec, was.Spec) {
				t.Fatalf("it opens to\n%+v\nand was\n%+v", wl.Spec, was.Spec)
			}
		}
		for set, want := range charges {
			if got := beside.Charges(wl)[set]; !got.Equal(want) {
				t.Fatalf("set %s is charged %v, want %v", set, got, want)
			}
		}
	})
}
