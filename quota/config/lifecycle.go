package config

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/sluice-gpu/sluice/quota/lifecycle"
)

// WaitForPodsReady is as in the Kueue configuration, without blockAdmission:
// one workload that starts never holds up all others.
type WaitForPodsReady struct {
	// Timeout is how long after its admission a workload's pods must all be
	// ready, else it is evicted. Default 30m.
	Timeout metav1.Duration `json:"timeout,omitempty"`
	// RecoveryTimeout is how long pods that were ready may be not ready, as when
	// one is replaced. Default: as Timeout; 0s is for ever.
	RecoveryTimeout *metav1.Duration `json:"recoveryTimeout,omitempty"`
	// RequeuingStrategy says how an evicted workload comes back.
	RequeuingStrategy *RequeuingStrategy `json:"requeuingStrategy,omitempty"`
}

// RequeuingStrategy is as in the Kueue configuration.
type RequeuingStrategy struct {
	// Timestamp places the workload in its queue: by its Eviction (default) or
	// its Creation.
	Timestamp string `json:"timestamp,omitempty"`
	// BackoffLimitCount is how often it may come back before it is deactivated;
	// for ever if not set.
	BackoffLimitCount *int32 `json:"backoffLimitCount,omitempty"`
	// BackoffBaseSeconds is the first pause, doubled each time. Default 60.
	BackoffBaseSeconds *int32 `json:"backoffBaseSeconds,omitempty"`
	// BackoffMaxSeconds bounds the pause. Default 3600.
	BackoffMaxSeconds *int32 `json:"backoffMaxSeconds,omitempty"`
}

func (w *WaitForPodsReady) rules() (*lifecycle.PodsReady, error) {
	if w == nil {
		return nil, nil
	}
	s := ptr.Deref(w.RequeuingStrategy, RequeuingStrategy{})
	r := &lifecycle.PodsReady{
		Timeout: w.Timeout.Duration,
		Limit:   s.BackoffLimitCount,
		Base:    time.Duration(ptr.Deref(s.BackoffBaseSeconds, 60)) * time.Second,
		Max:     time.Duration(ptr.Deref(s.BackoffMaxSeconds, 3600)) * time.Second,
	}
	if r.Timeout == 0 {
		r.Timeout = 30 * time.Minute
	}
	r.Recovery = r.Timeout
	if w.RecoveryTimeout != nil {
		r.Recovery = w.RecoveryTimeout.Duration
	}
	switch s.Timestamp {
	case "", "Eviction":
		r.ByEviction = true
	case "Creation":
	default:
		return nil, fmt.Errorf("waitForPodsReady.requeuingStrategy.timestamp is %q, use Eviction or Creation", s.Timestamp)
	}
	switch {
	case r.Timeout < time.Second:
		return nil, fmt.Errorf("waitForPodsReady.timeout is %s, at least a second is needed", r.Timeout)
	case r.Recovery < 0:
		return nil, fmt.Errorf("waitForPodsReady.recoveryTimeout is %s, it must not be negative", r.Recovery)
	case r.Base < 0 || r.Max < 0:
		return nil, fmt.Errorf("waitForPodsReady.requeuingStrategy: pauses must not be negative")
	case r.Limit != nil && *r.Limit < 0:
		return nil, fmt.Errorf("waitForPodsReady.requeuingStrategy.backoffLimitCount is %d, it must not be negative", *r.Limit)
	}
	return r, nil
}

func (c *QuotaConfiguration) validateLifecycle() error {
	if _, err := c.WaitForPodsReady.rules(); err != nil {
		return err
	}
	if c.MaxPreemptionNotice.Duration < 0 {
		return fmt.Errorf("maxPreemptionNotice is %s, it must not be negative", c.MaxPreemptionNotice.Duration)
	}
	return nil
}

// Lifecycle is what the configuration says of workloads that are admitted.
func (c *QuotaConfiguration) Lifecycle() lifecycle.Rules {
	ready, err := c.WaitForPodsReady.rules()
	if err != nil {
		panic(err) // Decode has validated it
	}
	return lifecycle.Rules{PodsReady: ready, MaxNotice: c.MaxPreemptionNotice.Duration}
}
