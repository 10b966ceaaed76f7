package controller

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/tools/events"
)

// sink keeps what is written.
type sink struct{ written chan *eventsv1.Event }

func (s sink) Create(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	s.written <- e
	return e, nil
}

func (s sink) Update(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) { return e, nil }

func (s sink) Patch(_ context.Context, e *eventsv1.Event, _ []byte) (*eventsv1.Event, error) {
	return e, nil
}

// Those who stop after the recorder still have something to say.
func TestAnEventAfterTheEndIsDropped(t *testing.T) {
	to := sink{make(chan *eventsv1.Event, 1000)}
	b := events.NewBroadcaster(to)
	r := &recorder{broadcaster: b, to: b.NewRecorder(Scheme(), reportingController)}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Start(ctx) }()
	say := func(reason string) {
		r.Eventf(&corev1.Pod{}, nil, corev1.EventTypeNormal, reason, "Quota", "%s", "text")
	}
	// It may not have begun yet.
	var got *eventsv1.Event
	for i := 0; got == nil; i++ {
		say(fmt.Sprintf("Said%d", i))
		select {
		case got = <-to.written:
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("nothing is written")
		}
	}
	if got.ReportingController != reportingController || got.Note != "text" {
		t.Errorf("written: %v", got)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	say("TooLate")
}
