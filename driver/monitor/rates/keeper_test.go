package rates

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/hook/account"
)

// play lets shares claim parts of each tenth of a second and returns what they are granted last.
func play(k *Keeper, from time.Duration, ticks int, shares []Reading, part []float64) (map[string]Grant, time.Duration) {
	var out map[string]Grant
	for range ticks {
		from += 100 * time.Millisecond
		for i := range shares {
			if part[i] > 0 {
				shares[i].Time.Busy += time.Duration(part[i] * 1e8)
				shares[i].Time.Asked++
			}
		}
		out = k.Tick(from, shares)
	}
	return out, from
}

func two() []Reading {
	return []Reading{{Name: "a", Card: "1", Guarantee: 30, Known: true}, {Name: "b", Card: "1", Guarantee: 70, Known: true}}
}

func TestAShareIsIdleWhenItHasNotAskedForAWhile(t *testing.T) {
	var k Keeper
	shares := two()
	_, now := play(&k, 0, 3, shares, []float64{0.9, 0.05})
	g, now := play(&k, now, 2, shares, []float64{0.9, 0})
	if g["a"].Rate.Rate == whole {
		t.Error("a moment's rest takes the time away")
	}
	g, _ = play(&k, now, 6, shares, []float64{0.9, 0})
	if g["a"].Rate.Rate != whole || g["b"].Rate.Rate != 700_000 {
		t.Errorf("after a long rest: %+v", g)
	}
}

func TestAShareThatWaitedWantsAll(t *testing.T) {
	var k Keeper
	shares := two()
	_, now := play(&k, 0, 3, shares, []float64{0.3, 0.1})
	shares[0].Time.Throttled += time.Millisecond
	g, _ := play(&k, now, 1, shares, []float64{0.3, 0.1})
	if r := g["a"].Rate.Rate; r < 800_000 {
		t.Errorf("granted %d while 0.9 of the card are idle", r)
	}
}

func TestTheFactorBecomesWhatNVMLSaw(t *testing.T) {
	var k Keeper
	shares := []Reading{{Name: "a", Card: "1", Guarantee: 30, Known: true}}
	g, now := play(&k, 0, 5, shares, []float64{0.8})
	if g["a"].BusyFactor != whole {
		t.Errorf("begins with %d", g["a"].BusyFactor)
	}
	for range 12 {
		_, now = play(&k, now, 5, shares, []float64{0.8})
		k.Utilization(map[string]float64{"a": 0.4})
	}
	g, now = play(&k, now, 1, shares, []float64{0.8})
	if f := g["a"].BusyFactor; math.Abs(float64(f)-500_000) > 5_000 {
		t.Errorf("factor %d, want half", f)
	}
	// A share that did nothing keeps it, and so does one that NVML does not name.
	k.Utilization(nil)
	_, now = play(&k, now, 5, shares, []float64{0})
	k.Utilization(map[string]float64{"a": 0})
	_, now = play(&k, now, 5, shares, []float64{0.8})
	k.Utilization(nil)
	if g, _ = play(&k, now, 1, shares, []float64{0.8}); math.Abs(float64(g["a"].BusyFactor)-500_000) > 5_000 {
		t.Errorf("factor %d after a rest", g["a"].BusyFactor)
	}
}

func TestClaimsAboveTheCardAreCorrectedBeforeNVMLSays(t *testing.T) {
	var k Keeper
	g, _ := play(&k, 0, 10, two(), []float64{1, 1})
	sum := g["a"].BusyFactor + g["b"].BusyFactor
	if sum > 1_150_000 || sum < 800_000 {
		t.Errorf("both have work all the time; factors %d and %d", g["a"].BusyFactor, g["b"].BusyFactor)
	}
}

func TestSharesOfOtherCardsHaveNoPart(t *testing.T) {
	var k Keeper
	shares := two()
	shares[1].Card = "2"
	if g, _ := play(&k, 0, 5, shares, []float64{1, 1}); g["a"].Rate.Rate != whole || g["b"].Rate.Rate != whole {
		t.Errorf("%+v", g)
	}
}

// TestAnyAccountHarmsItsOwnShareOnly: a tenant writes anything into its
// account; its neighbours keep what they are guaranteed.
func TestAnyAccountHarmsItsOwnShareOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var k Keeper
		now := time.Duration(0)
		honest := Reading{Name: "b", Card: "1", Guarantee: 60, Known: true}
		for range 20 {
			now += time.Duration(rapid.Int64Range(0, 3e8).Draw(t, "passes"))
			any := func(name string) time.Duration { return time.Duration(rapid.Int64().Draw(t, name)) }
			liar := Reading{Name: "a", Card: "1", Guarantee: 40, Known: true, Time: account.CoreTime{
				Busy: any("busy"), Charged: any("charged"), Throttled: any("throttled"), Asked: rapid.Uint64().Draw(t, "asked"),
			}}
			honest.Time.Busy += 5e7
			honest.Time.Asked++
			honest.Time.Throttled += 1e7
			g := k.Tick(now, []Reading{liar, honest})
			k.Utilization(map[string]float64{"a": rapid.Float64Range(0, 1).Draw(t, "used"), "b": 0.5})
			if g["b"].Rate.Rate < 590_000 || g["a"].Rate.Rate > whole || g["a"].BusyFactor > whole || g["a"].BusyFactor == 0 {
				t.Fatalf("%+v", g)
			}
		}
	})
}
