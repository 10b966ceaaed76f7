package sanity

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

var cdiChecks = []Check{
	{
		Name:     "cdi/ids-resolve",
		Contract: "Each CDI ID of an answer is a qualified name that the container runtime finds in its folders, in a spec without faults, as soon as the answer is there.",
		Source:   srcCDI,
		run:      idsResolve,
	},
	{
		Name:     "cdi/injection-is-valid",
		Contract: "The edits of a claim's CDI devices make a container that can start: absolute paths, and device nodes, mounts and hooks that exist on the node.",
		Source:   srcCDI + "; OCI runtime specification",
		run:      injectionIsValid,
	},
	{
		Name:     "cdi/claims-of-a-pod-together",
		Contract: "A container may use all claims of its pod. The runtime injects the CDI devices of all of them into it.",
		Source:   srcCDI,
		run:      claimsOfAPodTogether,
	},
	{
		Name:     "cdi/each-claim-has-ids-of-its-own",
		Contract: "Each claim has a CDI ID that no other claim has, for what a container gets, and when it is taken away, is by claim. Further IDs may be common to all.",
		Source:   srcHelper + ".PrepareResourceClaims",
		run:      eachClaimHasIDsOfItsOwn,
	},
	{
		Name:     "cdi/ids-are-not-used-again",
		Contract: "A runtime may have kept an old spec in its cache. IDs that come and go with claims are not used again for another claim.",
		Source:   srcHelper + ".PrepareResourceClaims",
		Level:    Should,
		run:      idsAreNotUsedAgain,
	},
}

func idsResolve(c *scope) error {
	claim, err := c.oneClaim()
	if err != nil {
		return err
	}
	a, err := c.prepareOne(claim)
	if err != nil {
		return err
	}
	if len(a.ids()) == 0 {
		return doesNotApply("the driver answers without CDI IDs, which is allowed: %s", a)
	}
	_, err = c.resolvable(claim, a)
	return err
}

func injectionIsValid(c *scope) error {
	all, err := c.usable()
	if err != nil {
		return err
	}
	for _, r := range all[:min(len(all), 4)] {
		claim, err := c.claim(r)
		if err != nil {
			continue // taken by an earlier one
		}
		a, err := c.prepareOne(claim)
		if err != nil {
			return err
		}
		if err := c.injectable(claim, a); err != nil {
			return err
		}
	}
	return nil
}

func claimsOfAPodTogether(c *scope) error {
	claims, err := c.someClaims(4)
	if err != nil {
		return err
	}
	answers, err := c.prepare(claims...)
	if err != nil {
		return err
	}
	var ids []string
	for claim, a := range answers {
		if _, err := c.resolvable(claim, a); err != nil {
			return err
		}
		ids = append(ids, a.ids()...)
	}
	slices.Sort(ids)
	cache, err := c.runtimeCache()
	if err != nil {
		return err
	}
	return inject(cache, "injection of the CDI devices of "+describe(claims...)+" into one container", ids)
}

func eachClaimHasIDsOfItsOwn(c *scope) error {
	claims, err := c.someClaims(4)
	if err != nil {
		return err
	}
	answers, err := c.prepare(claims...)
	if err != nil {
		return err
	}
	return ownIDs(answers)
}

// ownIDs tells whether each of the answers has an ID that no other has.
func ownIDs(answers map[*resourceapi.ResourceClaim]answer) error {
	for a, ids := range answers {
		for b, others := range answers {
			if a != b && len(ids.ids()) > 0 && len(common(ids.ids(), others.ids())) == len(ids.ids()) {
				return violated("NodePrepareResources of "+describe(a, b), "the second has all IDs of the first: %s", strings.Join(ids.ids(), ", "))
			}
		}
	}
	return nil
}

func common(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(id string) bool { return !slices.Contains(b, id) })
}

func idsAreNotUsedAgain(c *scope) error {
	all, err := c.usable()
	if err != nil {
		return err
	}
	before := c.cdiNames()
	first, err := c.claim(all[0])
	if err != nil {
		return err
	}
	a, err := c.prepareOne(first)
	if err != nil {
		return err
	}
	if err := c.unprepare(first); err != nil {
		return err
	}
	if err := c.forceDelete(c.ctx, first); err != nil {
		return err
	}
	second, err := c.claim(all[0])
	if err != nil {
		return err
	}
	b, err := c.prepareOne(second)
	if err != nil {
		return err
	}
	again := slices.DeleteFunc(common(a.ids(), b.ids()), func(id string) bool { return before[id] })
	if len(again) > 0 {
		return violated("NodePrepareResources of "+describe(second)+" after the device was used for another claim", "the IDs of that claim come back: %s", strings.Join(again, ", "))
	}
	return nil
}
