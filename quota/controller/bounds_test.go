package controller

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// While nothing may be admitted, what is due is not looked at again and again.
func TestNothingIsDueWhileAdmissionIsHeldUp(t *testing.T) {
	now := time.Unix(100_000, 0)
	s := keeping(t, &now)
	wl := s.workload("runs", 1, true)
	s.pod(wl, "one", "", false)
	s.decide()
	s.open(t, wl, "one")
	s.tellPod = func(types.NamespacedName) {}
	now = now.Add(time.Second)
	for range 2 {
		s.room = true
		s.decide()
	}
	if _, due := s.nextLook(); !due {
		t.Fatal("nothing is due before")
	}
	s.halt("somebody else")
	if at, due := s.nextLook(); due {
		t.Errorf("the next look is at %v", at)
	}
	s.halt("")
	if _, due := s.nextLook(); !due {
		t.Error("what was put off is not due afterwards")
	}
}

// A job that was made larger while it runs has pods one more than were admitted all
// the time. Those that are gone are not remembered, and its user is told once.
func TestPodsBeyondWhatWasAdmittedAreForgottenWithTheirPods(t *testing.T) {
	s := newStage(t, 2)
	wl := s.workload("grown", 1, true)
	id := workloadID("team", wl.Name)
	s.pod(wl, "runs", "n0", false)
	told := 0
	for i := range 5 {
		p := s.pod(wl, fmt.Sprint("more", i), "", true)
		e := s.beyond(id, wl, mainSet, p.UID, 1)
		if e == nil || !e.first {
			t.Fatalf("pod %d: %+v", i, e)
		}
		if e.job {
			told++
		}
		if again := s.beyond(id, wl, mainSet, p.UID, 1); again.first || again.job {
			t.Errorf("told twice: %+v", again)
		}
		s.lost(p)
	}
	if n := len(s.works[id].beyond); n != 0 || told != 1 {
		t.Errorf("%d pods that are gone are remembered, and the job was told %d times", n, told)
	}
}
