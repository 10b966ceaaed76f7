package hami

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

// container is a container with limits, given as "name=quantity".
func container(limits ...string) corev1.Container {
	c := corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{}}}
	for _, l := range limits {
		name, q, _ := strings.Cut(l, "=")
		c.Resources.Limits[corev1.ResourceName(name)] = resource.MustParse(q)
	}
	return c
}

func sidecar(c corev1.Container) corev1.Container {
	c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	return c
}

func pod(containers ...corev1.Container) *corev1.PodSpec {
	return &corev1.PodSpec{Containers: containers}
}

// describe is a translation in short: one line a claim.
func describe(t *Translation) []string {
	var lines []string
	for _, c := range t.Claims {
		var users []string
		for _, u := range c.Containers {
			kind := "c"
			if u.Init {
				kind = "i"
			}
			users = append(users, fmt.Sprint(kind, u.Index))
		}
		r := c.Spec.Devices.Requests[0]
		var asks []string
		one := func(count int64, capacity *resourceapi.CapacityRequirements) {
			text := fmt.Sprint(count, " x")
			if capacity != nil {
				for _, k := range []resourceapi.QualifiedName{"memory", "cores"} {
					if q, ok := capacity.Requests[k]; ok {
						text += " " + q.String()
					}
				}
			}
			asks = append(asks, text)
		}
		if r.Exactly != nil {
			one(r.Exactly.Count, r.Exactly.Capacity)
		}
		for _, s := range r.FirstAvailable {
			one(s.Count, s.Capacity)
		}
		lines = append(lines, fmt.Sprintf("%s %s: %s", c.Name, strings.Join(users, "+"), strings.Join(asks, " or ")))
	}
	return lines
}

func TestLimitsBecomeClaims(t *testing.T) {
	const g80, g40 = int64(80) << 30, int64(40) << 30
	for _, tc := range []struct {
		name  string
		spec  *corev1.PodSpec
		cards []int64
		want  []string
	}{
		{"the article's pod", pod(container("nvidia.com/gpu=1", "nvidia.com/gpu-memory=20Gi", "nvidia.com/gpu-core-percent=50")), nil, []string{"gpu-0 c0: 1 x 20Gi 50"}},
		{"a bare number of gpumem is MiB of each", pod(container("nvidia.com/gpu=2", "nvidia.com/gpumem=3000", "nvidia.com/gpucores=30")), nil, []string{"gpu-0 c0: 2 x 3000Mi 30"}},
		{"bytes without a unit are bytes", pod(container("nvidia.com/gpu-memory=1073741824")), nil, []string{"gpu-0 c0: 1 x 1Gi"}},
		{"no count is one", pod(container("nvidia.com/gpumem=3000")), nil, []string{"gpu-0 c0: 1 x 3000Mi"}},
		{"cores alone take the memory of whoever names none", pod(container("nvidia.com/gpu=1", "nvidia.com/gpucores=30")), nil, []string{"gpu-0 c0: 1 x 30"}},
		{"percent of the one size there is", pod(container("nvidia.com/gpumem-percentage=50")), []int64{g80, g80}, []string{"gpu-0 c0: 1 x 40Gi"}},
		{"percent of whichever card it gets", pod(container("nvidia.com/gpu=2", "nvidia.com/gpumem-percentage=25", "nvidia.com/gpucores=10")), []int64{g80, g40}, []string{"gpu-0 c0: 2 x 10Gi 10 or 2 x 20Gi 10"}},
		{"all of it names nothing", pod(container("nvidia.com/gpumem-percentage=100")), nil, []string{"gpu-0 c0: 1 x"}},
		{"MiB go before percent", pod(container("nvidia.com/gpumem=3000", "nvidia.com/gpumem-percentage=50")), nil, []string{"gpu-0 c0: 1 x 3000Mi"}},
		{"more than all cores is all", pod(container("nvidia.com/gpumem=3000", "nvidia.com/gpucores=400")), nil, []string{"gpu-0 c0: 1 x 3000Mi 100"}},
		{"a claim for each container", pod(container("nvidia.com/gpumem=1000"), container("nvidia.com/gpu=1"), container("nvidia.com/gpumem=1000")), nil, []string{"gpu-0 c0: 1 x 1000Mi", "gpu-1 c2: 1 x 1000Mi"}},
		{"no GPU at all", pod(container("nvidia.com/gpu=0", "nvidia.com/gpumem=0")), nil, nil},
		{"an init container uses what comes later", &corev1.PodSpec{
			InitContainers: []corev1.Container{container("nvidia.com/gpumem=1000"), container("nvidia.com/gpumem=9000")},
			Containers:     []corev1.Container{container("nvidia.com/gpumem=3000")},
		}, nil, []string{"gpu-0 c0+i0: 1 x 3000Mi", "gpu-1 i1: 1 x 9000Mi"}},
		{"init containers follow each other", &corev1.PodSpec{
			InitContainers: []corev1.Container{container("nvidia.com/gpumem=1000"), container("nvidia.com/gpumem=9000")},
			Containers:     []corev1.Container{container("cpu=1")},
		}, nil, []string{"gpu-0 i1+i0: 1 x 9000Mi"}},
		{"a sidecar keeps its own", &corev1.PodSpec{
			InitContainers: []corev1.Container{sidecar(container("nvidia.com/gpumem=9000")), container("nvidia.com/gpumem=1000")},
			Containers:     []corev1.Container{container("cpu=1")},
		}, nil, []string{"gpu-0 i0: 1 x 9000Mi", "gpu-1 i1: 1 x 1000Mi"}},
		{"names of the pod's own claims are kept", &corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu-0"}},
			Containers:     []corev1.Container{container("nvidia.com/gpumem=1000")},
		}, nil, []string{"gpu-1 c0: 1 x 1000Mi"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Translate(tc.spec, nil, "gpu.sluice.dev", tc.cards)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, describe(got)); diff != "" {
				t.Error(diff)
			}
			if Asked(got.Without(tc.spec)) {
				t.Error("limits are left")
			}
		})
	}
}

func TestMistakesInLimitsAreRefusedWithWhatToWrite(t *testing.T) {
	for _, tc := range []struct {
		name string
		c    corev1.Container
		want string
	}{
		{"bytes that were meant as MiB", container("nvidia.com/gpu-memory=3000"), "write the unit, as in 3000Mi"},
		{"MiB that were meant as bytes", container("nvidia.com/gpumem=20Gi"), "write 20Gi for nvidia.com/gpu-memory"},
		{"memory said twice", container("nvidia.com/gpumem=3000", "nvidia.com/gpu-memory=3000Mi"), "say once how much memory"},
		{"time said twice", container("nvidia.com/gpucores=30", "nvidia.com/gpu-core-percent=50"), "say once how much time"},
		{"no GPU but memory", container("nvidia.com/gpu=0", "nvidia.com/gpumem=1"), "nvidia.com/gpu is 0"},
		{"more than a card's time", container("nvidia.com/gpu-core-percent=150"), "use 0 to 100"},
		{"more than a card's memory", container("nvidia.com/gpumem-percentage=150"), "use 1 to 100"},
		{"a percentage of nothing", container("nvidia.com/gpumem-percentage=50"), "no card is there yet"},
		{"a fraction", container("nvidia.com/gpumem=1500m"), "a whole number"},
		{"less than nothing", container("nvidia.com/gpumem=-1"), "not negative"},
		{"more than can be counted", container("nvidia.com/gpumem=100E"), "whole number"},
		{"more GPUs than a claim holds", container("nvidia.com/gpu=33", "nvidia.com/gpumem=1000"), "32 is the most"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Translate(pod(tc.c), nil, "gpu.sluice.dev", nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "container c") {
				t.Fatalf("%+v, error %v, want %q", got, err, tc.want)
			}
			// It becomes a part of what others say of the pod.
			if strings.Contains(err.Error(), ": ") {
				t.Errorf("%q is no plain sentence", err)
			}
		})
	}
}

func TestOnlyPodsThatSayMoreThanHowManyAreTranslated(t *testing.T) {
	if Asked(pod(container("nvidia.com/gpu=2", "cpu=1"))) {
		t.Error("a pod with a count alone is translated")
	}
	if !Asked(&corev1.PodSpec{InitContainers: []corev1.Container{container("nvidia.com/gpucores=1")}}) {
		t.Error("an init container is not looked at")
	}
}

// TestAnnotationsChooseCards evaluates the selectors as the scheduler does.
func TestAnnotationsChooseCards(t *testing.T) {
	cards := map[string]string{"NVIDIA A100-SXM4-80GB": "GPU-a", "NVIDIA A10": "GPU-b", "Tesla T4": "GPU-c"}
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		want        []string
	}{
		{"none", nil, []string{"GPU-a", "GPU-b", "GPU-c"}},
		{"part of a name, in any case", map[string]string{UseType: "a10"}, []string{"GPU-a", "GPU-b"}},
		{"one of several", map[string]string{UseType: "A100, t4"}, []string{"GPU-a", "GPU-c"}},
		{"all but", map[string]string{NoUseType: "a100,Tesla"}, []string{"GPU-b"}},
		{"both", map[string]string{UseType: "A10", NoUseType: "A100"}, []string{"GPU-b"}},
		{"by identity", map[string]string{UseUUID: "GPU-c,GPU-x"}, []string{"GPU-c"}},
		{"not by part of an identity", map[string]string{UseUUID: "GPU"}, nil},
		{"all but one", map[string]string{NoUseUUID: "GPU-c"}, []string{"GPU-a", "GPU-b"}},
		{"an empty list chooses nothing", map[string]string{UseType: " ,", NoUseUUID: ""}, []string{"GPU-a", "GPU-b", "GPU-c"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr, err := Translate(pod(container("nvidia.com/gpumem=1")), tc.annotations, "gpu.sluice.dev", nil)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for product, uuid := range cards {
				if matches(t, tr.Claims[0].Spec.Devices.Requests[0].Exactly.Selectors, product, uuid, "80Gi") {
					got = append(got, uuid)
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	for _, hostile := range []string{`a") || true || ("`, "a\nb", `a\u0022`} {
		if _, err := Translate(pod(container("nvidia.com/gpumem=1")), map[string]string{UseType: hostile}, "gpu.sluice.dev", nil); err == nil {
			t.Errorf("%q becomes part of an expression", hostile)
		}
	}
}

func matches(t *testing.T, selectors []resourceapi.DeviceSelector, product, uuid, memory string) bool {
	t.Helper()
	for _, s := range selectors {
		compiled := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(s.CEL.Expression, cel.Options{})
		if compiled.Error != nil {
			t.Fatal(compiled.Error)
		}
		if compiled.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
			t.Errorf("%s may cost %d", s.CEL.Expression, compiled.MaxCost)
		}
		ok, _, err := compiled.DeviceMatches(context.Background(), cel.Device{
			Driver:     "gpu.sluice.dev",
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"productName": {StringValue: &product}, "uuid": {StringValue: &uuid}},
			Capacity:   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse(memory)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return false
		}
	}
	return true
}

func TestAPercentageIsOfTheCardThatMatches(t *testing.T) {
	tr, err := Translate(pod(container("nvidia.com/gpumem-percentage=50")), nil, "gpu.sluice.dev", []int64{80 << 30, 40 << 30})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range tr.Claims[0].Spec.Devices.Requests[0].FirstAvailable {
		q := s.Capacity.Requests["memory"]
		half := resource.NewQuantity(2*q.Value(), resource.BinarySI)
		if !matches(t, s.Selectors, "any", "any", half.String()) || matches(t, s.Selectors, "any", "any", "48Gi") {
			t.Errorf("%s is not half of what %s selects", q.String(), s.Name)
		}
	}
}

func TestTheSameRequestHasTheSameTemplate(t *testing.T) {
	name := func(c corev1.Container, annotations map[string]string) string {
		tr, err := Translate(pod(c), annotations, "gpu.sluice.dev", nil)
		if err != nil {
			t.Fatal(err)
		}
		return TemplateName(&tr.Claims[0].Spec)
	}
	plain := name(container("nvidia.com/gpumem=20480"), nil)
	if same := name(container("nvidia.com/gpu=1", "nvidia.com/gpu-memory=20Gi"), nil); same != plain {
		t.Errorf("20480 MiB are %s, 20Gi are %s", plain, same)
	}
	for _, other := range []string{name(container("nvidia.com/gpumem=20481"), nil), name(container("nvidia.com/gpumem=20480"), map[string]string{UseType: "a"})} {
		if other == plain {
			t.Error("another request has the same template")
		}
	}
}

func TestNoLimitsMakeATranslationPanicOrLoseAContainer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string, n int) []corev1.Container {
			var all []corev1.Container
			for i := range n {
				c := container()
				for _, r := range known {
					if rapid.Bool().Draw(t, fmt.Sprint(label, i, r)) {
						c.Resources.Limits[r] = *resource.NewQuantity(rapid.SampledFrom([]int64{-1, 0, 1, 50, 100, 3000, 1 << 31, 1 << 62}).Draw(t, "value"), resource.BinarySI)
					}
				}
				if rapid.Bool().Draw(t, "sidecar") {
					c = sidecar(c)
				}
				all = append(all, c)
			}
			return all
		}
		spec := &corev1.PodSpec{InitContainers: draw("init", rapid.IntRange(0, 3).Draw(t, "inits")), Containers: draw("main", rapid.IntRange(1, 3).Draw(t, "mains"))}
		tr, err := Translate(spec, nil, "gpu.sluice.dev", []int64{80 << 30})
		if err != nil {
			return
		}
		users := 0
		for _, c := range tr.Claims {
			users += len(c.Containers)
		}
		asking := 0
		for _, at := range tr.Containers {
			if n, _, err := read(at.In(spec)); err == nil && n != nil {
				asking++
			}
		}
		if users != asking || Asked(tr.Without(spec)) {
			t.Fatalf("%d containers ask, %d are served, limits left: %v", asking, users, Asked(tr.Without(spec)))
		}
	})
}
