package plugin

import (
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/monitor"
)

// startWatching makes the monitor, which runs as long as the driver does.
func (d *Driver) startWatching() {
	d.monitor = monitor.New(monitor.Config{
		NodeName:   d.cfg.NodeName,
		KubeClient: d.cfg.KubeClient,
		Cards:      d.cfg.Use,
		Shares:     d.watched,
		MemoryFile: filepath.Join(d.cfg.PluginDir, "context-overhead.json"),
		LockFile:   filepath.Join(d.cfg.PluginDir, "monitor.lock"),
		Kill:       d.tolerance,
		Interval:   d.cfg.MonitorInterval,
	})
	d.files.overhead = d.monitor.Start
	if d.cfg.Registerer != nil {
		if err := d.cfg.Registerer.Register(d.monitor); err != nil {
			klog.Background().Error(err, "The metrics of shares are not served")
		}
	}
}

// tolerance is for how long a share may be above its limit before its processes
// are ended; 0: for ever.
func (d *Driver) tolerance() time.Duration {
	v := d.violations.Load()
	if v == nil || v.Policy != config.Kill {
		return 0
	}
	return v.After.Duration
}

// watched are the prepared shares, a share of each card for one that opens all.
func (d *Driver) watched() ([]monitor.Share, error) {
	cp, err := d.store.Look()
	if err != nil {
		return nil, err
	}
	var out []monitor.Share
	for _, c := range cp.Claims() {
		uid := c.UID
		for _, s := range c.Shares {
			if s.Admin {
				for _, card := range s.Cards {
					out = append(out, monitor.Share{
						Name: deviceName(uid, s) + "-" + card, Claim: types.NamespacedName{Namespace: c.Namespace, Name: c.Name},
						ClaimUID: uid, Device: s.Device, Card: card, Admin: true,
					})
				}
				continue
			}
			if len(s.Cards) != 1 {
				continue
			}
			w := monitor.Share{
				Name:     deviceName(uid, s),
				Claim:    types.NamespacedName{Namespace: c.Namespace, Name: c.Name},
				ClaimUID: uid,
				ShareID:  s.ShareID,
				Device:   s.Device,
				Card:     s.Cards[0],
				Limit:    uint64(s.MemoryMi) * gpu.Mi,
				Cores:    s.Cores,
			}
			if s.Limited && !s.Whole { // nothing is charged to a whole card
				w.Dir = filepath.Join(d.files.claimDir(uid), w.Name)
			}
			out = append(out, w)
		}
	}
	return out, nil
}
