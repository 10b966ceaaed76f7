package plugin

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/slicing"
)

// offerLoop looks at the node again and again and publishes what changed.
func (d *Driver) offerLoop(ctx context.Context) {
	tick := time.NewTicker(d.cfg.ScanInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-d.node.changed:
		}
		if err := d.look(ctx); err != nil {
			d.complain(ctx, err)
		}
	}
}

// judge is a gpu.Source that is told which errors of cards count.
type judge interface {
	Judge(benign []uint64, quiet time.Duration)
}

// look scans the cards and makes the plan from them. The error is of a kind
// that another look may not repeat; the last good plan stays.
func (d *Driver) look(ctx context.Context) error {
	node, err := d.node.facts(ctx)
	if err != nil {
		return err
	}
	violations := d.configuration.Violations
	d.violations.Store(&violations)
	if j, ok := d.cfg.Source.(judge); ok {
		health := d.configuration.Health
		var quiet time.Duration
		if health.Quiet != nil {
			quiet = health.Quiet.Duration
		}
		j.Judge(health.BenignXIDs, quiet)
	}
	inv, ill, err := d.scan()
	well := err == nil && len(inv.Missing) == 0
	switch {
	case errors.Is(err, gpu.ErrUnavailable):
		// A node without a driver is a node with nothing to offer.
		d.complain(ctx, err)
		inv = gpu.Inventory{}
	case err != nil:
		return err
	}
	for _, m := range inv.Missing {
		d.complain(ctx, errors.New(m))
	}
	plan, err := d.planFor(ctx, inv.GPUs, node.labels)
	if err != nil && d.plan() == nil {
		return err // at start the configuration is refused as a whole
	}
	if err := d.arrange(plan); err != nil {
		d.complain(ctx, err)
		well = false
	}
	if well && err == nil {
		d.complained = ""
	}
	for _, i := range ill {
		plan.MarkInstance(i.Device, slicing.Unfit{Key: i.Key, Reason: i.Reason})
	}
	d.occupied(ctx, plan, node.devicePlugin)
	d.adopt(ctx, plan, inv)
	return err
}

// occupied marks cards that somebody else hands out or uses, so that none is
// handed out twice.
func (d *Driver) occupied(ctx context.Context, plan *slicing.Plan, devicePlugin bool) {
	now := map[string]string{}
	for _, c := range plan.Cards {
		if by := d.elsewhere(c.UUID, devicePlugin); by != nil {
			plan.Occupy(c.Device, *by)
		}
		for _, i := range c.Instances {
			if by := d.elsewhere(i.UUID, false); by != nil {
				plan.MarkInstance(i.Device, *by)
			}
		}
	}
	for _, c := range plan.Cards {
		if c.Unfit != nil {
			now[c.Device] = c.Unfit.Key + ": " + c.Unfit.Reason
		}
		for _, i := range c.Instances {
			if i.Unfit != nil {
				now[i.Device] = i.Unfit.Key + ": " + i.Unfit.Reason
			}
		}
	}
	for device, reason := range now {
		if d.unfit[device] != reason {
			klog.FromContext(ctx).Info("Nothing new is placed on a card", "device", device, "reason", reason)
		}
	}
	for device := range d.unfit {
		if _, still := now[device]; !still {
			klog.FromContext(ctx).Info("A card is offered again", "device", device)
		}
	}
	d.unfit = now
}

// adopt makes the plan the current one and publishes it if it differs.
func (d *Driver) adopt(ctx context.Context, plan *slicing.Plan, inv gpu.Inventory) {
	log := klog.FromContext(ctx)
	changed := !sameGPUs(d.inventory, inv) || d.plan() == nil
	if changed {
		if d.cfg.OnCards != nil {
			d.cfg.OnCards()
		}
		d.inventory = inv
	}
	if changed || !samePolicy(d.plan(), plan) {
		for _, c := range plan.Cards {
			log.Info("Card offered", "device", c.Device, "uuid", c.UUID, "pci", c.PCIBusID, "product", c.ProductName,
				"group", c.Group, "memoryMi", c.MemoryMi, "sliceMi", c.SliceMi, "migDevices", len(c.Instances), "unfit", c.Unfit)
		}
		for _, g := range plan.Unwanted {
			log.Info("Card not offered: no node group selects it", "uuid", g.UUID, "pci", g.PCIBusID, "product", g.ProductName)
		}
	}
	d.current.Store(plan)
	d.health.update(plan, time.Now())
	d.metrics.cards(plan)
	d.publish(ctx, plan)
}

// samePolicy tells whether two plans for the same cards offer them in the same
// way.
func samePolicy(a, b *slicing.Plan) bool {
	same := func(a, b slicing.Card) bool {
		sameInstances := len(a.Instances) == len(b.Instances)
		a.Unfit, b.Unfit, a.Instances, b.Instances = nil, nil, nil, nil
		return sameInstances && reflect.DeepEqual(a, b)
	}
	return slices.EqualFunc(a.Cards, b.Cards, same) && slices.EqualFunc(a.Unwanted, b.Unwanted, same)
}

func sameGPUs(a, b gpu.Inventory) bool {
	return reflect.DeepEqual(a.GPUs, b.GPUs) && slices.Equal(a.Missing, b.Missing)
}

// complain logs a condition of the node once, until another one comes.
func (d *Driver) complain(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // we are stopping, which looks like a fault to others
	}
	if text := err.Error(); text != d.complained {
		d.complained = text
		klog.FromContext(ctx).Error(err, "Cards cannot be offered as they should; trying again", "every", d.cfg.ScanInterval)
	}
	d.metrics.scanFailed()
}

// attributesOf are the published attributes by device name.
func attributesOf(plan *slicing.Plan) map[string]map[string]resourceapi.DeviceAttribute {
	out := map[string]map[string]resourceapi.DeviceAttribute{}
	if plan == nil {
		return out
	}
	for _, dev := range plan.Devices() {
		m := map[string]resourceapi.DeviceAttribute{}
		for k, v := range dev.Attributes {
			m[string(k)] = v
		}
		out[dev.Name] = m
	}
	return out
}
