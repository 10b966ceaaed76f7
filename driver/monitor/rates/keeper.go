package rates

import (
	"slices"
	"strings"
	"time"

	"github.com/sluice-gpu/sluice/hook/account"
)

// Reading is what a share's account says at one time.
type Reading struct {
	// Name of the share; unique on the node. Card is what it is a share of.
	Name, Card string
	Guarantee  int64
	Hard       bool
	// Time is its core time; not read when Known is false, which is the case
	// where the account could not be.
	Time  account.CoreTime
	Known bool
}

// Grant is what a share's grant is to say of core time.
type Grant struct {
	Rate
	// BusyFactor corrects claimed to real time, in millionths.
	BusyFactor uint32
}

// Keeper remembers what shares said before. The zero value is ready.
type Keeper struct {
	shares map[string]*seen
}

type seen struct {
	time    account.CoreTime
	at      time.Duration
	asked   time.Duration // when it was last seen to ask
	held    time.Duration // when it was last seen to be throttled
	busy    float64       // part of the time in which it had work on the card; rises at once
	mean    float64       // the same, smoothed
	factor  float64
	claimed time.Duration // busy time when the factor was last looked at
	looked  time.Duration
	// What the factor is made of: recent time by NVML and by the account, as
	// parts of the card's.
	real, said float64
	rested     bool // it was idle when the card's time was divided last
}

// FactorEvery is how often Utilization is worth calling: NVML samples some six
// times a second.
const FactorEvery = 250 * time.Millisecond

const (
	// restful is for how long a share must not have asked to count as idle.
	restful = 500 * time.Millisecond
	// hungry is for how long a share that was held counts as wanting all.
	hungry = 300 * time.Millisecond
	// growth and slack are added to what a share was seen to use, so that it
	// can grow until the next time.
	growth, slack = 1.1, 0.02
)

// Tick takes what all shares of the node say at a time, which is on any clock
// that only goes forward, and returns each share's grant, by name.
func (k *Keeper) Tick(now time.Duration, readings []Reading) map[string]Grant {
	old := k.shares
	k.shares = map[string]*seen{}
	cards := map[string][]Reading{}
	for _, r := range readings {
		s := old[r.Name]
		if s == nil {
			s = &seen{time: r.Time, at: now, asked: now - restful, held: now - hungry, factor: 1, claimed: r.Time.Busy, looked: now}
		}
		k.shares[r.Name] = s
		if r.Known {
			s.look(now, r.Time)
		}
		cards[r.Card] = append(cards[r.Card], r)
	}
	out := make(map[string]Grant, len(readings))
	for _, here := range cards {
		slices.SortFunc(here, func(a, b Reading) int { return strings.Compare(a.Name, b.Name) })
		shares := make([]Share, len(here))
		for i, r := range here {
			shares[i] = Share{Guarantee: r.Guarantee, Hard: r.Hard, Wants: k.shares[r.Name].wants(now)}
		}
		k.changed(now, here)
		k.together(here)
		for i, rate := range Divide(shares) {
			out[here[i].Name] = Grant{Rate: rate, BusyFactor: millionths(k.shares[here[i].Name].factor)}
		}
	}
	return out
}

// look takes a share's next reading. A tenant can write any: what goes
// backwards counts as nothing.
func (s *seen) look(now time.Duration, t account.CoreTime) {
	passed := now - s.at
	if passed <= 0 {
		return
	}
	if t.Asked != s.time.Asked {
		s.asked = now
	}
	if t.Throttled > s.time.Throttled {
		s.held = now
	}
	part := min(max(float64(t.Busy-s.time.Busy)/float64(passed), 0), 1)
	s.busy = max(part, (s.busy+part)/2)
	s.mean = (2*s.mean + part) / 3
	s.time, s.at = t, now
}

// wants is what the share can be expected to use. What counts is for how long
// it had work on the card, not what it got of it: one that waits for others'
// turns wants more than it gets.
func (s *seen) wants(now time.Duration) float64 {
	switch {
	case now-s.held < hungry:
		return 1
	case now-s.asked < restful:
		return min(s.busy*growth+slack, 1)
	}
	return 0
}

// changed lets new readings of NVML count for more when a share of the card
// began or ceased to work: what was seen before tells little about now.
func (k *Keeper) changed(now time.Duration, here []Reading) {
	const keep = 0.2
	any := false
	for _, r := range here {
		s := k.shares[r.Name]
		rests := now-s.asked >= restful
		any = any || rests != s.rested
		s.rested = rests
	}
	for _, r := range here {
		if s := k.shares[r.Name]; any {
			s.real, s.said = s.real*keep, s.said*keep
		}
	}
}

// together corrects the factors of a card's shares at once when what they claim
// is more than a card has: it began to take turns between them. By how much
// each of them is too high is for NVML to say.
func (k *Keeper) together(here []Reading) {
	const more = 1.1
	sum := 0.0
	for _, r := range here {
		s := k.shares[r.Name]
		sum += s.factor * s.mean
	}
	if sum < more {
		return
	}
	for _, r := range here {
		s := k.shares[r.Name]
		s.factor = max(s.factor/sum, lowest)
		s.said *= sum
	}
}

// Few readings of NVML make a second, and each is rounded: a share that claimed
// little says nothing about its factor, and one reading moves it by a quarter.
const little, lowest, memory = 0.05, 0.02, 0.75

// Utilization takes what NVML says that shares really used, each as a part of
// the card's time since the last call, and corrects their factors. Shares that
// it does not name keep theirs.
func (k *Keeper) Utilization(used map[string]float64) {
	for name, s := range k.shares {
		passed, claimed := s.at-s.looked, s.time.Busy-s.claimed
		s.looked, s.claimed = s.at, s.time.Busy
		real, known := used[name]
		if !known || passed <= 0 {
			continue
		}
		part := float64(claimed) / float64(passed)
		if part < little {
			continue
		}
		s.real, s.said = s.real*memory+real, s.said*memory+part
		s.factor = min(max(s.real/s.said, lowest), 1)
	}
}
