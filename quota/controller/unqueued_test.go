package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

func TestOnlyThoseWithoutAQueueAreLookedAtWhenANamespaceIsGoverned(t *testing.T) {
	s := newStage(t, 1)
	s.unnamed.held = true
	s.unnamed.in = labels.SelectorFromSet(labels.Set{"governed": "yes"})
	wl := s.workload("queued", 1, false)
	s.pod(wl, "queued", "", true)
	lonely := func(name string, gate bool) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name), ResourceVersion: s.next()}}
		if gate {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: Gate}}
		}
		return p
	}
	waits := lonely("waits", true)
	s.saw(waits)
	s.saw(lonely("runs", false))
	var looked []string
	s.tellPod = func(n types.NamespacedName) { looked = append(looked, n.Name) }
	governs := func(value string) {
		s.saw(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{"governed": value}}})
	}
	governs("yes")
	if len(looked) != 1 || looked[0] != "waits" {
		t.Errorf("looked at %v, want waits alone", looked)
	}
	governs("yes")
	if len(looked) != 1 {
		t.Errorf("looked at %v although nothing has changed", looked)
	}
	s.lost(waits)
	governs("no")
	if len(looked) != 1 || len(s.unnamed.pods) != 0 {
		t.Errorf("looked at %v, and %d namespaces are remembered", looked, len(s.unnamed.pods))
	}
}
