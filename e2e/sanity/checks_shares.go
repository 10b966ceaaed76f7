package sanity

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

var shareChecks = []Check{
	{
		Name:     "shares/two-claims-on-one-device",
		Contract: "Each share of a device is told by its share ID and has CDI IDs of its own: the two containers are held to their own part.",
		Source:   "KEP-5075 (consumable capacity); " + srcProto,
		run:      twoClaimsOnOneDevice,
	},
	{
		Name:     "shares/two-requests-of-one-claim",
		Contract: "Two requests of one claim may be given the same device. They are two shares, each answered for its request.",
		Source:   "KEP-5075 (consumable capacity)",
		run:      twoRequestsOfOneClaim,
	},
	{
		Name:     "shares/end-one-by-one",
		Contract: "When one share of a device is unprepared, the others stay as they are.",
		Source:   "KEP-5075 (consumable capacity)",
		run:      sharesEndOneByOne,
	},
}

// twoShares makes two claims for parts of one device.
func (c *scope) twoShares() (a, b *resourceapi.ResourceClaim, err error) {
	r, err := c.shareableDevice()
	if err != nil {
		return nil, nil, err
	}
	if a, err = c.claim(r); err != nil {
		return nil, nil, err
	}
	if b, err = c.claim(r); err != nil {
		return nil, nil, err
	}
	return a, b, nil
}

func twoClaimsOnOneDevice(c *scope) error {
	a, b, err := c.twoShares()
	if err != nil {
		return err
	}
	answers, err := c.prepare(a, b)
	if err != nil {
		return err
	}
	for claim, got := range answers {
		if err := matchesAllocation(claim, got, c.plugin.offers(services[0].announced)); err != nil {
			return err
		}
		if err := c.injectable(claim, got); err != nil {
			return err
		}
	}
	return ownIDs(answers)
}

func twoRequestsOfOneClaim(c *scope) error {
	r, err := c.shareableDevice()
	if err != nil {
		return err
	}
	claim, err := c.claim(r, r)
	if err != nil {
		return err
	}
	a, err := c.prepareOne(claim)
	if err != nil {
		return err
	}
	if err := matchesAllocation(claim, a, c.plugin.offers(services[0].announced)); err != nil {
		return err
	}
	asked := "NodePrepareResources of " + describe(claim)
	for i, d := range a {
		for _, other := range a[:i] {
			if d.GetShareId() == other.GetShareId() {
				continue
			}
			if len(d.CdiDeviceIds) > 0 && len(common(d.CdiDeviceIds, other.CdiDeviceIds)) == len(d.CdiDeviceIds) {
				return violated(asked, "%s: both shares have the same IDs", a)
			}
		}
	}
	for _, name := range []string{"r0", "r1"} {
		found := false
		for _, d := range a {
			found = found || len(d.RequestNames) == 0 || slices.Contains(d.RequestNames, name)
		}
		if !found {
			return violated(asked, "%s: nothing for request %s", a, name)
		}
	}
	return c.injectable(claim, a)
}

func sharesEndOneByOne(c *scope) error {
	a, b, err := c.twoShares()
	if err != nil {
		return err
	}
	before := c.cdiNames()
	answers, err := c.prepare(a, b)
	if err != nil {
		return err
	}
	if err := c.unprepare(a); err != nil {
		return err
	}
	if err := c.injectable(b, answers[b]); err != nil {
		return fmt.Errorf("(after the other share of the device was unprepared)\n%w", err)
	}
	again, err := c.prepareOne(b)
	if err != nil {
		return err
	}
	if again.String() != answers[b].String() {
		return violated("NodePrepareResources, after the other share of the device was unprepared, of "+describe(b), "%s\nfirst:    %s", again, answers[b])
	}
	if err := c.unprepare(b); err != nil {
		return err
	}
	return c.nothingNewInCDI(before, "CDI devices after both shares were unprepared")
}
