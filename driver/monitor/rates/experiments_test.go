package rates

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// contention is shares that all want the whole card.
func contention(card string, hard bool, percents []int64, kernels ...string) scenario {
	s := scenario{card: card, seconds: 12}
	for i, p := range percents {
		s.shares = append(s.shares, Reading{Guarantee: p, Hard: hard})
		s.tenants = append(s.tenants, fmt.Sprintf("%d:0:1000000:%s", i, kernels[i]))
	}
	return s
}

func TestContendingSharesGetWhatTheyAreGuaranteed(t *testing.T) {
	short, long := "200", "20000"
	mixed := "20,20,20,20000,200,200,2000,20,5000"
	for _, card := range []string{"timeslice", "fifo"} {
		for _, hard := range []bool{false, true} {
			for _, tc := range []struct {
				percents []int64
				kernels  []string
			}{
				{[]int64{30, 70}, []string{"5000", "5000"}},
				{[]int64{30, 70}, []string{long, short}},
				{[]int64{30, 70}, []string{short, long}},
				{[]int64{30, 70}, []string{mixed, "20"}},
				{[]int64{30, 70}, []string{"20", mixed}},
				{[]int64{10, 90}, []string{long, short}},
				{[]int64{10, 90}, []string{"1000", mixed}},
				{[]int64{10, 90}, []string{mixed, mixed}},
				{[]int64{50, 50}, []string{"20", long}},
				{[]int64{50, 50}, []string{"1000", "1000"}},
				{[]int64{20, 30, 50}, []string{long, "1000", "20"}},
				{[]int64{20, 30, 50}, []string{"20", mixed, long}},
			} {
				t.Run(fmt.Sprintf("%s/hard=%v/%v/%s", card, hard, tc.percents, strings.Join(tc.kernels, "+")), func(t *testing.T) {
					r := simulate(t, contention(card, hard, tc.percents, tc.kernels...))
					var got []string
					bad := false
					for i, want := range tc.percents {
						p := r.share(i, 2*time.Second, 12*time.Second)
						got = append(got, fmt.Sprintf("%.1f (worst stall %.0f ms)", p, float64(r.end[i][1])/1e6))
						bad = bad || math.Abs(p-float64(want)) > 3
					}
					t.Logf("%v: got %v", tc.percents, got)
					if bad {
						t.Errorf("%v: got %v", tc.percents, got)
					}
				})
			}
		}
	}
}
