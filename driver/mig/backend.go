package mig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/driver/enforce"
)

// Backend is the enforcement of MIG devices. The card holds them; with a
// limiter, their containers get it with a limit that says "whole", as those of
// whole cards do, because a container may have a slice of another card as well
// and has one libcuda.
type Backend struct {
	Instances *Instances
	// Limiter is the node's, nil: none.
	Limiter enforce.Backend
	// SharesDir has the folders of claims that have files, by UID. Where an
	// owner's folder is kept, its containers may run.
	SharesDir string
}

func whole(s enforce.Share) enforce.Share {
	s.Whole, s.Cores, s.CorePolicy = true, 0, ""
	return s
}

// Prepare implements enforce.Backend.
func (b *Backend) Prepare(ctx context.Context, s enforce.Share) (enforce.Result, error) {
	if there, err := b.device(s); err != nil || !there {
		return enforce.Result{}, errors.Join(err, fmt.Errorf("the MIG device %v of the share is not there: it was destroyed, or the card is gone; delete the pod", s.Cards))
	}
	if b.Limiter == nil {
		return enforce.Result{}, nil
	}
	return b.Limiter.Prepare(ctx, whole(s))
}

// There implements enforce.Backend.
func (b *Backend) There(s enforce.Share) bool {
	there, err := b.device(s)
	return err == nil && there && (b.Limiter == nil || b.Limiter.There(whole(s)))
}

func (b *Backend) device(s enforce.Share) (bool, error) {
	if len(s.Cards) != 1 {
		return false, nil
	}
	return b.Instances.Cards.HasDevice(s.Cards[0])
}

// InUse implements enforce.Backend.
func (b *Backend) InUse(s enforce.Share) bool {
	return b.Limiter != nil && b.Limiter.InUse(whole(s))
}

// Settle implements enforce.Settler: it destroys the instances that no live
// share has.
func (b *Backend) Settle(_ context.Context, live []enforce.Share) error {
	all, err := b.Instances.records()
	errs := []error{err}
	if len(all) == 0 {
		return err
	}
	boot, err := b.Instances.Boot()
	if err != nil {
		return err
	}
	for _, r := range all {
		lives := slices.ContainsFunc(live, func(s enforce.Share) bool {
			return s.Device == r.Device && s.MIG != nil && s.MIG.Claim == r.Claim
		})
		if r.Boot == boot && (lives || b.kept(r.Claim)) {
			continue
		}
		if err := b.Instances.end(r, boot); err != nil {
			errs = append(errs, fmt.Errorf("instance %s of claim %s: %w", r.Device, r.owner(), err))
		}
	}
	return errors.Join(errs...)
}

// kept tells whether an owner has files on the host still.
func (b *Backend) kept(claim types.UID) bool {
	_, err := os.Stat(filepath.Join(b.SharesDir, string(claim)))
	return err == nil
}
