package sanity

import (
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

var refusalChecks = []Check{
	{
		Name:     "refuses/claim-without-allocation",
		Contract: "Without an allocation a claim has no devices. To prepare it is an error.",
		Source:   srcKEP,
		run:      refuses(unallocatedClaim),
	},
	{
		Name:     "refuses/claim-of-another-uid",
		Contract: "A claim that was deleted and made again under the same name is another claim. To prepare the old one is an error.",
		Source:   srcKubelet,
		run:      refuses(replacedClaim),
	},
	{
		Name:     "refuses/claim-that-is-gone",
		Contract: "To prepare a claim that is not in the API is an error: nothing says what it was given.",
		Source:   srcKEP,
		run:      refuses(absentClaim),
	},
	{
		Name:     "refuses/devices-of-another-node",
		Contract: "The devices of an allocation are found by pool and name. To prepare devices of a pool that is not the node's is an error, even if the node has devices of the same names. A pod with spec.nodeName brings such a claim past the scheduler, and the kubelet does not look.",
		Source:   srcAPI + ", DeviceRequestAllocationResult",
		run:      refuses(foreignClaim),
	},
	{
		Name:     "refuses/device-that-is-not-there",
		Contract: "To prepare a device that the node does not have (any more) is an error.",
		Source:   srcHelper + ".PrepareResourceClaims",
		run:      refuses(missingDevice),
	},
	{
		Name:     "refuses/parameters-it-does-not-know",
		Contract: "Configuration for the driver that it cannot read is an error for that claim. Who wrote it expects that it matters.",
		Source:   srcKEP + ", opaque parameters",
		Level:    Should,
		run:      refuses(unknownParameters),
	},
	{
		Name:     "refuses/only-the-claim-that-is-wrong",
		Contract: "An error of one claim is told in the response for that claim. The others of the call are prepared.",
		Source:   srcProto,
		run:      refusesOnlyTheWrongOne,
	},
	{
		Name:     "refuses/only-the-claim-that-is-not-allocated",
		Contract: "Also a claim that is not allocated, is gone or was replaced is refused by itself, with the other claims of the call prepared.",
		Source:   srcProto,
		Level:    Should,
		run:      refusesOnlyTheUnallocated,
	},
	{
		Name:     "refuses/device-that-another-claim-still-holds",
		Contract: "The driver is the last line of defence against one device for two workloads. While a claim is prepared that was force-deleted from the API, its device is not prepared for the next one.",
		Source:   srcHelper + ".PrepareResourceClaims",
		Level:    Should,
		run:      refusesHeldDevice,
	},
}

// wrongClaim makes something that a plugin must not prepare, and says what it
// is.
type wrongClaim func(*scope) (claim *drapb.Claim, what string, err error)

// refuses checks that the claim is not prepared, by whichever kind of error,
// and that the attempt leaves nothing.
func refuses(wrong wrongClaim) func(*scope) error {
	return func(c *scope) error {
		claim, what, err := wrong(c)
		if err != nil {
			return err
		}
		before := c.cdiNames()
		response, err := c.plugin.prepare(c.ctx, claim)
		if err == nil {
			asked := "NodePrepareResources of " + what
			one, ok := response.Claims[claim.Uid]
			switch {
			case !ok:
				return violated(asked, "nothing about the claim; the response has %s", keys(response.Claims))
			case one.GetError() == "":
				return violated(asked, "prepared: %s", answer(one.GetDevices()))
			}
		}
		if err := c.nothingNewInCDI(before, "CDI devices after the refusal of "+what); err != nil {
			return err
		}
		// The kubelet unprepares it when its pod ends.
		return c.unprepareWire(claim)
	}
}

func unallocatedClaim(c *scope) (*drapb.Claim, string, error) {
	claim, err := c.newClaim([]request{{}})
	if err != nil {
		return nil, "", err
	}
	return onWire(claim), "a claim that is not allocated", nil
}

func replacedClaim(c *scope) (*drapb.Claim, string, error) {
	claim, err := c.oneClaim()
	if err != nil {
		return nil, "", err
	}
	old := onWire(claim)
	old.Uid = string(uuid.NewUUID())
	return old, fmt.Sprintf("claim %s with UID %s, while the claim of that name has UID %s", old.Name, old.Uid, claim.UID), nil
}

func absentClaim(c *scope) (*drapb.Claim, string, error) {
	return c.unknown(), "a claim that is not in the API", nil
}

// changed makes a claim whose allocation was changed before it was written.
func (c *scope) changed(change func(*resourceapi.AllocationResult)) (*resourceapi.ResourceClaim, error) {
	items, err := c.published(c.ctx)
	if err != nil {
		return nil, err
	}
	all, err := c.usable()
	if err != nil {
		return nil, err
	}
	claim, err := c.newClaim(all[:1])
	if err != nil {
		return nil, err
	}
	allocation, err := c.allocate(claim, items, all[:1])
	if err != nil {
		return nil, err
	}
	change(allocation)
	return c.bind(claim, allocation)
}

func foreignClaim(c *scope) (*drapb.Claim, string, error) {
	claim, err := c.changed(func(a *resourceapi.AllocationResult) {
		for i := range a.Devices.Results {
			a.Devices.Results[i].Pool = "pool-of-another-node"
		}
		if a.NodeSelector == nil {
			return
		}
		for i := range a.NodeSelector.NodeSelectorTerms {
			for j := range a.NodeSelector.NodeSelectorTerms[i].MatchFields {
				a.NodeSelector.NodeSelectorTerms[i].MatchFields[j].Values = []string{"another-node"}
			}
		}
	})
	if err != nil {
		return nil, "", err
	}
	return onWire(claim), "a claim that is allocated on another node: " + describe(claim), nil
}

func missingDevice(c *scope) (*drapb.Claim, string, error) {
	claim, err := c.changed(func(a *resourceapi.AllocationResult) {
		for i := range a.Devices.Results {
			a.Devices.Results[i].Device = "no-such-device"
		}
	})
	if err != nil {
		return nil, "", err
	}
	return onWire(claim), "a claim for a device that is not published: " + describe(claim), nil
}

func unknownParameters(c *scope) (*drapb.Claim, string, error) {
	all, err := c.usable()
	if err != nil {
		return nil, "", err
	}
	const parameters = `{"apiVersion":"nobody.example.com/v1","kind":"Unknown","x":1}`
	claim, err := c.claimWith(all[:1], configuration(c.d.Name, []byte(parameters)))
	if err != nil {
		return nil, "", err
	}
	return onWire(claim), "a claim with the parameters " + parameters, nil
}

// goodBeside prepares a good claim together with a wrong one.
func (c *scope) goodBeside(wrong wrongClaim) error {
	bad, what, err := wrong(c)
	if err != nil {
		return err
	}
	all, err := c.usable()
	if err != nil {
		if errors.As(err, new(*notApplicable)) {
			return doesNotApply("no device is left for a second claim")
		}
		return err
	}
	good, err := c.claim(all[len(all)-1])
	if err != nil {
		return err
	}
	asked := fmt.Sprintf("NodePrepareResources of %s, together with %s", describe(good), what)
	response, err := c.plugin.prepare(c.ctx, bad, onWire(good))
	if err != nil {
		return violated(asked, "the whole call failed: %v", err)
	}
	if response.Claims[bad.Uid].GetError() == "" {
		return violated(asked, "no error for the wrong claim; entries: %s", keys(response.Claims))
	}
	one, ok := response.Claims[string(good.UID)]
	if !ok || one.GetError() != "" {
		return violated(asked, "the good claim is not prepared: %q", one.GetError())
	}
	if err := c.injectable(good, one.GetDevices()); err != nil {
		return err
	}
	return c.unprepareWire(bad, onWire(good))
}

func refusesOnlyTheWrongOne(c *scope) error { return c.goodBeside(missingDevice) }

func refusesOnlyTheUnallocated(c *scope) error { return c.goodBeside(unallocatedClaim) }

func refusesHeldDevice(c *scope) error {
	all, err := c.usable()
	if err != nil {
		return err
	}
	first, err := c.claim(all[0])
	if err != nil {
		return err
	}
	// Another claim must not fit beside the first one.
	if _, err := c.claim(all[0]); err == nil {
		return doesNotApply("device %s has room for a second claim", all[0].device)
	} else if !errors.Is(err, errNoRoom) {
		return err
	}
	if _, err := c.prepare(first); err != nil {
		return err
	}
	if err := c.forceDelete(c.ctx, first); err != nil {
		return err
	}
	second, err := c.claim(all[0])
	if err != nil {
		return err
	}
	asked := fmt.Sprintf("NodePrepareResources of %s, while claim %s has the device and is gone from the API but not unprepared", describe(second), first.Name)
	response, err := c.plugin.prepare(c.ctx, onWire(second))
	if err == nil && response.Claims[string(second.UID)].GetError() == "" {
		return violated(asked, "prepared: %s", answer(response.Claims[string(second.UID)].GetDevices()))
	}
	if err := c.unprepare(first); err != nil {
		return err
	}
	if _, err := c.prepare(second); err != nil {
		return fmt.Errorf("(after the claim that held the device was unprepared)\n%w", err)
	}
	return c.unprepare(second)
}
