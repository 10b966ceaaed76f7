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
		Name:     "restart/makes-lost-cdi-specs-anew",
		Contract: "The runtime's CDI folder is usually on tmpfs and empty after a reboot of the node, while the driver's own state is not. A claim that is prepared then has its CDI devices.",
		Source:   srcCDI + "; public reports against DRA drivers",
		Level:    Should,
		Restarts: true,
		run:      makesLostSpecsAnew,
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
		Name:     "restart/two-instances-overlap",
		Contract: "In a rolling update the new instance serves before the old one ends. It knows what the old one prepared, and the end of the old one takes away neither its sockets nor the slices.",
		Source:   "k8s.io/dynamic-resource-allocation/kubeletplugin, RollingUpdate",
		Restarts: true,
		run:      twoInstancesOverlap,
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

func makesLostSpecsAnew(c *scope) error {
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
		c.proc.kill()
		return c.removeSpecsAddedSince(before)
	})
	if err != nil {
		return err
	}
	again, err := c.prepare(claims...)
	if err != nil {
		return err
	}
	for claim := range first {
		if err := c.injectable(claim, again[claim]); err != nil {
			return fmt.Errorf("(after a reboot, in which the CDI specs were lost, and NodePrepareResources)\n%w", err)
		}
	}
	if err := c.unprepare(claims...); err != nil {
		return err
	}
	return c.nothingNewInCDI(before, "CDI devices after NodePrepareResources, a reboot, the same again, and NodeUnprepareResources")
}

func twoInstancesOverlap(c *scope) error {
	if !c.d.Overlap {
		return doesNotApply("the suite was not told that two instances may overlap (Driver.Overlap, --overlap)")
	}
	claims, err := c.claimsForRestart()
	if err != nil {
		return err
	}
	before, err := c.published(c.ctx)
	if err != nil {
		return err
	}
	specs := c.cdiNames()
	first, err := c.prepare(claims...)
	if err != nil {
		return err
	}
	old, oldSocket := c.proc, c.plugin.socket
	defer old.kill()
	c.proc = c.newProcess()
	if err := c.proc.start(); err != nil {
		return err
	}
	asked := "a second instance, with another POD_UID, to register while the first one serves"
	err = eventually(c.ctx, c.d.Patience, func() error {
		c.disconnect()
		p, err := find(c.ctx, c.d)
		if err != nil {
			return err
		}
		c.plugin = p
		if p.socket == oldSocket {
			return fmt.Errorf("the newest registration socket is still %s", oldSocket)
		}
		return nil
	})
	if err != nil {
		return violated(asked, "%v", err)
	}
	if err := c.sameAnswers(first, "NodePrepareResources, at a second instance, of "); err != nil {
		return err
	}
	if err := old.stop(c.d.Patience); err != nil {
		return err
	}
	pause(c.ctx, time.Second) // what the old one removes it has removed by now
	if err := c.proc.ended(); err != nil {
		return violated("the second instance to go on when the first one has ended", "%v", err)
	}
	for _, socket := range []string{c.plugin.socket, c.plugin.info.Endpoint} {
		if err := isSocket(socket); err != nil {
			return violated("the second instance's socket "+socket+" after the first one has ended", "%v", err)
		}
	}
	if err := c.sameAnswers(first, "NodePrepareResources, at the second instance after the first one has ended, of "); err != nil {
		return err
	}
	after, err := c.published(c.ctx)
	if err != nil {
		return err
	}
	if versions(before) != versions(after) {
		return violated("the slices before a second instance was started and after the first one has ended", "before %s\nafter  %s", versions(before), versions(after))
	}
	if err := c.unprepare(claims...); err != nil {
		return err
	}
	return c.nothingNewInCDI(specs, "CDI devices after the first instance prepared claims and the second one unprepared them")
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
