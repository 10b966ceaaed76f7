package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/sluice-gpu/sluice/driver"
	"github.com/sluice-gpu/sluice/driver/slicing"
)

// The slice controller's own times are for many drivers' slices at once: it
// waits 30 s before it repairs what somebody else changed, and trusts for a
// minute that what it created is still there. A starting kubelet deletes the
// slices of its node, and until they are back nothing is scheduled to it; the
// controller here has one pool of few slices and can look again at once.
const (
	repairDelay = time.Second
	trustOwn    = 5 * time.Second
)

// publish hands the slices to a controller, which writes what differs from
// the API server. Nothing is handed over twice. Before serve it does nothing.
func (d *Driver) publish(ctx context.Context, plan *slicing.Plan) {
	if !d.serving {
		return
	}
	pool := plan.Slices()
	if d.published != nil && apiequality.Semantic.DeepEqual(d.published, pool) {
		return
	}
	resources := &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.cfg.NodeName: {Slices: pool}}}
	if d.controller == nil {
		c, err := resourceslice.StartController(klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "slices")), resourceslice.Options{
			DriverName:       driver.Name,
			KubeClient:       d.cfg.KubeClient,
			Owner:            &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: d.cfg.NodeName},
			Resources:        resources,
			SyncDelay:        ptr.To(repairDelay),
			MutationCacheTTL: ptr.To(trustOwn),
			ErrorHandler:     d.publishFailed,
		})
		if err != nil {
			d.complain(ctx, fmt.Errorf("publishing: %w", err))
			return
		}
		d.controller = c
	} else {
		d.controller.Update(resources)
	}
	d.published = pool
	klog.FromContext(ctx).Info("Publishing", "pool", d.cfg.NodeName, "cards", len(plan.Cards), "slices", len(pool))
}

// publishFailed hears of every failure to write a slice; the controller tries
// again when it returns.
func (d *Driver) publishFailed(ctx context.Context, err error, msg string) {
	d.metrics.publishFailed()
	var dropped *resourceslice.DroppedFieldsError
	if errors.As(err, &dropped) {
		// Without these fields a card would be published as if one claim took
		// all of it, or as if it had no size. Nothing is better than that.
		d.fatal(fmt.Errorf("the API server dropped fields of the ResourceSlice: Sluice needs Kubernetes 1.36 or newer with the feature gate %s on in the API server and the scheduler: %w",
			gates(dropped), err))
		return
	}
	klog.FromContext(ctx).Error(err, msg)
}

func gates(err *resourceslice.DroppedFieldsError) string {
	if names := err.DisabledFeatures(); len(names) > 0 {
		return strings.Join(names, ", ")
	}
	return "DRAConsumableCapacity"
}
