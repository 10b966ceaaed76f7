package plugin

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sluice-gpu/sluice/driver"
	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/slicing"
	"github.com/sluice-gpu/sluice/driver/state"
)

// allocated returns the results of a claim that are this driver's.
func allocated(claim *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	if claim.Status.Allocation == nil {
		return nil
	}
	var out []resourceapi.DeviceRequestAllocationResult
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == driver.Name {
			out = append(out, r)
		}
	}
	return out
}

// sharesOf reads what a claim was given. It is the last line of defence: the
// API server checks neither the sizes nor who may have admin access, so
// everything that the node relies on is checked here.
func (d *Driver) sharesOf(claim *resourceapi.ResourceClaim, plan *slicing.Plan) ([]state.Share, error) {
	if claim.Status.Allocation == nil {
		return nil, nil
	}
	parameters, errs := config.AllocatedParameters(claim.Status.Allocation.Devices.Config, field.NewPath("status", "allocation", "devices", "config"))
	if len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	var shares []state.Share
	for _, r := range allocated(claim) {
		s, err := shareOf(r, d.cfg.NodeName, claim.UID, plan)
		if err == nil && !s.Admin {
			err = d.free(cardsOf(s, plan)...)
		}
		if err == nil {
			err = d.configure(&s, parameters.For(r), plan)
		}
		if err != nil {
			return nil, fmt.Errorf("request %s, device %s/%s: %w", r.Request, r.Pool, r.Device, err)
		}
		shares = append(shares, s)
	}
	return shares, alone(shares)
}

// cardsOf are the card that a share is of and the MIG device, if it is one.
func cardsOf(s state.Share, plan *slicing.Plan) []string {
	if card, _, ok := plan.Instance(s.Device); ok {
		return append([]string{card.UUID}, s.Cards...)
	}
	return s.Cards
}

// alone refuses claims with a share that MPS holds and others: what joins a
// program to one daemon and what limits it there are variables and paths of its
// container, of which there is one set.
func alone(shares []state.Share) error {
	if len(shares) < 2 {
		return nil
	}
	for _, s := range shares {
		if enforcementOf(s) == config.MPS {
			return fmt.Errorf("request %s: a share with enforcement mps must be the only one of its claim, and of its container: a program is a client of one MPS daemon, which has one card, and has one limit there; ask for one larger share", s.Request)
		}
	}
	return nil
}

func shareOf(r resourceapi.DeviceRequestAllocationResult, pool string, claim types.UID, plan *slicing.Plan) (state.Share, error) {
	s := state.Share{Request: r.Request, Pool: r.Pool, Device: r.Device, Admin: ptr.Deref(r.AdminAccess, false)}
	if r.ShareID != nil {
		s.ShareID = *r.ShareID
	}
	if r.Pool != pool {
		return s, fmt.Errorf("this node's pool is %s", pool)
	}
	if r.Device == driver.MonitorDevice {
		if !s.Admin {
			return s, fmt.Errorf("the device opens every card of the node and is only for requests with adminAccess: true")
		}
		for _, c := range plan.Cards {
			if !c.Dead {
				s.Cards = append(s.Cards, c.UUID)
			}
		}
		if len(s.Cards) == 0 {
			return s, fmt.Errorf("the node has no cards now")
		}
		return s, nil
	}
	if card, in, ok := plan.Instance(r.Device); ok {
		return instanceOf(r, s, claim, card, in)
	}
	card, ok := plan.Card(r.Device)
	if !ok {
		return s, fmt.Errorf("the node does not offer such a device now: it has %s", offered(plan))
	}
	s.Cards = []string{card.UUID}
	if s.Admin {
		return s, nil
	}
	if s.ShareID == "" {
		return s, fmt.Errorf("the allocation has no shareID; the scheduler must have the feature DRAConsumableCapacity (on by default from Kubernetes 1.36)")
	}
	memory, err := consumed(r, driver.CapacityMemory)
	if err != nil {
		return s, err
	}
	if memory < gpu.Mi {
		return s, fmt.Errorf("a share of %d bytes of memory is none: ask for %dMi to %dMi", memory, min(config.MinShareMi, card.MemoryMi), card.MemoryMi)
	}
	// The allocator rounds to whole Mi; what it did not round is not given.
	s.MemoryMi = memory / gpu.Mi
	// The card may be cut in another way since the claim was allocated, so what
	// counts is what it has, not the sizes that are offered now.
	if s.MemoryMi > card.UsableMi() {
		return s, fmt.Errorf("a share of %dMi, and the card has %dMi", s.MemoryMi, card.UsableMi())
	}
	if s.Cores, err = consumed(r, driver.CapacityCores); err != nil {
		return s, err
	}
	if s.Cores < 0 || s.Cores > driver.AllCores {
		return s, fmt.Errorf("%d cores: they are a percentage of one card", s.Cores)
	}
	s.Whole = card.Whole(s.MemoryMi)
	return s, nil
}

func consumed(r resourceapi.DeviceRequestAllocationResult, name resourceapi.QualifiedName) (int64, error) {
	q, ok := r.ConsumedCapacity[name]
	if !ok {
		return 0, fmt.Errorf("the allocation does not say how much %s it takes", name)
	}
	if q.Cmp(resource.Quantity{}) < 0 {
		return 0, fmt.Errorf("the allocation takes %s of %s", q.String(), name)
	}
	return q.Value(), nil
}

// fits refuses what would overfill a card together with shares that are not
// unprepared yet. The scheduler counts a share free once its claim is gone
// from the API; on a node that was cut off, or after a forced deletion, its
// containers may still run. The kubelet asks again, so waiting is enough.
//
// It also refuses a card to MPS and to something else at once: MPS takes the card
// for its clients alone.
func fits(cp *state.Checkpoint, claim *resourceapi.ResourceClaim, shares []state.Share, plan *slicing.Plan) error {
	for _, s := range shares {
		if err := oneEnforcement(cp, claim, s); err != nil {
			return err
		}
	}
	type sum struct{ memory, cores int64 }
	asked := map[string]sum{}
	for _, s := range shares {
		if s.Admin {
			continue
		}
		card, ok := plan.Card(s.Device)
		if !ok {
			if err := exclusive(cp, claim.UID, s); err != nil {
				return err
			}
			continue
		}
		a := asked[s.Device]
		a.memory += s.MemoryMi
		a.cores += s.Cores
		asked[s.Device] = a
		memory, cores := cp.Held(s.Device, claim.UID)
		most := max(card.MemoryMi, card.UsableMi())
		if a.memory > most || a.cores > driver.AllCores {
			return fmt.Errorf("device %s: the claim takes %dMi and %d cores, the card has %dMi and %d", s.Device, a.memory, a.cores, most, driver.AllCores)
		}
		if memory+a.memory > most || cores+a.cores > driver.AllCores {
			return fmt.Errorf("device %s: the claim takes %dMi and %d cores, but of %dMi and %d cores %dMi and %d are still held on this node by %v, whatever the API says of them; trying again until they are unprepared",
				s.Device, a.memory, a.cores, most, driver.AllCores, memory, cores, cp.Holders(s.Device, claim.UID))
		}
		if err := beside(cp, claim, s); err != nil {
			return err
		}
	}
	return nil
}

// beside refuses a card that another claim has whole. Such a share has no limit,
// so its size says nothing once the card's memory is given out more than once.
func beside(cp *state.Checkpoint, claim *resourceapi.ResourceClaim, s state.Share) error {
	for _, c := range cp.On(s.Device) {
		for _, other := range c.Shares {
			if c.UID != claim.UID && other.Device == s.Device && !other.Admin && other.Whole {
				return fmt.Errorf("device %s: %s/%s was given the whole card before its memory was given out more than once, and nothing limits it; trying again until it is unprepared",
					s.Device, c.Namespace, c.Name)
			}
		}
	}
	return nil
}

func offered(plan *slicing.Plan) string {
	if len(plan.Cards) == 0 {
		return "none"
	}
	out := ""
	for i, c := range plan.Cards {
		if i > 0 {
			out += ", "
		}
		out += c.Device
		if c.Partitioned() {
			out += fmt.Sprintf(" (as %d MIG devices)", len(c.Instances))
		}
	}
	return out
}

func oneEnforcement(cp *state.Checkpoint, claim *resourceapi.ResourceClaim, s state.Share) error {
	if s.Admin {
		return nil
	}
	by := enforcementOf(s)
	for _, c := range cp.On(s.Device) {
		for _, other := range c.Shares {
			has := enforcementOf(other)
			if c.UID == claim.UID || other.Device != s.Device || other.Admin || (by == config.MPS) == (has == config.MPS) {
				continue
			}
			return fmt.Errorf("device %s: the share is to be held by %s and %s/%s has one there that is held by %s: while MPS serves a card, only its clients can use it; keep cards apart by a node group or a DeviceClass for each enforcement; trying again until it is unprepared",
				s.Device, by, c.Namespace, c.Name, has)
		}
	}
	return nil
}
