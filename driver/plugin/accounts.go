package plugin

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/enforce"
)

// accountsInterval is the time between two looks at the accounts' sizes. What
// a tenant can write in it to the node's disk is what a container can write
// anywhere in that time.
const accountsInterval = 10 * time.Second

// accountsLoop keeps tenants from filling the node's disk with their accounts,
// which no limit of the container's own storage counts.
func (d *Driver) accountsLoop(ctx context.Context) {
	tick := time.NewTicker(accountsInterval)
	defer tick.Stop()
	for {
		d.trimAccounts(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// trimAccounts looks at all shares that have files, also those of claims that
// the checkpoint does not know.
func (d *Driver) trimAccounts(ctx context.Context) {
	limiter, ok := d.files.backends[config.Limiter].(enforce.Trimmer)
	if !ok {
		return
	}
	log := klog.FromContext(ctx)
	dirs, _ := filepath.Glob(filepath.Join(d.files.sharesDir, "*", "*", "account"))
	for _, name := range dirs {
		dir := filepath.Dir(name)
		over, err := limiter.Trim(dir)
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist): // it may be unprepared meanwhile
			log.Error(err, "An account cannot be kept to its size", "share", filepath.Base(dir))
		case over > 0:
			log.Info("A tenant made its account larger than it is; it was cut", "share", filepath.Base(dir), "bytes", over)
		}
	}
}
