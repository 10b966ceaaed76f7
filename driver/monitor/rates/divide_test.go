package rates

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestATimeOfACardIsDivided(t *testing.T) {
	idle, all := 0.0, 1.0
	burst := func(g int64, wants float64) Share { return Share{Guarantee: g, Wants: wants} }
	hard := func(g int64, wants float64) Share { return Share{Guarantee: g, Wants: wants, Hard: true} }
	for name, tc := range map[string]struct {
		shares   []Share
		want     []int // rates, in tenths of a percent
		fallback []int
	}{
		"nobody is guaranteed anything":           {[]Share{burst(0, all), burst(0, idle)}, []int{1000, 1000}, []int{1000, 1000}},
		"hard without a guarantee is not held":    {[]Share{hard(0, all)}, []int{1000}, []int{1000}},
		"alone":                                   {[]Share{burst(50, all)}, []int{1000}, []int{500}},
		"alone and hard":                          {[]Share{hard(50, all)}, []int{500}, []int{500}},
		"idle":                                    {[]Share{burst(50, idle)}, []int{500}, []int{500}},
		"all want all":                            {[]Share{burst(30, all), burst(70, all)}, []int{300, 700}, []int{300, 700}},
		"idle time goes to who wants it":          {[]Share{burst(30, all), burst(70, idle)}, []int{1000, 700}, []int{300, 700}},
		"also of who wants some":                  {[]Share{burst(30, all), burst(70, 0.1)}, []int{900, 700}, []int{300, 700}},
		"not to the hard":                         {[]Share{hard(30, all), burst(20, 0.1)}, []int{300, 700}, []int{300, 200}},
		"in proportion to guarantees":             {[]Share{burst(20, all), burst(40, all)}, []int{333, 666}, []int{200, 400}},
		"no more than is wanted":                  {[]Share{burst(20, 0.3), burst(20, all)}, []int{300, 700}, []int{200, 200}},
		"without a guarantee: what others leave":  {[]Share{burst(60, 0.5), burst(0, all)}, []int{600, 500}, []int{600, 400}},
		"without a guarantee beside the hungry":   {[]Share{burst(50, all), burst(50, all), burst(0, all)}, []int{495, 495, 9}, []int{495, 495, 9}},
		"many without a guarantee get little":     {append(slices.Repeat([]Share{burst(0, all)}, 10), hard(100, all)), append(slices.Repeat([]int{4}, 10), 952), nil},
		"a guarantee of all beside a sleeper":     {[]Share{burst(100, all), burst(0, idle)}, []int{1000, 9}, []int{990, 9}},
		"time that nobody wants now is kept near": {[]Share{burst(30, 0.2), burst(30, 0.2)}, []int{500, 500}, []int{300, 300}},
	} {
		got := Divide(tc.shares)
		for i, r := range got {
			if int(r.Rate)/1000 != tc.want[i] || (tc.fallback != nil && int(r.Fallback)/1000 != tc.fallback[i]) {
				t.Errorf("%s: share %d gets %+v, want %d and %v thousandths", name, i, r, tc.want[i], tc.fallback)
			}
		}
	}
}

func TestWhatSharesUseIsNeverMoreThanTheCard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := make([]Share, rapid.IntRange(1, 12).Draw(t, "shares"))
		left := int64(100)
		for i := range shares {
			g := rapid.Int64Range(0, left).Draw(t, "guarantee")
			left -= g
			shares[i] = Share{Guarantee: g, Hard: rapid.Bool().Draw(t, "hard"), Wants: rapid.SampledFrom([]float64{0, 0.01, 0.2, 0.5, 1}).Draw(t, "wants")}
		}
		out := Divide(shares)
		used, fallback, wanted := 0.0, uint64(0), 0.0
		burst := false
		for i, s := range shares {
			r := out[i]
			if !r.Gated {
				if left != 100 {
					t.Fatalf("%+v: share %d is not held", shares, i)
				}
				return
			}
			used += min(float64(r.Rate)/whole, s.Wants)
			wanted += s.Wants
			fallback += uint64(r.Fallback)
			burst = burst || (!s.hard() && s.Wants > 0)
			without := leastSum
			if int(float64(r.Rate)/whole*1000)+1 < int(float64(s.Guarantee)*10*(1-without)) {
				t.Fatalf("%+v: share %d is guaranteed %d and gets %d", shares, i, s.Guarantee, r.Rate)
			}
			if s.hard() && r.Rate > uint32(s.Guarantee)*10_000 {
				t.Fatalf("%+v: hard share %d gets %d", shares, i, r.Rate)
			}
			if r.Rate == 0 {
				t.Fatalf("%+v: share %d starves", shares, i)
			}
		}
		if used > 1.000001 {
			t.Fatalf("%+v: %v use %v of the card", shares, out, used)
		}
		if fallback > whole {
			t.Fatalf("%+v: fallbacks of %d", shares, fallback)
		}
		// Work-conserving: what is wanted is given as long as there is any.
		allBurst := !slices.ContainsFunc(shares, func(s Share) bool { return s.hard() })
		if burst && allBurst && used < min(wanted, 1)-0.001 {
			t.Fatalf("%+v: %v use %v, %v is wanted", shares, out, used, wanted)
		}
	})
}
