package engine

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// clamp is what a saturating operation must give for an exact result.
func clamp(x *big.Int) Amount {
	if x.Cmp(big.NewInt(math.MaxInt64)) >= 0 {
		return Unlimited
	}
	if x.Cmp(big.NewInt(math.MinInt64)) <= 0 {
		return deficit
	}
	return Amount(x.Int64())
}

func drawAmount(t *rapid.T, label string) Amount {
	return Amount(rapid.OneOf(
		rapid.Int64(),
		rapid.SampledFrom([]int64{0, 1, -1, math.MaxInt64, math.MaxInt64 - 1, math.MinInt64, math.MinInt64 + 1, 1 << 32}),
	).Draw(t, label))
}

func TestAmountsSaturateInsteadOfOverflowing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawAmount(t, "a"), drawAmount(t, "b")
		x, y := big.NewInt(int64(a)), big.NewInt(int64(b))
		want := clamp(new(big.Int).Add(x, y))
		if a == Unlimited || b == Unlimited {
			want = Unlimited
		}
		if got := a.Add(b); got != want {
			t.Fatalf("%d + %d = %d, not %d", a, b, got, want)
		}
		want = clamp(new(big.Int).Sub(x, y))
		if a == Unlimited {
			want = Unlimited
		} else if b == Unlimited {
			want = deficit
		}
		if got := a.Sub(b); got != want {
			t.Fatalf("%d - %d = %d, not %d", a, b, got, want)
		}
		want = clamp(new(big.Int).Mul(x, y))
		if got := a.Times(int64(b)); got != want {
			t.Fatalf("%d * %d = %d, not %d", a, b, got, want)
		}
	})
}

func TestSharesCompareAsFractions(t *testing.T) {
	value := func(s share) *big.Rat {
		r := big.NewRat(int64(s.borrowed), int64(s.lendable))
		return r.Mul(r, big.NewRat(int64(OneWeight), int64(s.weight)))
	}
	draw := func(t *rapid.T) share {
		positive := rapid.OneOf(rapid.Int64Range(1, 12), rapid.Int64Range(1, math.MaxInt64))
		return share{Amount(positive.Draw(t, "borrowed")), Amount(positive.Draw(t, "lendable")), Weight(positive.Draw(t, "weight"))}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t), draw(t)
		if got, want := a.compare(b), value(a).Cmp(value(b)); got != want {
			t.Fatalf("%v against %v: %d, not %d", a, b, got, want)
		}
		// What the API shows is the share in thousandths, rounded up.
		exact := value(a)
		exact.Mul(exact, big.NewRat(1000, 1))
		shown := a.thousandths()
		if shown == Unlimited {
			if exact.Cmp(new(big.Rat).SetInt64(math.MaxInt64/2)) < 0 {
				t.Fatalf("%v shown as unlimited", a)
			}
			return
		}
		diff := new(big.Rat).Sub(new(big.Rat).SetInt64(int64(shown)), exact)
		tolerance := new(big.Rat).Add(big.NewRat(1, 1), new(big.Rat).Mul(exact, big.NewRat(1, 1<<40)))
		if diff.Abs(diff).Cmp(tolerance) > 0 {
			t.Fatalf("%v is %s thousandths, shown as %d", a, exact.FloatString(3), shown)
		}
	})
}

func TestAmountsArePrintedForPeople(t *testing.T) {
	for _, c := range []struct {
		resource Resource
		amount   Amount
		want     string
	}{
		{"cpu", 1500, "1500m"},
		{"cpu", 64000, "64"},
		{"nvidia.com/gpu-memory", 20 << 30, "20Gi"},
		{"memory", 1<<30 + 1, "1073741825"},
		{"ephemeral-storage", 1536 << 20, "1536Mi"},
		{"nvidia.com/gpu", 8, "8"},
		{"memory", 0, "0"},
		{"nvidia.com/gpu", Unlimited, "unlimited"},
	} {
		if got := FormatAmount(c.resource, c.amount); got != c.want {
			t.Errorf("%d of %s is %q, should be %q", c.amount, c.resource, got, c.want)
		}
	}
}
