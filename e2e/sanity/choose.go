package sanity

import (
	"errors"

	resourceapi "k8s.io/api/resource/v1"
)

// usable lists the devices that a scheduler would give to a claim now, each by
// itself, and the request for it.
func (c *scope) usable() ([]request, error) {
	items, err := c.published(c.ctx)
	if err != nil {
		return nil, err
	}
	probe, err := c.newClaim([]request{{}})
	if err != nil {
		return nil, err
	}
	var found []request
	for _, d := range devicesOf(items) {
		r := request{device: d}
		switch _, err := c.allocate(probe, items, []request{r}); {
		case err == nil:
			found = append(found, r)
		case !errors.Is(err, errNoRoom):
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, doesNotApply("the scheduler would give none of the devices to a claim: %s", names(devicesOf(items)))
	}
	return found, nil
}

// oneClaim makes a claim for the first usable device.
func (c *scope) oneClaim() (*resourceapi.ResourceClaim, error) {
	all, err := c.usable()
	if err != nil {
		return nil, err
	}
	return c.claim(all[0])
}

// shareableDevice finds a device of which two small parts can be had.
func (c *scope) shareableDevice() (request, error) {
	all, err := c.usable()
	if err != nil {
		return request{}, err
	}
	for _, r := range all {
		if !r.device.shareable() {
			continue
		}
		if share, err := r.device.smallShare(); err == nil {
			return request{device: r.device, share: share}, nil
		}
	}
	return request{}, doesNotApply("no usable device can be shared (allowMultipleAllocations)")
}

// someClaims makes two to n claims: on devices of their own as far as there are
// any, the others on parts of one device.
func (c *scope) someClaims(n int) ([]*resourceapi.ResourceClaim, error) {
	all, err := c.usable()
	if err != nil {
		return nil, err
	}
	var wanted []request
	shared, err := c.shareableDevice()
	canShare := err == nil
	for _, r := range all {
		if !canShare || r.device.String() != shared.device.String() {
			wanted = append(wanted, r)
		}
	}
	if canShare {
		// Parts first: most kinds of claims are had with few devices.
		parts := max(2, n-len(wanted))
		for range parts {
			wanted = append([]request{shared}, wanted...)
		}
	}
	var claims []*resourceapi.ResourceClaim
	for _, r := range wanted {
		if len(claims) == n {
			break
		}
		claim, err := c.claim(r)
		if errors.Is(err, errNoRoom) {
			continue // taken by an earlier one through shared counters, or full
		}
		if err != nil {
			return nil, err
		}
		claims = append(claims, claim)
	}
	if len(claims) < 2 {
		return nil, doesNotApply("the node has only one device, and that cannot be shared")
	}
	return claims, nil
}
