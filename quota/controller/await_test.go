package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Whoever waits for another pod of its workload is looked at when that ends, and
// not at the next second.
func TestAPodThatWaitsForAnotherIsLookedAtWhenThatGivesWay(t *testing.T) {
	for _, test := range []struct {
		name string
		wait func(t *testing.T, c *core) (giveWay func())
	}{
		{"a pod that ends", func(t *testing.T, c *core) func() {
			r := &podReconciler{sources: &sources{core: c}}
			wl := c.works["team/w"].object
			member := func(name types.UID, gated bool) *corev1.Pod {
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: string(name), UID: name, ResourceVersion: "7"}}
				c.pods[name] = &podFact{name: types.NamespacedName{Namespace: "team", Name: string(name)}, uid: name, workload: "team/w", set: mainSet, owner: "owner", gated: gated, object: p}
				if c.podsOf["team/w"] == nil {
					c.podsOf["team/w"] = map[types.UID]*podFact{}
				}
				c.podsOf["team/w"][name] = c.pods[name]
				return p
			}
			first := member("first", false)
			member("second", false)
			next := member("next", true)
			if _, err := r.placePod(next, wl, wl.Status.Admission, mainSet); err != errWait {
				t.Fatalf("beside two others of two it has %v", err)
			}
			return func() { c.lost(first) }
		}},
		{"a claim that gives its ticket back", func(t *testing.T, c *core) func() {
			wl := c.works["team/w"].object
			c.pods["next"] = &podFact{name: types.NamespacedName{Namespace: "team", Name: "next"}, uid: "next", workload: "team/w"}
			var charged *resourceapi.ResourceClaim
			for _, pod := range []types.UID{"first", "second"} {
				tick, err := c.ticketFor(asks("of-"+pod, pod, 1), wl, wl.Status.Admission, mainSet, "n1")
				if err != nil {
					t.Fatal(err)
				}
				charged = &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "of-" + string(pod), UID: "of-" + pod, ResourceVersion: "900", Annotations: tick.Annotations()}}
				c.saw(charged)
			}
			if _, err := c.ticketFor(asks("of-next", "next", 1), wl, wl.Status.Admission, mainSet, "n1"); err == nil {
				t.Fatal("a third ticket of two")
			}
			free := charged.DeepCopy()
			free.Annotations, free.ResourceVersion = nil, "901"
			return func() { c.saw(free) }
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, _ := equipped(t)
			c.caughtUp = true
			c.now = func() time.Time { return time.Unix(1000, 0) }
			told := 0
			c.tellPod = func(name types.NamespacedName) {
				if name.Name == "next" {
					told++
				}
			}
			giveWay := test.wait(t, c)
			if told > 0 {
				t.Fatal("it was looked at while nothing had changed")
			}
			giveWay()
			if told != 1 {
				t.Errorf("it was looked at %d times", told)
			}
			if len(c.awaiting) > 0 {
				t.Errorf("%v still waits", c.awaiting)
			}
		})
	}
}
