package sanity

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

var prepareChecks = []Check{
	{
		Name:     "prepare/answers-every-claim",
		Contract: "The response has an entry for each claim of the request and for no other. A kubelet takes a missing one for a failure of the pod.",
		Source:   srcProto + "; " + srcKubelet,
		run:      answersEveryClaim,
	},
	{
		Name:     "prepare/names-what-was-allocated",
		Contract: "Each device of the answer is one of the claim's allocation, with its pool, its share ID and the request that it is for. Containers get devices by request, and pod status and metrics find them by these names.",
		Source:   srcProto,
		run:      namesWhatWasAllocated,
	},
	{
		Name:     "prepare/names-all-that-was-allocated",
		Contract: "Each allocated device is in the answer. What is not in it has no health in pod status and is missing in the kubelet's PodResources.",
		Source:   srcProto,
		Level:    Should,
		run:      namesAllThatWasAllocated,
	},
	{
		Name:     "prepare/again-gives-the-same",
		Contract: "A kubelet that was restarted prepares the claims of running pods again. It gets the devices and CDI IDs that their containers were started with.",
		Source:   srcHelper + ".PrepareResourceClaims",
		run:      againGivesTheSame,
	},
	{
		Name:     "prepare/one-claim-many-requests",
		Contract: "Each device of a claim with several requests is answered for its own request, so that a container that names one request gets only that.",
		Source:   srcProto,
		run:      oneClaimManyRequests,
	},
	{
		Name:     "prepare/works-after-unprepare",
		Contract: "A claim outlives its pods. After the last one was unprepared the next can have it prepared anew.",
		Source:   srcKEP,
		run:      worksAfterUnprepare,
	},
	{
		Name:     "prepare/admin-access-beside-the-holder",
		Contract: "A request with admin access gets its device whether or not another claim has it, and takes nothing from that one.",
		Source:   "KEP-5018 (admin access)",
		Level:    Should,
		run:      adminAccessBesideTheHolder,
	},
	{
		Name:     "prepare/ignores-parameters-for-others",
		Contract: "Opaque configuration names the driver that it is for. That of another driver concerns nobody else.",
		Source:   srcAPI + ", OpaqueDeviceConfiguration",
		run:      ignoresParametersForOthers,
	},
}

func answersEveryClaim(c *scope) error {
	claims, err := c.someClaims(4)
	if err != nil {
		return err
	}
	_, err = c.prepare(claims...)
	return err
}

// resultOf finds what of the claim's allocation a device of an answer is.
func resultOf(claim *resourceapi.ResourceClaim, pool, device, share string) *resourceapi.DeviceRequestAllocationResult {
	for i, r := range claim.Status.Allocation.Devices.Results {
		id := ""
		if r.ShareID != nil {
			id = string(*r.ShareID)
		}
		if r.Pool == pool && r.Device == device && id == share {
			return &claim.Status.Allocation.Devices.Results[i]
		}
	}
	return nil
}

func namesWhatWasAllocated(c *scope) error {
	claims, err := c.someClaims(3)
	if err != nil {
		// One claim tells it as well.
		claim, err := c.oneClaim()
		if err != nil {
			return err
		}
		claims = []*resourceapi.ResourceClaim{claim}
	}
	answers, err := c.prepare(claims...)
	if err != nil {
		return err
	}
	for claim, a := range answers {
		if err := matchesAllocation(claim, a, c.plugin.offers(services[0].announced)); err != nil {
			return err
		}
	}
	return nil
}

// matchesAllocation tells whether an answer is about what the claim was given.
func matchesAllocation(claim *resourceapi.ResourceClaim, a answer, tellsShares bool) error {
	asked := "NodePrepareResources of " + describe(claim)
	for _, d := range a {
		r := resultOf(claim, d.PoolName, d.DeviceName, d.GetShareId())
		if r == nil && !tellsShares {
			for i, other := range claim.Status.Allocation.Devices.Results {
				if other.Pool == d.PoolName && other.Device == d.DeviceName {
					r = &claim.Status.Allocation.Devices.Results[i]
				}
			}
		}
		if r == nil {
			return violated(asked, "%s: the claim was not given that, or the share ID is another", answer{d})
		}
		// An empty list stands for all requests of the claim.
		request := resourceclaim.BaseRequestRef(r.Request)
		if len(d.RequestNames) > 0 && !slices.Contains(d.RequestNames, request) {
			return violated(asked, "%s: the device was allocated for request %s", answer{d}, request)
		}
	}
	return nil
}

func namesAllThatWasAllocated(c *scope) error {
	claim, err := c.oneClaim()
	if err != nil {
		return err
	}
	a, err := c.prepareOne(claim)
	if err != nil {
		return err
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if !slices.ContainsFunc(a, func(d *drapb.Device) bool { return d.PoolName == r.Pool && d.DeviceName == r.Device }) {
			return violated("NodePrepareResources of "+describe(claim), "%s: nothing about %s/%s", a, r.Pool, r.Device)
		}
	}
	return nil
}

func againGivesTheSame(c *scope) error {
	claims, err := c.someClaims(3)
	if err != nil {
		return err
	}
	first, err := c.prepare(claims...)
	if err != nil {
		return err
	}
	if err := c.sameAnswers(first, "NodePrepareResources a second time of "); err != nil {
		return err
	}
	// The kubelet asks for each pod by itself after its restart.
	for _, claim := range claims {
		again, err := c.prepareOne(claim)
		if err != nil {
			return err
		}
		if again.String() != first[claim].String() {
			return violated("NodePrepareResources a second time, in a call of its own, of "+describe(claim), "%s\nfirst:    %s", again, first[claim])
		}
	}
	return nil
}

// sameAnswers prepares the claims of the answers again, in one call.
func (c *scope) sameAnswers(first map[*resourceapi.ResourceClaim]answer, asked string) error {
	var claims []*resourceapi.ResourceClaim
	for claim := range first {
		claims = append(claims, claim)
	}
	slices.SortFunc(claims, func(a, b *resourceapi.ResourceClaim) int { return strings.Compare(a.Name, b.Name) })
	again, err := c.prepare(claims...)
	if err != nil {
		return err
	}
	for claim, a := range again {
		if a.String() != first[claim].String() {
			return violated(asked+describe(claim), "%s\nfirst:    %s", a, first[claim])
		}
	}
	return nil
}

func oneClaimManyRequests(c *scope) error {
	all, err := c.usable()
	if err != nil {
		return err
	}
	if len(all) < 2 {
		return doesNotApply("the node has only one usable device")
	}
	claim, err := c.claim(all[:2]...)
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
	for _, d := range a {
		if len(d.RequestNames) != 1 {
			return violated("NodePrepareResources of "+describe(claim), "%s: the device is for %d requests, it was allocated for one", answer{d}, len(d.RequestNames))
		}
	}
	return nil
}

func worksAfterUnprepare(c *scope) error {
	claim, err := c.oneClaim()
	if err != nil {
		return err
	}
	for range 2 {
		a, err := c.prepareOne(claim)
		if err != nil {
			return err
		}
		if err := c.injectable(claim, a); err != nil {
			return err
		}
		if err := c.unprepare(claim); err != nil {
			return err
		}
	}
	return nil
}

func ignoresParametersForOthers(c *scope) error {
	all, err := c.usable()
	if err != nil {
		return err
	}
	claim, err := c.claimWith(all[:1], configuration("other.example.com", []byte(`{"apiVersion":"other.example.com/v1","kind":"Unknown","x":1}`)))
	if err != nil {
		return err
	}
	_, err = c.prepare(claim)
	return err
}

func adminAccessBesideTheHolder(c *scope) error {
	all, err := c.usable()
	if err != nil {
		return err
	}
	// The allocator wants to see room on a shareable device for admin access
	// too, though it is not taken; so the monitoring claim comes first.
	monitoring, err := c.claim(request{device: all[0].device, admin: true})
	if errors.Is(err, errNoRoom) {
		return doesNotApply("the scheduler gives no admin access to %s", all[0].device)
	}
	if err != nil {
		return err
	}
	holder, err := c.claim(all[0])
	if err != nil {
		return err
	}
	held, err := c.prepareOne(holder)
	if err != nil {
		return err
	}
	a, err := c.prepareOne(monitoring)
	if err != nil {
		return fmt.Errorf("(with admin access)\n%w", err)
	}
	if err := c.injectable(monitoring, a); err != nil {
		return err
	}
	if err := c.unprepare(monitoring); err != nil {
		return err
	}
	if err := c.injectable(holder, held); err != nil {
		return fmt.Errorf("(after the claim with admin access was unprepared)\n%w", err)
	}
	return nil
}
