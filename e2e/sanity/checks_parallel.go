package sanity

import (
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
)

var parallelChecks = []Check{
	{
		Name:     "parallel/same-claim",
		Contract: "A kubelet calls again when a call took too long, while the first may still run. All calls for a claim give the same answer, and one unprepare undoes them.",
		Source:   "pkg/kubelet/cm/dra/plugin/dra_plugin.go of Kubernetes (calls end after 45 s)",
		run:      parallelSameClaim,
	},
	{
		Name:     "parallel/different-claims",
		Contract: "Pods start and end at the same time, and the kubelet calls for each by itself. No call fails or is mixed up because of another.",
		Source:   srcKubelet,
		run:      parallelDifferentClaims,
	},
}

// each runs f for 0 to n-1 at the same time.
func each(n int, f func(int) error) error {
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- f(i) }()
	}
	var all []error
	for range n {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

func parallelSameClaim(c *scope) error {
	claim, err := c.oneClaim()
	if err != nil {
		return err
	}
	before := c.cdiNames()
	answers := make([]answer, 8)
	if err := each(len(answers), func(i int) (err error) {
		answers[i], err = c.prepareOne(claim)
		return err
	}); err != nil {
		return fmt.Errorf("(%d calls at the same time)\n%w", len(answers), err)
	}
	for _, a := range answers[1:] {
		if a.String() != answers[0].String() {
			return violated(fmt.Sprintf("NodePrepareResources %d times at the same time of %s", len(answers), describe(claim)), "once  %s\nonce  %s", answers[0], a)
		}
	}
	if err := c.injectable(claim, answers[0]); err != nil {
		return err
	}
	if err := c.unprepare(claim); err != nil {
		return err
	}
	return c.nothingNewInCDI(before, "CDI devices after a claim that was prepared many times was unprepared once")
}

func parallelDifferentClaims(c *scope) error {
	claims, err := c.someClaims(8)
	if err != nil {
		return err
	}
	const rounds = 13 // with 8 claims more than 200 calls
	before := c.cdiNames()
	err = each(len(claims), func(i int) error {
		for range rounds {
			a, err := c.prepareOne(claims[i])
			if err != nil {
				return err
			}
			if err := matchesAllocation(claims[i], a, c.plugin.offers(services[0].announced)); err != nil {
				return err
			}
			if err := c.injectable(claims[i], a); err != nil {
				return err
			}
			if err := c.unprepare(claims[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("(%d claims at the same time, each prepared and unprepared %d times)\n%w", len(claims), rounds, err)
	}
	// And all in use at once.
	answers := make([]answer, len(claims))
	if err := each(len(claims), func(i int) (err error) {
		answers[i], err = c.prepareOne(claims[i])
		return err
	}); err != nil {
		return err
	}
	all := map[*resourceapi.ResourceClaim]answer{}
	for i, claim := range claims {
		all[claim] = answers[i]
	}
	if err := ownIDs(all); err != nil {
		return err
	}
	if err := each(len(claims), func(i int) error { return c.unprepare(claims[i]) }); err != nil {
		return err
	}
	return c.nothingNewInCDI(before, "CDI devices after all claims were unprepared")
}
