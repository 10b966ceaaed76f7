package monitor

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/monitor/rates"
	"github.com/sluice-gpu/sluice/hook/account"
)

// CoreUse tells how the time of a card was used, by process: gpu.Scanner's
// TimeUse. Cards that are no CoreUse leave the shares' own claims uncorrected.
type CoreUse interface {
	TimeUse(card string, since uint64) (gpu.TimeUse, uint64, error)
}

const (
	// coresEvery is the time between two decisions on rates.
	coresEvery = 100 * time.Millisecond
	// coreHeartbeat is the most time between two writes of a grant that holds
	// a share; the limiter takes one that is older than 2 s for left behind.
	coreHeartbeat = 500 * time.Millisecond
)

// cores divides the cards' time. It has a loop of its own, because NVML and the
// kernel's files can be slow and launches wait for rates.
type cores struct {
	m       *Monitor
	keeper  rates.Keeper
	begun   time.Time
	limits  map[string]account.Limit // by share
	looked  time.Time                // when utilization was last asked for
	since   map[string]uint64        // by card: NVML's time of it
	quiet   map[string]bool          // shares whose account could not be read last time
	refused map[string]bool          // cards that do not tell the use of their time
}

func newCores(m *Monitor) *cores {
	return &cores{m: m, begun: time.Now(), limits: map[string]account.Limit{}, since: map[string]uint64{}, quiet: map[string]bool{}, refused: map[string]bool{}}
}

func (c *cores) run(ctx context.Context) {
	tick := time.NewTicker(coresEvery)
	defer tick.Stop()
	for {
		c.look(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look is one decision. An error in listing shares is the other loop's to
// tell.
func (c *cores) look(ctx context.Context, now time.Time) {
	shares, err := c.m.cfg.Shares()
	if err != nil {
		return
	}
	shares = slices.DeleteFunc(shares, func(s Share) bool { return s.Dir == "" })
	readings := make([]rates.Reading, 0, len(shares))
	for _, s := range shares {
		if r, ok := c.read(ctx, s); ok {
			readings = append(readings, r)
		}
	}
	c.forget(shares)
	grants := c.keeper.Tick(now.Sub(c.begun), readings)
	if now.Sub(c.looked) >= rates.FactorEvery {
		c.looked = now
		c.keeper.Utilization(c.utilization(ctx, shares))
	}
	times := map[string]account.CoreTime{}
	for _, r := range readings {
		if r.Known {
			times[r.Name] = r.Time
		}
	}
	c.m.mu.Lock()
	c.m.times = times
	c.m.mu.Unlock()
	for _, s := range shares {
		if g, ok := grants[s.Name]; ok {
			c.m.grantCores(ctx, s, g, now)
		}
	}
}

func (c *cores) read(ctx context.Context, s Share) (rates.Reading, bool) {
	limit, ok := c.limits[s.Name]
	if !ok {
		var err error
		if limit, err = account.ReadLimit(s.Dir); err != nil {
			return rates.Reading{}, false
		}
		c.limits[s.Name] = limit
	}
	r := rates.Reading{Name: s.Name, Card: s.Card, Guarantee: int64(limit.CorePercent), Hard: limit.CorePolicy == account.CoresHard}
	t, err := account.ReadCoreTime(s.Dir)
	if err != nil && !c.quiet[s.Name] {
		klog.FromContext(ctx).V(2).Info("The core time of a share cannot be read; it counts as idle", "share", s.Name, "err", err)
	}
	c.quiet[s.Name] = err != nil
	r.Time, r.Known = t, err == nil
	return r, true
}

func (c *cores) forget(shares []Share) {
	gone := func(name string) bool {
		return !slices.ContainsFunc(shares, func(s Share) bool { return s.Name == name })
	}
	for name := range c.limits {
		if gone(name) {
			delete(c.limits, name)
		}
	}
	for name := range c.quiet {
		if gone(name) {
			delete(c.quiet, name)
		}
	}
}

// utilization asks NVML what the shares' processes used. Which processes those
// are is what the last look of the other loop found.
func (c *cores) utilization(ctx context.Context, shares []Share) map[string]float64 {
	source, ok := c.m.cfg.Cards.(CoreUse)
	if !ok {
		return nil
	}
	used := map[string]float64{}
	c.m.mu.Lock()
	last := c.m.last
	c.m.mu.Unlock()
	asked := map[string]gpu.TimeUse{}
	for _, s := range shares {
		use, ok := asked[s.Card]
		if !ok {
			var err error
			use, c.since[s.Card], err = source.TimeUse(s.Card, c.since[s.Card])
			if err != nil && !c.refused[s.Card] {
				klog.FromContext(ctx).V(2).Info("The shares' use of a card's time is what they say themselves", "card", s.Card, "err", err)
			}
			c.refused[s.Card] = err != nil
			asked[s.Card] = use
		}
		i := slices.IndexFunc(last.shares, func(o shareSeen) bool { return o.Name == s.Name })
		if use == nil || i < 0 {
			continue
		}
		sum := 0.0
		for _, pid := range last.shares[i].pids {
			sum += use[pid]
		}
		used[s.Name] = min(sum, 1)
	}
	return used
}

// grantCores writes a share's grant when its core time changed or the heartbeat
// is due.
func (m *Monitor) grantCores(ctx context.Context, s Share, want rates.Grant, now time.Time) {
	m.granting.Lock()
	defer m.granting.Unlock()
	if !m.writes() {
		return
	}
	g := m.grantOf(ctx, s)
	if g == nil {
		return
	}
	next := g.Grant
	next.CoreRate, next.Fallback, next.Gated, next.BusyFactor = want.Rate.Rate, want.Fallback, want.Gated, want.BusyFactor
	if next == g.Grant && (!next.Gated || now.Sub(g.written) < coreHeartbeat) {
		return // the other loop has a slower heartbeat for all grants
	}
	g.Grant = next
	m.writeGrant(ctx, s, g, now)
}

// writeGrant writes a grant; the caller holds granting.
func (m *Monitor) writeGrant(ctx context.Context, s Share, g *granted, now time.Time) {
	if err := account.UpdateGrant(s.Dir, g.Grant); err != nil {
		// A share may be unprepared while it is looked at.
		if !errors.Is(err, os.ErrNotExist) {
			klog.FromContext(ctx).Error(err, "A grant was not written", "share", s.Name)
		}
		return
	}
	g.written = now
}

var (
	shareCoreSeconds = shareMetric("core_seconds_total", "Time of the card that the share used, in seconds of the whole card; as its limiter measured it, corrected by NVML.")
	shareThrottled   = shareMetric("core_throttled_seconds_total", "Time for which launches of the share waited for its share of the card's time.")
)

// collectCores tells the core time of one share.
func collectCores(ch chan<- prometheus.Metric, t account.CoreTime, labels []string) {
	ch <- prometheus.MustNewConstMetric(shareCoreSeconds, prometheus.CounterValue, t.Charged.Seconds(), labels...)
	ch <- prometheus.MustNewConstMetric(shareThrottled, prometheus.CounterValue, t.Throttled.Seconds(), labels...)
}
