package controller

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// reportingController is who events are from.
const reportingController = "sluice-quota"

// recorder writes events while the manager runs. Unlike the manager's own it has
// them encoded as protobuf, which costs both sides less than JSON.
type recorder struct {
	broadcaster events.EventBroadcaster
	to          events.EventRecorder

	mu sync.RWMutex
	// ended says that nothing is written any more: those who stop later than this
	// may still want to say something.
	ended bool
}

// NewRecorder adds a recorder of events to a manager.
func NewRecorder(mgr ctrl.Manager) (events.EventRecorder, error) {
	cfg := rest.CopyConfig(mgr.GetConfig())
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	api, err := eventsclient.NewForConfigAndClient(cfg, mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("a client for events: %w", err)
	}
	b := events.NewBroadcaster(&events.EventSinkImpl{Interface: api})
	r := &recorder{broadcaster: b, to: b.NewRecorder(mgr.GetScheme(), reportingController)}
	return r, mgr.Add(r)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: what happens in the
// replicas that do not lead is told as well.
func (*recorder) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (r *recorder) Start(ctx context.Context) error {
	// What is queued at the end is still written.
	writing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	if err := r.broadcaster.StartRecordingToSinkWithContext(writing); err != nil {
		return fmt.Errorf("recording events: %w", err)
	}
	if logger := log.FromContext(ctx).V(1); logger.Enabled() {
		if _, err := r.broadcaster.StartLogging(logger); err != nil {
			return fmt.Errorf("logging events: %w", err)
		}
	}
	<-ctx.Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.broadcaster.Shutdown()
	return nil
}

// Eventf implements events.EventRecorder.
func (r *recorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if !r.ended {
		r.to.Eventf(regarding, related, kind, reason, action, note, args...)
	}
}
