package sanity

import (
	"fmt"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"k8s.io/apimachinery/pkg/util/uuid"
)

var unprepareChecks = []Check{
	{
		Name:     "unprepare/answers-every-claim",
		Contract: "The response has an entry for each claim of the request, without an error if the claim is not prepared any more.",
		Source:   srcProto,
		run:      unprepareAnswersEveryClaim,
	},
	{
		Name:     "unprepare/again",
		Contract: "A kubelet that was restarted unprepares again. A claim that is not prepared is no error.",
		Source:   srcHelper + ".UnprepareResourceClaims",
		run:      unprepareAgain,
	},
	{
		Name:     "unprepare/unknown-claim",
		Contract: "A kubelet unprepares every claim that it meant to prepare, also where the call never came. A claim that the driver never heard of is no error.",
		Source:   srcHelper + ".UnprepareResourceClaims; " + srcKubelet,
		run:      unprepareUnknown,
	},
	{
		Name:     "unprepare/claim-gone-from-the-api",
		Contract: "The claim may be deleted before it is unprepared. The driver does with namespace, name and UID and does not read the claim.",
		Source:   srcHelper + ".UnprepareResourceClaims",
		run:      unprepareGone,
	},
	{
		Name:     "unprepare/known-and-unknown-together",
		Contract: "A claim that is unknown or gone does not keep others of the same call from being unprepared.",
		Source:   srcProto,
		run:      unprepareTogether,
	},
	{
		Name:     "unprepare/leaves-nothing-in-cdi",
		Contract: "What NodePrepareResources added to the CDI folders, NodeUnprepareResources takes away: a container that starts later cannot get the devices by an old ID, and the folder does not grow.",
		Source:   srcHelper + ".PrepareResourceClaims",
		run:      leavesNothingInCDI,
	},
}

func unprepareAnswersEveryClaim(c *scope) error {
	claims, err := c.someClaims(4)
	if err != nil {
		return err
	}
	if _, err := c.prepare(claims...); err != nil {
		return err
	}
	return c.unprepare(claims...)
}

func unprepareAgain(c *scope) error {
	claim, err := c.oneClaim()
	if err != nil {
		return err
	}
	if _, err := c.prepare(claim); err != nil {
		return err
	}
	for range 2 {
		if err := c.unprepare(claim); err != nil {
			return err
		}
	}
	return nil
}

// unknown is a claim that was never in the API.
func (c *scope) unknown() *drapb.Claim {
	return &drapb.Claim{Namespace: c.namespace, Name: "never-there", Uid: string(uuid.NewUUID())}
}

func unprepareUnknown(c *scope) error {
	if err := c.unprepareWire(c.unknown()); err != nil {
		return err
	}
	// One that exists and is allocated, whose NodePrepareResources never came.
	claim, err := c.oneClaim()
	if err != nil {
		return err
	}
	return c.unprepare(claim)
}

func unprepareGone(c *scope) error {
	claim, err := c.oneClaim()
	if err != nil {
		return err
	}
	before := c.cdiNames()
	if _, err := c.prepare(claim); err != nil {
		return err
	}
	if err := c.forceDelete(c.ctx, claim); err != nil {
		return err
	}
	if err := c.unprepare(claim); err != nil {
		return fmt.Errorf("(after the claim was deleted from the API)\n%w", err)
	}
	return c.nothingNewInCDI(before, "CDI devices after NodeUnprepareResources of a claim that is gone from the API")
}

func unprepareTogether(c *scope) error {
	claims, err := c.someClaims(2)
	if err != nil {
		return err
	}
	before := c.cdiNames()
	if _, err := c.prepare(claims...); err != nil {
		return err
	}
	if err := c.forceDelete(c.ctx, claims[0]); err != nil {
		return err
	}
	if err := c.unprepareWire(c.unknown(), onWire(claims[0]), onWire(claims[1])); err != nil {
		return err
	}
	return c.nothingNewInCDI(before, "CDI devices after NodeUnprepareResources of an unknown claim, one that is gone from the API and one that is there")
}

func leavesNothingInCDI(c *scope) error {
	claims, err := c.someClaims(4)
	if err != nil {
		return err
	}
	before := c.cdiNames()
	answers, err := c.prepare(claims...)
	if err != nil {
		return err
	}
	for claim, a := range answers {
		if err := c.injectable(claim, a); err != nil {
			return err
		}
	}
	for i, claim := range claims {
		if err := c.unprepare(claim); err != nil {
			return err
		}
		// The others are still in use.
		for _, other := range claims[i+1:] {
			if err := c.injectable(other, answers[other]); err != nil {
				return fmt.Errorf("(after claim %s was unprepared)\n%w", claim.Name, err)
			}
		}
	}
	return c.nothingNewInCDI(before, "CDI devices after all claims were unprepared")
}
