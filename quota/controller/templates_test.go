package controller

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/sluice-gpu/sluice/quota/config"
	"github.com/sluice-gpu/sluice/quota/hami"
)

func TestClaimTemplatesOfLimitsAreKeptWhileTheyAreUsed(t *testing.T) {
	cfg, err := config.Decode(nil)
	if err != nil {
		t.Fatal(err)
	}
	core := newCore(cfg)
	now := time.Now()
	core.now = func() time.Time { return now }
	api := fake.NewClientBuilder().WithScheme(Scheme()).Build()
	x := &templates{core: core, client: api, live: api}

	spec := func(count int64) *resourceapi.ResourceClaimSpec {
		return &resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: stockClass, Count: count}}}}}
	}
	ensure := func(count int64) string {
		t.Helper()
		name, err := x.ensure(context.Background(), "a", spec(count), false)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	there := func() map[string]bool {
		t.Helper()
		var all resourceapi.ResourceClaimTemplateList
		if err := api.List(context.Background(), &all); err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for i := range all.Items {
			names[all.Items[i].Name] = true
			core.saw(&all.Items[i])
		}
		return names
	}
	sweep := func() {
		t.Helper()
		there()
		if err := x.sweep(context.Background()); err != nil {
			t.Fatal(err)
		}
	}

	named, again, idle := ensure(1), ensure(2), ensure(3)
	mine := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "mine", CreationTimestamp: metav1.NewTime(now)}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}, Spec: corev1.PodSpec{
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu-0", ResourceClaimTemplateName: ptr.To(named)}}}}
	for _, o := range []client.Object{mine, pod} {
		if err := api.Create(context.Background(), o); err != nil {
			t.Fatal(err)
		}
	}
	sweep()
	if len(there()) != 4 {
		t.Errorf("new ones are deleted: %v are left", there())
	}
	// A pod is being made with one of them just before the sweep.
	now = now.Add(keepUnused + time.Minute)
	if name := ensure(2); name != again {
		t.Errorf("the template of the same content is %s, then %s", again, name)
	}
	sweep()
	left := there()
	for name, want := range map[string]bool{named: true, again: true, idle: false, "mine": true} {
		if left[name] != want {
			t.Errorf("%s is left: %v, want %v", name, left[name], want)
		}
	}
}

func TestANameTakenByOtherContentIsPassedOver(t *testing.T) {
	cfg, err := config.Decode(nil)
	if err != nil {
		t.Fatal(err)
	}
	spec := &resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: stockClass, Count: 1}}}}}
	forged := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: hami.TemplateName(spec)}}
	labelled := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: hami.TemplateName(spec) + "-1"}}
	labelled.Spec.Spec, labelled.Spec.Labels = *spec, map[string]string{QueueLabel: "another"}
	api := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(forged, labelled).Build()
	x := &templates{core: newCore(cfg), client: api, live: api}
	name, err := x.ensure(context.Background(), "a", spec, false)
	if err != nil || name != hami.TemplateName(spec)+"-2" {
		t.Errorf("%q, %v", name, err)
	}
}
