package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/sluice-gpu/sluice/driver"
	"github.com/sluice-gpu/sluice/driver/limit"
	"github.com/sluice-gpu/sluice/driver/state"
)

// removeDeadSockets takes away sockets that instances left which were killed.
// A living one accepts connections; it may be the instance that this one is
// about to replace.
func (d *Driver) removeDeadSockets(ctx context.Context) {
	for _, pattern := range []string{
		filepath.Join(d.cfg.PluginDir, "dra*.sock"),
		filepath.Join(d.cfg.RegistryDir, driver.Name+"-*reg.sock"),
	} {
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			conn, err := net.DialTimeout("unix", name, time.Second)
			if err == nil {
				_ = conn.Close()
				continue
			}
			if errors.Is(err, unix.ECONNREFUSED) {
				klog.FromContext(ctx).Info("Removed the socket of an instance that was killed", "socket", name, "result", os.Remove(name))
			}
		}
	}
}

// settle brings files and checkpoint into step after a start: what a process
// left that died half way, and what a reboot made untrue.
func (d *Driver) settle(ctx context.Context) error {
	return d.store.Update(func(cp *state.Checkpoint) error {
		swept, held, err := d.files.sweep(cp)
		for _, uid := range swept {
			klog.FromContext(ctx).Info("Removed files of a claim that is not prepared", "uid", uid)
		}
		for _, uid := range held {
			klog.FromContext(ctx).Error(nil, "Containers use a claim whose record cannot be read; its files are kept until it is unprepared, and its share is not counted", "uid", uid)
		}
		if err := errors.Join(err, d.files.sweepTemporary()); err != nil {
			return fmt.Errorf("sweeping: %w", err)
		}
		d.settleBackends(ctx, cp)
		return nil
	})
}

// settleBackends has the backends end what no prepared share needs.
func (d *Driver) settleBackends(ctx context.Context, cp *state.Checkpoint) {
	if err := d.files.settle(ctx, cp); err != nil {
		klog.FromContext(ctx).Error(err, "What no share needs is still there; trying again later")
	}
}

// tendInterval is the time between two looks at what backends have running
// beside containers.
const tendInterval = 2 * time.Second

// tendLoop has backends mend what died.
func (d *Driver) tendLoop(ctx context.Context) {
	tick := time.NewTicker(tendInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		cp, err := d.store.Look()
		if err != nil || !d.files.settlers(cp) {
			continue
		}
		err = d.store.Update(func(cp *state.Checkpoint) error {
			d.settleBackends(ctx, cp)
			return nil
		})
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "What holds shares cannot be tended; trying again", "every", tendInterval)
		}
	}
}

// reconcileLoop releases claims whose Unprepare never came.
func (d *Driver) reconcileLoop(ctx context.Context) {
	gone := map[types.UID]state.Claim{}
	for pass := 0; ; pass++ {
		var err error
		// By the second pass an instance that this one replaced has ended and
		// uses no version of its own any more.
		if pass == 1 {
			d.collect(ctx)
		}
		if gone, err = d.reconcile(ctx, gone); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Prepared claims cannot be compared with the API server; trying again", "every", d.cfg.ReconcileInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(d.cfg.ReconcileInterval):
		}
	}
}

// reconcile asks the API server for every prepared claim. A claim that does
// not exist, or is not allocated, and was so at the pass before (goneBefore),
// is released. Once is not enough: the containers of a claim that was deleted
// by force run on until the kubelet ends them, and the kubelet then calls
// Unprepare itself. A claim is never released while processes use it or
// containers have its files mounted. The result is for the next pass.
func (d *Driver) reconcile(ctx context.Context, goneBefore map[types.UID]state.Claim) (map[types.UID]state.Claim, error) {
	prepared, err := d.store.Look()
	if err != nil {
		return goneBefore, err
	}
	gone := map[types.UID]state.Claim{}
	var errs []error
	for _, c := range prepared.Claims() {
		is, err := d.isGone(ctx, c)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if is {
			gone[c.UID] = c
		}
	}
	mounted := sync.OnceValues(func() (mounts, error) { return mountsOf(d.files.proc) })
	err = d.store.Update(func(cp *state.Checkpoint) error {
		for uid, c := range gone {
			before, twice := goneBefore[uid]
			now, still := cp.Get(uid)
			// A claim that was prepared anew meanwhile is another one.
			if !twice || !still || !reflect.DeepEqual(before, c) || !reflect.DeepEqual(now, c) {
				continue
			}
			if d.files.inUse(c, cp, mounted) {
				klog.FromContext(ctx).Info("A claim ended in the API and its containers may still run; its shares are kept", "claim", klog.KRef(c.Namespace, c.Name), "uid", uid)
				continue
			}
			if err := errors.Join(d.files.remove(uid), d.files.removeMetadata(c)); err != nil {
				errs = append(errs, err)
				continue
			}
			cp.Remove(uid)
			delete(gone, uid)
			klog.FromContext(ctx).Info("Released a claim that ended while nobody unprepared it", "claim", klog.KRef(c.Namespace, c.Name), "uid", uid)
		}
		d.settleBackends(ctx, cp)
		return nil
	})
	return gone, errors.Join(append(errs, err)...)
}

func (d *Driver) isGone(ctx context.Context, c state.Claim) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	claim, err := d.cfg.KubeClient.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, err
	}
	return claim.UID != c.UID || claim.Status.Allocation == nil, nil
}

// collect removes versions of installed files that nothing uses any more.
func (d *Driver) collect(ctx context.Context) {
	log := klog.FromContext(ctx)
	err := d.store.Update(func(cp *state.Checkpoint) error {
		var named strings.Builder
		for _, path := range d.cfg.Installed {
			named.WriteString(path)
		}
		for _, uid := range cp.Order() {
			b, err := os.ReadFile(d.files.specPath(uid))
			if err != nil {
				return err // what cannot be read may name anything
			}
			named.Write(b)
		}
		done := map[string]bool{}
		for _, path := range d.cfg.Installed {
			dir := filepath.Dir(filepath.Dir(path))
			if done[dir] {
				continue
			}
			done[dir] = true
			gone, err := limit.Collect(dir, func(version string) bool {
				return strings.Contains(named.String(), filepath.Join(dir, version)+"/")
			})
			if err != nil {
				return err
			}
			if len(gone) > 0 {
				log.Info("Removed versions that nothing uses", "dir", dir, "versions", gone)
			}
		}
		return nil
	})
	if err != nil {
		log.Error(err, "Old versions of installed files are kept")
	}
}
