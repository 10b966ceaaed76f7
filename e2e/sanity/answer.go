package sanity

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// answer is what a plugin says of one prepared claim.
type answer []*drapb.Device

// ids are all CDI device IDs of the claim, those that several devices have in
// common once.
func (a answer) ids() []string {
	var ids []string
	for _, d := range a {
		ids = append(ids, d.CdiDeviceIds...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// String is the answer in a form that is the same for equal answers: the order
// of devices means nothing.
func (a answer) String() string {
	var lines []string
	for _, d := range a {
		line := fmt.Sprintf("%s/%s", d.PoolName, d.DeviceName)
		if d.GetShareId() != "" {
			line += " share " + d.GetShareId()
		}
		requests, ids := slices.Sorted(slices.Values(d.RequestNames)), slices.Sorted(slices.Values(d.CdiDeviceIds))
		lines = append(lines, fmt.Sprintf("%s for %v: %v", line, requests, ids))
	}
	if len(lines) == 0 {
		return "no devices"
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

// prepare prepares claims in one call as a kubelet does for a pod, and returns
// an answer for each. It is a violation if any claim is not prepared.
func (c *scope) prepare(claims ...*resourceapi.ResourceClaim) (map[*resourceapi.ResourceClaim]answer, error) {
	response, err := c.plugin.prepare(c.ctx, allOnWire(claims)...)
	return understand("NodePrepareResources of "+describe(claims...), claims, response, err)
}

// prepareOne is prepare for one claim.
func (c *scope) prepareOne(claim *resourceapi.ResourceClaim) (answer, error) {
	answers, err := c.prepare(claim)
	return answers[claim], err
}

// understand reads a response as the kubelet does.
func understand(asked string, claims []*resourceapi.ResourceClaim, response *drapb.NodePrepareResourcesResponse, err error) (map[*resourceapi.ResourceClaim]answer, error) {
	if err != nil {
		return nil, violated(asked, "the whole call failed: %v", err)
	}
	answers := map[*resourceapi.ResourceClaim]answer{}
	for _, claim := range claims {
		one, ok := response.Claims[string(claim.UID)]
		switch {
		case !ok:
			return nil, violated(asked, "nothing about claim %s (UID %s); the response has %s", claim.Name, claim.UID, keys(response.Claims))
		case one.GetError() != "":
			return nil, violated(asked, "claim %s is not prepared: %s", claim.Name, one.GetError())
		}
		answers[claim] = one.GetDevices()
	}
	for uid := range response.Claims {
		if !slices.ContainsFunc(claims, func(c *resourceapi.ResourceClaim) bool { return string(c.UID) == uid }) {
			return nil, violated(asked, "an entry for UID %s, which was not asked for", uid)
		}
	}
	return answers, nil
}

// unprepare unprepares claims in one call; each must succeed.
func (c *scope) unprepare(claims ...*resourceapi.ResourceClaim) error {
	return c.unprepareWire(allOnWire(claims)...)
}

func (c *scope) unprepareWire(claims ...*drapb.Claim) error {
	response, err := c.plugin.unprepare(c.ctx, claims...)
	return understandUnprepare(claims, response, err)
}

func understandUnprepare(claims []*drapb.Claim, response *drapb.NodeUnprepareResourcesResponse, err error) error {
	var names []string
	for _, claim := range claims {
		names = append(names, claim.Name)
	}
	asked := "NodeUnprepareResources of " + strings.Join(names, ", ")
	if err != nil {
		return violated(asked, "the whole call failed: %v", err)
	}
	for _, claim := range claims {
		one, ok := response.Claims[claim.Uid]
		switch {
		case !ok:
			return violated(asked, "nothing about claim %s (UID %s); the response has %s", claim.Name, claim.Uid, keys(response.Claims))
		case one.GetError() != "":
			return violated(asked, "claim %s: %s", claim.Name, one.GetError())
		}
	}
	return nil
}

// describe tells which claims, and what they were given.
func describe(claims ...*resourceapi.ResourceClaim) string {
	var all []string
	for _, claim := range claims {
		var devices []string
		if claim.Status.Allocation != nil {
			for _, r := range claim.Status.Allocation.Devices.Results {
				text := r.Pool + "/" + r.Device
				if r.ShareID != nil {
					text += " share " + string(*r.ShareID)
				}
				devices = append(devices, text)
			}
		}
		all = append(all, fmt.Sprintf("%s (%s)", claim.Name, strings.Join(devices, ", ")))
	}
	return strings.Join(all, ", ")
}

func keys[V any](m map[string]V) string {
	if len(m) == 0 {
		return "no entries"
	}
	var all []string
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
