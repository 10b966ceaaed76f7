package controller

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Where two flavors of a pod set one label, the pod gets the one with which fit has
// looked for its place.
func TestOfALabelThatTwoFlavorsSetThePodAlwaysGetsTheSame(t *testing.T) {
	c := &core{flavors: map[string]*kueue.ResourceFlavor{}}
	given := &kueue.PodSetAssignment{Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{}}
	for i := range 5 {
		name := fmt.Sprint("f", i)
		c.flavors[name] = &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"pool": name}}}
		given.Flavors[corev1.ResourceName(name)] = kueue.ResourceFlavorReference(name)
	}
	for range 50 {
		labels, _, err := c.flavorPlacement(given)
		if err != nil || labels["pool"] != "f4" {
			t.Fatalf("selected are %v, %v", labels, err)
		}
	}
}
