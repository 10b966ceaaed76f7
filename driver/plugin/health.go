package plugin

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/sluice-gpu/sluice/driver"
	"github.com/sluice-gpu/sluice/driver/slicing"
)

// healthLease is how long the kubelet believes a report; reports come three
// times as often.
const healthLease = 30 * time.Second

// health remembers what was last known of every device that was ever offered,
// so that a card that disappears is reported as unhealthy to the pods that
// hold it rather than forgotten.
type health struct {
	pool string

	mu      sync.Mutex
	devices map[string]kubeletplugin.DeviceHealth
	changed chan struct{} // closed at a change
}

func newHealth(pool string) *health {
	return &health{pool: pool, devices: map[string]kubeletplugin.DeviceHealth{}, changed: make(chan struct{})}
}

func (h *health) update(plan *slicing.Plan, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := map[string]bool{}
	changed := false
	set := func(device string, status kubeletplugin.HealthStatus, message string) {
		seen[device] = true
		old := h.devices[device]
		changed = changed || old.Health != status || old.Message != message
		h.devices[device] = kubeletplugin.DeviceHealth{
			PoolName: h.pool, DeviceName: device, Health: status, Message: message,
			LastUpdated: now, HealthCheckTimeout: healthLease,
		}
	}
	judge := func(device string, unfits ...*slicing.Unfit) {
		for _, u := range unfits {
			if u != nil && !u.Busy {
				set(device, kubeletplugin.HealthStatusUnhealthy, u.Reason)
				return
			}
		}
		set(device, kubeletplugin.HealthStatusHealthy, "")
	}
	for _, c := range plan.Cards {
		for _, i := range c.Instances {
			judge(i.Device, c.Unfit, i.Unfit)
		}
		if !c.Partitioned() {
			judge(c.Device, c.Unfit)
		}
	}
	for _, c := range plan.Unwanted { // nothing is wrong with them, and shares of before may be in use
		set(c.Device, kubeletplugin.HealthStatusHealthy, "")
	}
	if len(plan.Cards) > 0 {
		set(driver.MonitorDevice, kubeletplugin.HealthStatusHealthy, "")
	}
	cards := map[string]bool{}
	for _, c := range slices.Concat(plan.Cards, plan.Unwanted) {
		cards[c.Device] = true
	}
	for device := range h.devices {
		card, _, mig := strings.Cut(device, "-mig-")
		switch {
		case seen[device]:
		case mig && cards[card]: // the card is not cut so any more; what runs is not touched
			set(device, kubeletplugin.HealthStatusHealthy, "")
		default:
			set(device, kubeletplugin.HealthStatusUnhealthy, "the NVIDIA driver does not see the card any more")
		}
	}
	if changed {
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

func (h *health) report() (kubeletplugin.DeviceHealthReport, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var r kubeletplugin.DeviceHealthReport
	for _, d := range h.devices {
		r.Devices = append(r.Devices, d)
	}
	slices.SortFunc(r.Devices, func(a, b kubeletplugin.DeviceHealth) int {
		if a.DeviceName < b.DeviceName {
			return -1
		}
		return 1
	})
	return r, h.changed
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin.
func (d *Driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	again := time.NewTicker(healthLease / 3)
	defer again.Stop()
	for {
		report, changed := d.health.report()
		select {
		case <-ctx.Done():
			return nil
		case reports <- report:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again.C:
		}
	}
}
