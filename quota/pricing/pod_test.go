package pricing

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestLimitsBecomeTheClaimThatTheSchedulerMakes(t *testing.T) {
	gpu := func(n string) corev1.Container {
		return corev1.Container{Resources: limits("nvidia.com/gpu", n, "cpu", "1")}
	}
	sidecar := gpu("1")
	sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	implicit := corev1.Container{Resources: limits("deviceclass.resource.kubernetes.io/mig.gpu.sluice.dev", "1")}

	for _, tc := range []struct {
		name string
		spec corev1.PodSpec
		want map[string]int64
	}{
		{"no devices", corev1.PodSpec{Containers: []corev1.Container{{Resources: limits("cpu", "1", "example.com/fpga", "1")}}}, nil},
		{"one container", corev1.PodSpec{Containers: []corev1.Container{gpu("2")}}, map[string]int64{"container-0-request-0": 2}},
		{"two containers hold both at once", corev1.PodSpec{Containers: []corev1.Container{gpu("1"), gpu("2")}}, map[string]int64{"container-0-request-0": 1, "container-1-request-0": 2}},
		{"an init container reuses", corev1.PodSpec{InitContainers: []corev1.Container{gpu("1")}, Containers: []corev1.Container{gpu("2")}}, map[string]int64{"container-1-request-0": 2}},
		{"and adds what it needs beyond", corev1.PodSpec{InitContainers: []corev1.Container{gpu("3"), gpu("5")}, Containers: []corev1.Container{gpu("2")}}, map[string]int64{"container-1-request-0": 3, "container-2-request-0": 2}},
		{"a sidecar holds on", corev1.PodSpec{InitContainers: []corev1.Container{sidecar}, Containers: []corev1.Container{gpu("1")}}, map[string]int64{"container-0-request-0": 1, "container-1-request-0": 1}},
		{"a class by its implicit name", corev1.PodSpec{Containers: []corev1.Container{implicit}}, map[string]int64{"container-0-request-0": 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			claim, _ := ExtendedResources(&tc.spec, stockClasses())
			var got map[string]int64
			if claim != nil {
				got = map[string]int64{}
				for _, r := range claim.Requests {
					got[r.Name] += r.Exactly.Count
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
