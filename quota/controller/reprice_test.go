package controller

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// waiting are three Workloads that wait: two name a claim template of the same
// name, in two namespaces, one names none.
func waiting(t *testing.T) *core {
	t.Helper()
	c := loaded(t)
	for i, at := range []types.NamespacedName{{Namespace: "a", Name: "names-it"}, {Namespace: "b", Name: "names-its-own"}, {Namespace: "a", Name: "plain"}} {
		wl := (&api{uid: types.UID(fmt.Sprint(i))}).next(nil)
		wl.Namespace, wl.Name = at.Namespace, at.Name
		if i < 2 {
			wl.Spec.PodSets[0].Template.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("t")}}
		}
		c.saw(wl)
	}
	c.saw(class("gpu.sluice.dev", "1"))
	c.decide()
	c.forgetWork()
	return c
}

// forgetWork makes it visible what is to be looked at from here on.
func (c *core) forgetWork() {
	clear(c.dirty)
	c.room = false
	select {
	case <-c.kick:
	default:
	}
}

func class(name, version string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: version}}
}

func TestAStampOnAClassPricesNothingAgain(t *testing.T) {
	c := waiting(t)
	stamped := class("gpu.sluice.dev", "2")
	stamped.Annotations = map[string]string{nudgeAnnotation: "now"}
	c.saw(stamped)
	if len(c.dirty) > 0 || c.room || len(c.kick) > 0 {
		t.Errorf("to be priced %v, room %v, woken %v", c.dirty, c.room, len(c.kick) > 0)
	}
	changed := class("gpu.sluice.dev", "3")
	changed.Spec.ExtendedResourceName = ptr.To("nvidia.com/gpu")
	c.saw(changed)
	if len(c.dirty) != 3 || !c.room {
		t.Errorf("a class that serves another resource: to be priced %v, room %v", c.dirty, c.room)
	}
}

func TestAClaimTemplatePricesOnlyThoseThatNameIt(t *testing.T) {
	c := waiting(t)
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "t", UID: "t", ResourceVersion: "1"}}
	look := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, id := range slices.Sorted(maps.Keys(c.dirty)) {
			got = append(got, string(id))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v are priced again, want %v", what, got, want)
		}
		c.forgetWork()
	}
	c.saw(template)
	look("made", "a/names-it")
	labelled := template.DeepCopy()
	labelled.Labels = map[string]string{"x": "y"}
	c.saw(labelled)
	look("labelled")
	c.lost(labelled)
	look("removed", "a/names-it")
}
