package controller

import "testing"

// Its reason is due at a moment when nothing has been decided yet: there is none to
// write, and nobody else brings it up again.
func TestAReasonThatIsNotKnownYetIsAskedForAgain(t *testing.T) {
	s := newStage(t, 0)
	r := newReasons(&workloads{sources: &sources{core: s.core}})
	defer r.queue.ShutDown()
	wl := s.workload("waits", 1, false)
	id := workloadID(wl.Namespace, wl.Name)
	r.say(t.Context(), id)
	if got, _ := r.queue.Get(); got != id {
		t.Errorf("%q is asked for again", got)
	}
}
