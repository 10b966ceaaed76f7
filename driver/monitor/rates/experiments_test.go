package rates

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const ever = "1000000" // ms, later than every end

// contention is shares that all want the whole card.
func contention(card string, percents []int64, kernels ...string) scenario {
	s := scenario{card: card, seconds: 6}
	for i, p := range percents {
		s.shares = append(s.shares, Reading{Guarantee: p, Hard: i%2 == 1})
		s.tenants = append(s.tenants, fmt.Sprintf("%d:0:%s:%s", i, ever, kernels[i]))
	}
	return s
}

// between fails unless a share had that percentage of the card's time.
func (r result) between(t *testing.T, i int, from, to time.Duration, low, high float64) {
	t.Helper()
	got := r.share(i, from, to)
	t.Logf("share %d: %.1f %% from %v to %v", i, got, from, to)
	if got < low || got > high {
		t.Errorf("share %d had %.1f %% from %v to %v, want %.0f to %.0f", i, got, from, to, low, high)
	}
}

const (
	short = "200"   // us
	long  = "20000" // us
	mixed = "20,20,20,20000,200,200,2000,20,5000"
)

func TestContendingSharesGetWhatTheyAreGuaranteed(t *testing.T) {
	for _, card := range []string{"timeslice", "fifo"} {
		for _, tc := range []struct {
			percents []int64
			kernels  []string
		}{
			{[]int64{30, 70}, []string{"5000", "5000"}},
			{[]int64{30, 70}, []string{long, short}},
			{[]int64{30, 70}, []string{short, long}},
			{[]int64{30, 70}, []string{mixed, "20"}},
			{[]int64{10, 90}, []string{long, short}},
			{[]int64{10, 90}, []string{"1000", mixed}},
			{[]int64{10, 90}, []string{mixed, mixed}},
			{[]int64{50, 50}, []string{"20", long}},
			{[]int64{50, 50}, []string{"1000", "1000"}},
			{[]int64{20, 30, 50}, []string{"20", mixed, long}},
		} {
			t.Run(fmt.Sprintf("%s/%v/%s", card, tc.percents, strings.Join(tc.kernels, "+")), func(t *testing.T) {
				r := simulate(t, contention(card, tc.percents, tc.kernels...))
				for i, want := range tc.percents {
					t.Logf("share %d: worst stall of a launch %v", i, time.Duration(r.end[i][1]))
					r.between(t, i, 2*time.Second, 6*time.Second, float64(want)-3, float64(want)+3)
				}
			})
		}
	}
}

func TestAHardShareAloneGetsNoMoreAndABurstShareAllOfTheCard(t *testing.T) {
	for _, kernel := range []string{"100", "1000", long, mixed} {
		for _, program := range []string{"", ":sync=1", ":sync=50"} {
			t.Run(kernel+program, func(t *testing.T) {
				tenants := []string{"0:0:" + ever + ":" + kernel + program}
				r := simulate(t, scenario{card: "timeslice", seconds: 4, shares: []Reading{{Guarantee: 50, Hard: true}}, tenants: tenants})
				r.between(t, 0, 2*time.Second, 4*time.Second, 48, 52)
				native := simulate(t, scenario{card: "timeslice", seconds: 4, shares: []Reading{{}}, tenants: tenants})
				want := native.share(0, 2*time.Second, 4*time.Second)
				r = simulate(t, scenario{card: "timeslice", seconds: 4, shares: []Reading{{Guarantee: 50}}, tenants: tenants})
				r.between(t, 0, 2*time.Second, 4*time.Second, 0.99*want, 100)
			})
		}
	}
}

func TestASleeperGetsItsShareWhenItReturns(t *testing.T) {
	for _, card := range []string{"timeslice", "fifo"} {
		for _, kernel := range []string{short, "5000", long} {
			t.Run(card+"/"+kernel, func(t *testing.T) {
				s := contention(card, []int64{70, 30}, kernel, kernel)
				s.shares[1].Hard, s.seconds = false, 8
				s.tenants[0] = "0:3000:" + ever + ":" + kernel
				r := simulate(t, s)
				r.between(t, 1, time.Second, 3*time.Second, 98, 100) // idle time is used
				r.between(t, 0, 3500*time.Millisecond, 4500*time.Millisecond, 65, 92)
				r.between(t, 0, 5*time.Second, 8*time.Second, 67, 74)
			})
		}
	}
}

func TestAFloodOfLongKernelsKeepsNobodyOut(t *testing.T) {
	for _, card := range []string{"timeslice", "fifo"} {
		t.Run(card, func(t *testing.T) {
			s := contention(card, []int64{30, 70}, "20", "1000")
			// Tiny kernels until it is well known what they cost, then a flood.
			s.tenants[0] = "0:0:2000:20"
			s.tenants = append(s.tenants, "0:2000:"+ever+":20000")
			r := simulate(t, s)
			r.between(t, 1, 2500*time.Millisecond, 6*time.Second, 67, 73)
			r.between(t, 0, 3*time.Second, 6*time.Second, 27, 33)
			if most := time.Duration(r.end[2][2]); most > 100*time.Millisecond {
				t.Errorf("%v of it were queued on the card at once", most)
			}
		})
	}
}

func TestTheProcessesOfAShareAreHeldTogether(t *testing.T) {
	s := contention("timeslice", []int64{30, 70}, "1000", "1000")
	for range 3 {
		s.tenants = append(s.tenants, s.tenants[0])
	}
	r := simulate(t, s)
	r.between(t, 0, 2*time.Second, 6*time.Second, 27, 33)
	r.between(t, 1, 2*time.Second, 6*time.Second, 67, 73)
}

func TestWhatCannotBeSampledIsHeldByWhatItIsExpectedToTake(t *testing.T) {
	s := contention("timeslice", []int64{50, 50}, "1000", "1000")
	s.tenants[0] += ":fail"
	r := simulate(t, s)
	r.between(t, 1, 2*time.Second, 6*time.Second, 47, 100)
}

// TestKernelsWhoseTimeIsInTheirArguments: nothing tells a short one from a long
// one before it has run.
func TestKernelsWhoseTimeIsInTheirArguments(t *testing.T) {
	for _, card := range []string{"timeslice", "fifo"} {
		s := contention(card, []int64{20, 30, 50}, mixed, "1000", long)
		s.tenants[0] += ":same"
		r := simulate(t, s)
		for i, want := range []float64{20, 30, 50} {
			t.Logf("%s: worst stall %v", card, time.Duration(r.end[i][1]))
			r.between(t, i, 2*time.Second, 6*time.Second, want-5, want+5)
		}
	}
}

func TestManyStreamsAreOneShare(t *testing.T) {
	s := contention("timeslice", []int64{30, 70}, mixed, "1000")
	s.tenants[0] += ":streams=7"
	r := simulate(t, s)
	r.between(t, 0, 2*time.Second, 6*time.Second, 27, 33)
	r.between(t, 1, 2*time.Second, 6*time.Second, 67, 73)
}

func TestWhenTheNodeFallsSilentOnlyGuaranteesHold(t *testing.T) {
	s := contention("timeslice", []int64{30}, "1000")
	s.silent = 2 * time.Second
	s.seconds = 9
	r := simulate(t, s)
	r.between(t, 0, time.Second, 3*time.Second, 99, 100)
	r.between(t, 0, 5*time.Second, 9*time.Second, 28, 32)
}

func TestIdleTimeIsDividedByGuaranteesAndNobodyStarves(t *testing.T) {
	s := contention("timeslice", []int64{20, 40, 0}, "1000", "1000", "1000")
	s.shares[1].Hard = false
	r := simulate(t, s)
	r.between(t, 0, 2*time.Second, 6*time.Second, 28, 34) // 20 and two sevenths of the 39 left
	r.between(t, 1, 2*time.Second, 6*time.Second, 58, 65)
	r.between(t, 2, 2*time.Second, 6*time.Second, 4, 9)

	s = contention("timeslice", []int64{50, 50, 0}, "1000", "1000", "1000")
	r = simulate(t, s)
	r.between(t, 2, 2*time.Second, 6*time.Second, 0.3, 3)
}

func TestAShareThatComesAndGoesLeavesItsIdleTime(t *testing.T) {
	s := contention("timeslice", []int64{70, 30}, "1000", "1000")
	s.shares[1].Hard = false
	s.tenants[0] += ":sync=5:rest=45000" // 5 ms of 50
	r := simulate(t, s)
	r.between(t, 0, 2*time.Second, 6*time.Second, 7, 11)
	r.between(t, 1, 2*time.Second, 6*time.Second, 75, 93)
}

func TestKernelsOfATenthOfASecond(t *testing.T) {
	for _, card := range []string{"timeslice", "fifo"} {
		s := contention(card, []int64{30, 70}, "100000", "1000")
		s.seconds = 12
		r := simulate(t, s)
		t.Logf("%s: worst stalls %v and %v", card, time.Duration(r.end[0][1]), time.Duration(r.end[1][1]))
		r.between(t, 0, 2*time.Second, 12*time.Second, 25, 35)
		r.between(t, 1, 2*time.Second, 12*time.Second, 60, 75)
	}
}

func TestARestIsNoCreditThatFloodsAndALongKernelNoDebtThatStarves(t *testing.T) {
	s := scenario{card: "timeslice", seconds: 6, shares: []Reading{{Guarantee: 50, Hard: true}}}
	s.tenants = []string{"0:0:500:1000", "0:3000:" + ever + ":1000"}
	r := simulate(t, s)
	r.between(t, 0, 3*time.Second, 3300*time.Millisecond, 45, 70) // what a tenth of a second allows is there
	r.between(t, 0, 3300*time.Millisecond, 6*time.Second, 48, 52)

	s.shares[0].Guarantee = 10
	s.tenants = []string{"0:0:1:1000000", "0:1000:" + ever + ":1000"} // a kernel of a second
	r = simulate(t, s)
	r.between(t, 0, 3500*time.Millisecond, 6*time.Second, 8, 12)
}
