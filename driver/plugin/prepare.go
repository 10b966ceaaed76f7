package plugin

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/slicing"
	"github.com/sluice-gpu/sluice/driver/state"
)

// PrepareResourceClaims makes the claims of one pod usable on this node.
//
// It is idempotent by claim UID: a claim of the checkpoint whose files are
// there gets the answer it got before, without a look at the cards. The
// kubelet asks again after each restart of its own, and for every further pod
// that shares the claim.
func (d *Driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	start := time.Now()
	log := klog.FromContext(ctx)
	plan := d.plan()
	results := map[types.UID]kubeletplugin.PrepareResult{}
	err := d.store.Update(func(cp *state.Checkpoint) error {
		for _, claim := range claims {
			shares, err := d.wanted(cp, claim, plan)
			if err == nil {
				err = d.prepare(ctx, cp, claim, shares, plan)
			}
			if err != nil {
				results[claim.UID] = kubeletplugin.PrepareResult{Err: err}
				continue
			}
			prepared, _ := cp.Get(claim.UID)
			results[claim.UID] = d.answer(prepared, plan)
		}
		return nil
	})
	if err != nil {
		d.metrics.prepared(start, err)
		return nil, err
	}
	for _, claim := range claims {
		r := results[claim.UID]
		if awaited(ctx, claim.UID, r.Err) {
			log.Info("Claim waits", "claim", klog.KObj(claim), "uid", claim.UID, "for", r.Err)
			continue
		}
		d.metrics.prepared(start, r.Err)
		if r.Err != nil {
			log.Error(r.Err, "Claim refused", "claim", klog.KObj(claim), "uid", claim.UID)
			continue
		}
		log.V(2).Info("Claim prepared", "claim", klog.KObj(claim), "uid", claim.UID, "devices", devicesOf(r), "took", time.Since(start).Round(time.Microsecond))
	}
	return results, nil
}

// wanted are the shares that a claim was given: as recorded if it is prepared
// and was not allocated anew since, else as the allocation says.
func (d *Driver) wanted(cp *state.Checkpoint, claim *resourceapi.ResourceClaim, plan *slicing.Plan) ([]state.Share, error) {
	if have, ok := cp.Get(claim.UID); ok && sameAllocation(have, claim) {
		return have.Shares, nil
	}
	if plan == nil {
		return nil, errors.New("the cards of the node are not known yet")
	}
	shares, err := d.sharesOf(claim, plan)
	if err != nil {
		return nil, err
	}
	if len(shares) == 0 {
		return nil, errors.New("the allocation has no device of this driver")
	}
	return shares, nil
}

// prepare makes the claim's files unless they are there and says so in the
// checkpoint.
//
// Every share that can have a limit gets the limiter, whole cards with a limit
// that says "whole" and costs their programs nothing. A container that has a
// slice and a whole card has one libcuda, whichever claim the runtime applies
// last, and nobody can know here who is in its pod: the kubelet leaves out
// claims that it had prepared for another pod.
func (d *Driver) prepare(ctx context.Context, cp *state.Checkpoint, claim *resourceapi.ResourceClaim, shares []state.Share, plan *slicing.Plan) error {
	c := state.Claim{UID: claim.UID, Namespace: claim.Namespace, Name: claim.Name}
	for _, s := range shares {
		if enforcementOf(s) == config.None && d.limitable(s) {
			s.Enforcement = string(config.Limiter) // the driver had no limiter when it was prepared
		}
		s.Limited = enforcementOf(s) == config.Limiter
		c.Shares = append(c.Shares, s)
	}
	have, again := cp.Get(claim.UID)
	again = again && sameAllocation(have, claim)
	if again && reflect.DeepEqual(have, c) && d.files.there(c) {
		return nil
	}
	if again {
		// Containers may run with what is there: complete it, and if that
		// fails keep what there is.
		if err := d.files.make(ctx, c, cp.BootID); err != nil {
			return err
		}
		cp.Put(c)
		return nil
	}
	if err := d.files.remove(claim.UID); err != nil {
		return err
	}
	cp.Remove(claim.UID)
	if err := fits(cp, claim, shares, plan); err != nil {
		return err
	}
	err := d.instances(ctx, cp, c)
	if err == nil {
		err = d.files.make(ctx, c, cp.BootID)
	}
	if err != nil {
		err = errors.Join(err, d.files.remove(claim.UID))
		d.settleBackends(ctx, cp)
		return err
	}
	cp.Put(c)
	return nil
}

// limitable tells whether the limiter is for the share: it opens one card, is
// counted against it, and nobody said that nothing or something else holds it.
func (d *Driver) limitable(s state.Share) bool {
	_, ok := d.files.backends[config.Limiter]
	return ok && !s.Admin && s.Enforcement == ""
}

// sameAllocation tells whether the record was made for the claim's present
// allocation. A claim that nobody used may be deallocated and allocated
// again under the same UID; its share IDs are new then.
func sameAllocation(have state.Claim, claim *resourceapi.ResourceClaim) bool {
	results := allocated(claim)
	if len(results) != len(have.Shares) {
		return false
	}
	for i, r := range results {
		s := have.Shares[i]
		var id types.UID
		if r.ShareID != nil {
			id = *r.ShareID
		}
		if s.Request != r.Request || s.Pool != r.Pool || s.Device != r.Device || s.ShareID != id {
			return false
		}
	}
	return true
}

// answer tells the kubelet which CDI device belongs to which request.
func (d *Driver) answer(c state.Claim, plan *slicing.Plan) kubeletplugin.PrepareResult {
	var r kubeletplugin.PrepareResult
	attributes := attributesOf(plan)
	for _, s := range c.Shares {
		dev := kubeletplugin.Device{
			Requests:     []string{s.Request},
			PoolName:     s.Pool,
			DeviceName:   s.Device,
			CDIDeviceIDs: []string{cdiID(c.UID, s)},
			Metadata:     &kubeletplugin.DeviceMetadata{Attributes: attributes[s.Device]},
		}
		if s.ShareID != "" {
			id := s.ShareID
			dev.ShareID = &id
		}
		r.Devices = append(r.Devices, dev)
	}
	return r
}

// UnprepareResourceClaims forgets claims whose pods are gone. It knows them by
// UID alone: the objects may be deleted, and a claim it does not know is
// unprepared already.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	log := klog.FromContext(ctx)
	results := map[types.UID]error{}
	err := d.store.Update(func(cp *state.Checkpoint) error {
		for _, c := range claims {
			results[c.UID] = nil
			if err := d.files.remove(c.UID); err != nil {
				results[c.UID] = fmt.Errorf("removing the files of claim %s: %w", c, err)
				continue
			}
			cp.Remove(c.UID)
			log.V(2).Info("Claim unprepared", "claim", c)
		}
		d.settleBackends(ctx, cp)
		return nil
	})
	return results, err
}

func devicesOf(r kubeletplugin.PrepareResult) []string {
	var out []string
	for _, dev := range r.Devices {
		out = append(out, dev.DeviceName)
	}
	return out
}
