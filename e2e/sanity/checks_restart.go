package sanity

import (
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

var restartChecks = []Check{
	{
		Name:     "restart/keeps-what-is-prepared",
		Contract: "Pods run on while the driver is stopped and started, as in an upgrade. Their CDI devices stay, so that containers can restart, and a claim that is prepared again gets the same answer.",
		Source:   srcHelper + ".UnprepareResourceClaims",
		Restarts: true,
		run:      func(c *scope) error { return keepsWhatIsPrepared(c, c.terminate) },
	},
	{
		Name:     "restart/keeps-what-is-prepared-after-a-crash",
		Contract: "The same holds when the driver is killed.",
		Source:   srcHelper + ".UnprepareResourceClaims",
		Restarts: true,
		run:      func(c *scope) error { return keepsWhatIsPrepared(c, c.crash) },
	},
	{
		Name:     "restart/unprepares-what-an-earlier-instance-prepared",
		Contract: "NodeUnprepareResources may come to another process than NodePrepareResources.",
		Source:   srcHelper + ".UnprepareResourceClaims",
		Restarts: true,
		run:      unpreparesOfAnEarlierInstance,
	},
	{
		Name:     "restart/killed-during-prepare",
		Contract: "A driver that is killed in the middle of NodePrepareResources is asked again for the same claims. Then they are prepared, and after NodeUnprepareResources nothing of either attempt is left.",
		Source:   srcHelper + ".PrepareResourceClaims",
		Restarts: true,
		run:      killedDuringPrepare,
	},
	{
		Name:     "restart/publishes-the-same-devices",
		Contract: "Devices keep their names over a restart: allocations name them.",
		Source:   srcKEP,
		Restarts: true,
		run:      publishesTheSameDevices,
	},
	{
		Name:     "restart/does-not-rewrite-slices",
		Contract: "A driver that starts takes over slices that are right already.",
		Source:   "k8s.io/dynamic-resource-allocation/resourceslice",
		Level:    Should,
		Restarts: true,
		run:      doesNotRewriteSlices,
	},
	{
		Name:     "restart/claim-gone-while-it-was-down",
		Contract: "A claim that was force-deleted while the driver was down can be unprepared afterwards by its UID, and nothing of it is left then.",
		Source:   srcHelper + ".UnprepareResourceClaims",
		Restarts: true,
		run:      claimGoneWhileDown,
	},
	{
		Name:     "restart/cleans-up-by-itself",
		Contract: "A claim that was force-deleted and whose NodeUnprepareResources never comes, because the kubelet lost its state too, is found by the driver and cleaned up.",
		Source:   "public reports against DRA drivers",
		Level:    Should,
		Restarts: true,
		run:      cleansUpByItself,
	},
}

// claimsForRestart are claims of all kinds that the node allows, one at least.
func (c *scope) claimsForRestart() ([]*resourceapi.ResourceClaim, error) {
	claims, err := c.someClaims(3)
	if err == nil {
		return claims, nil
	}
	claim, err := c.oneClaim()
	return []*resourceapi.ResourceClaim{claim}, err
}

func keepsWhatIsPrepared(c *scope, stop func() error) error {
	claims, err := c.claimsForRestart()
	if err != nil {
		return err
	}
	before := c.cdiNames()
	first, err := c.prepare(claims...)
	if err != nil {
		return err
	}
	err = c.restart(c.ctx, func() error {
		if err := stop(); err != nil {
			return err
		}
		return c.allInjectable(first, "while the driver is down")
	})
	if err != nil {
		return err
	}
	if err := c.allInjectable(first, "after the driver was started again"); err != nil {
		return err
	}
	if err := c.sameAnswers(first, "NodePrepareResources, after the driver was started again, of "); err != nil {
		return err
	}
	if err := c.allInjectable(first, "after the driver was started again and asked again"); err != nil {
		return err
	}
	if err := c.unprepare(claims...); err != nil {
		return err
	}
	return c.nothingNewInCDI(before, "CDI devices after a restart of the driver and NodeUnprepareResources")
}

func (c *scope) allInjectable(answers map[*resourceapi.ResourceClaim]answer, when string) error {
	for claim, a := range answers {
		if err := c.injectable(claim, a); err != nil {
			return fmt.Errorf("(%s)\n%w", when, err)
		}
	}
	return nil
}

func unpreparesOfAnEarlierInstance(c *scope) error {
	claims, err := c.claimsForRestart()
	if err != nil {
		return err
	}
	before := c.cdiNames()
	if _, err := c.prepare(claims...); err != nil {
		return err
	}
	if err := c.restart(c.ctx, c.crash); err != nil {
		return err
	}
	if err := c.unprepare(claims...); err != nil {
		return err
	}
	return c.nothingNewInCDI(before, "CDI devices after NodePrepareResources, a crash of the driver, its start, and NodeUnprepareResources")
}

func killedDuringPrepare(c *scope) error {
	claims, err := c.claimsForRestart()
	if err != nil {
		return err
	}
	before := c.cdiNames()
	// A call takes from one to some tens of milliseconds; the kills fall before
	// it, into it and after it.
	for _, after := range []time.Duration{time.Millisecond, 4 * time.Millisecond, 16 * time.Millisecond} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = c.plugin.prepare(c.ctx, allOnWire(claims)...)
		}()
		time.Sleep(after)
		c.proc.kill()
		<-done
		if err := c.ready(c.ctx); err != nil {
			return err
		}
		answers, err := c.prepare(claims...)
		if err != nil {
			return fmt.Errorf("(after the driver was killed %s into NodePrepareResources)\n%w", after, err)
		}
		if err := c.allInjectable(answers, fmt.Sprintf("after the driver was killed %s into NodePrepareResources and asked again", after)); err != nil {
			return err
		}
		if err := c.unprepare(claims...); err != nil {
			return err
		}
		if err := c.nothingNewInCDI(before, "CDI devices after NodePrepareResources in which the driver was killed, the same again, and NodeUnprepareResources"); err != nil {
			return err
		}
	}
	return nil
}

func publishesTheSameDevices(c *scope) error {
	before, err := c.published(c.ctx)
	if err != nil {
		return err
	}
	if err := c.restart(c.ctx, c.terminate); err != nil {
		return err
	}
	asked := "the devices after a restart of the driver"
	err = eventually(c.ctx, 5*time.Second, func() error {
		after, err := c.published(c.ctx)
		if err != nil {
			return err
		}
		if was, is := names(devicesOf(before)), names(devicesOf(after)); was != is {
			return violated(asked, "%s\nbefore:   %s", is, was)
		}
		return nil
	})
	return err
}

func doesNotRewriteSlices(c *scope) error {
	before, err := c.published(c.ctx)
	if err != nil {
		return err
	}
	if err := c.restart(c.ctx, c.terminate); err != nil {
		return err
	}
	pause(c.ctx, min(3*time.Second, c.d.Quiet))
	after, err := c.published(c.ctx)
	if err != nil {
		return err
	}
	if versions(before) != versions(after) {
		return violated("the slices before and after a restart of the driver", "before %s\nafter  %s", versions(before), versions(after))
	}
	return nil
}

// loseClaim prepares a claim and deletes it while the driver is down.
func (c *scope) loseClaim() (*resourceapi.ResourceClaim, map[string]bool, error) {
	claim, err := c.oneClaim()
	if err != nil {
		return nil, nil, err
	}
	before := c.cdiNames()
	if _, err := c.prepare(claim); err != nil {
		return nil, nil, err
	}
	err = c.restart(c.ctx, func() error {
		if err := c.terminate(); err != nil {
			return err
		}
		return c.forceDelete(c.ctx, claim)
	})
	return claim, before, err
}

func claimGoneWhileDown(c *scope) error {
	claim, before, err := c.loseClaim()
	if err != nil {
		return err
	}
	if err := c.unprepare(claim); err != nil {
		return err
	}
	return c.nothingNewInCDI(before, "CDI devices after NodeUnprepareResources of a claim that was force-deleted while the driver was down")
}

func cleansUpByItself(c *scope) error {
	if c.d.Reconcile <= 0 {
		return doesNotApply("the suite was not told how long the driver may take (Driver.Reconcile, --reconcile)")
	}
	_, before, err := c.loseClaim()
	if err != nil {
		return err
	}
	return eventually(c.ctx, c.d.Reconcile, func() error {
		return c.nothingNewInCDI(before, fmt.Sprintf("CDI devices %s after a claim was force-deleted while the driver was down", c.d.Reconcile))
	})
}
