package plugin

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/driver"
	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/enforce"
	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/mig"
	"github.com/sluice-gpu/sluice/driver/slicing"
	"github.com/sluice-gpu/sluice/driver/state"
)

// migsName is the folder of the records of MIG instances.
const migsName = "mig"

// openMIG lets MIG devices be prepared. Instances that no prepared share has
// end by the settling of their backend.
func (d *Driver) openMIG() {
	d.migs = &mig.Instances{Dir: filepath.Join(d.cfg.PluginDir, migsName), Boot: d.store.BootID, Cards: d.cfg.MIG}
	backends := maps.Clone(d.files.backends)
	if backends == nil {
		backends = map[config.Enforcement]enforce.Backend{}
	}
	backends[config.ByMIG] = &mig.Backend{Instances: d.migs, Limiter: backends[config.Limiter], SharesDir: d.files.sharesDir}
	d.files.backends = backends
}

// scan looks at the cards. The instances that were made here are no part of
// what it finds; ill are those of them that something is wrong with.
func (d *Driver) scan() (inv gpu.Inventory, ill []mig.Ill, err error) {
	if d.migs == nil {
		inv, err = d.cfg.Source.Scan()
		return inv, nil, err
	}
	ours := d.migs.Ours()
	inv, err = d.cfg.Source.Scan()
	return inv, d.migs.Without(inv.GPUs, ours), err
}

// instanceOf reads what a claim was given of a card in MIG mode: a device with
// all that it has.
func instanceOf(r resourceapi.DeviceRequestAllocationResult, s state.Share, claim types.UID, card slicing.Card, in slicing.Instance) (state.Share, error) {
	if in.UUID != "" {
		s.Cards = []string{in.UUID}
	}
	switch {
	case s.ShareID != "" || len(r.ConsumedCapacity) > 0:
		return s, fmt.Errorf("a MIG device belongs to one claim, and the allocation says that this is a part of one")
	case in.UUID == "" && s.Admin:
		return s, fmt.Errorf("the instance is not there and is made for a claim that gets it; claims with adminAccess use the class of the device %s", driver.MonitorDevice)
	case s.Admin:
		return s, nil
	}
	if in.Unfit != nil && in.Unfit.Key == slicing.PartOfInstance {
		// A claim can tolerate the taint, and would have memory that is others'.
		return s, fmt.Errorf("%s, so nothing holds claims on it to their size; ask for an instance by its profile, which is without \"c.\"", in.Unfit.Reason)
	}
	s.MemoryMi, s.Cores, s.Whole = in.MemoryMi, in.Cores, true
	if in.UUID == "" {
		s.MIG = &state.MIG{Claim: claim, Card: card.UUID, Profile: in.ProfileID, Start: in.Start, Size: in.Size}
	}
	return s, nil
}

// configureInstance checks what parameters say of a MIG device: what it has
// and what holds it is the hardware's.
func (d *Driver) configureInstance(s *state.Share, p config.SliceConfig) error {
	switch {
	case p.Enforcement != "" && p.Enforcement != config.ByMIG:
		return fmt.Errorf("enforcement %s is asked for, and a MIG device is held by the hardware: leave enforcement out, or say mig", p.Enforcement)
	case d.files.backends[config.ByMIG] == nil:
		return fmt.Errorf("the driver of this node has nothing that opens MIG devices")
	}
	s.Enforcement = string(config.ByMIG)
	return nil
}

// instances makes the MIG devices that the claim's shares still lack. First
// those end that no prepared claim has any more: one may be in the way.
func (d *Driver) instances(ctx context.Context, cp *state.Checkpoint, c state.Claim) error {
	settled := false
	for i := range c.Shares {
		s := &c.Shares[i]
		if s.MIG == nil || len(s.Cards) > 0 {
			continue
		}
		if !settled {
			d.settleBackends(ctx, cp)
			settled = true
		}
		uuid, err := d.migs.Make(mig.Owner{UID: c.UID, Namespace: c.Namespace, Name: c.Name}, s.Device, s.MIG.Card, *s.MIG)
		if err != nil {
			return fmt.Errorf("device %s: %w", s.Device, err)
		}
		s.Cards = []string{uuid}
	}
	return nil
}

// exclusive refuses a MIG device that another claim has still.
func exclusive(cp *state.Checkpoint, claim types.UID, s state.Share) error {
	if holders := cp.Holders(s.Device, claim); len(holders) > 0 {
		return fmt.Errorf("device %s is still held on this node by %v, whatever the API says of them; trying again until they are unprepared", s.Device, holders)
	}
	return nil
}
