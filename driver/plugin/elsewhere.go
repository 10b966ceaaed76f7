package plugin

import (
	"fmt"

	"github.com/sluice-gpu/sluice/driver/slicing"
)

// elsewhere tells who beside this driver has a card or a MIG device: a device
// plugin of the node, or processes that use no share of it. Nil: nobody. An
// instance that is not made yet has no UUID and nobody in it.
func (d *Driver) elsewhere(uuid string, devicePlugin bool) *slicing.Unfit {
	switch {
	case devicePlugin:
		return &slicing.Unfit{Key: "device-plugin-active", Busy: true,
			Reason: "the node also offers " + pluginResource + " by a device plugin, which hands out the same cards"}
	case d.monitor != nil && uuid != "" && d.monitor.Foreign(uuid):
		return &slicing.Unfit{Key: "in-use-elsewhere", Busy: true,
			Reason: "processes run on it that use no share of it"}
	}
	return nil
}

// free refuses what somebody else has. The taint that says so is a word to the
// scheduler, which a claim can tolerate; a claim of a user does not get a card
// twice by that. Those with adminAccess are not asked: they look, and hold
// nothing. The kubelet asks again, so waiting is enough.
func (d *Driver) free(uuids ...string) error {
	node := d.node.last()
	for _, uuid := range uuids {
		if by := d.elsewhere(uuid, node != nil && node.devicePlugin); by != nil {
			return fmt.Errorf("%s, so it would be handed out twice, whatever the claim tolerates; trying again until the taint gpu.sluice.dev/%s is gone", by.Reason, by.Key)
		}
	}
	return nil
}
