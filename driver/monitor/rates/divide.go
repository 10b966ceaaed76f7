// Package rates decides how the time of a card is divided between its shares.
//
// Every share is guaranteed a part of the card's SM time, perhaps none. What
// the shares do not want goes to those that may use idle time. The limiter in
// the containers holds each share to the rate that it is granted; this package
// decides that rate, some ten times a second, from what the accounts say that
// the shares used and wanted, and finds from NVML by how much the accounts
// overstate it.
//
// It does no I/O and reads no clock: Keeper is told readings and answers with
// grants. Package monitor reads and writes.
package rates

// Share is what is known of one share of a card when its time is divided.
type Share struct {
	// Guarantee is the percentage of the card's time that is the share's.
	Guarantee int64
	// Hard shares get no idle time. A share without a guarantee cannot be hard.
	Hard bool
	// Wants is the part of the card's time that the share can be expected to
	// use if nobody holds it, 0 to 1. 0: it is idle.
	Wants float64
}

// Rate is what a share is granted, in millionths of the card.
type Rate struct {
	Rate uint32
	// Fallback holds while the node does not renew the grant.
	Fallback uint32
	// Gated is false where nothing of the card is guaranteed: then nobody is
	// held.
	Gated bool
}

const (
	whole = 1_000_000
	// least is what a share without a guarantee gets while all others want all
	// of theirs, so that it comes forward; all of them together get no more
	// than leastSum. It is the guaranteed shares that give it.
	least, leastSum = 0.01, 0.05
	// modest is as what a share without a guarantee counts when idle time is
	// divided in proportion to guarantees.
	modest = 0.10
)

// Divide divides the time of one card.
//
// A share's rate is never less than its guarantee, also while it is idle, so
// that it can begin at once; what the shares can be expected to use together,
// each at most its rate, is never more than the card.
func Divide(shares []Share) []Rate {
	out := make([]Rate, len(shares))
	own, guaranteed := guarantees(shares)
	if !guaranteed {
		for i := range out {
			out[i] = Rate{Rate: whole, Fallback: whole}
		}
		return out
	}
	// First what is guaranteed, as far as it is wanted.
	part, left := make([]float64, len(shares)), 1.0
	for i, s := range shares {
		part[i] = min(own[i], s.Wants)
		left -= part[i]
	}
	// Then the idle time, to who wants it.
	left = fill(shares, part, left, func(i int) float64 { return shares[i].Wants })
	// What nobody wants now is for who may want more before the next time.
	fill(shares, part, left, func(i int) float64 {
		if shares[i].Wants > 0 {
			return 1
		}
		return 0
	})
	for i := range shares {
		out[i] = Rate{Rate: millionths(max(part[i], own[i])), Fallback: millionths(fallback(shares, i, own)), Gated: true}
	}
	return out
}

// guarantees are the shares' own parts, what is given to those without a
// guarantee included; false if there is no guarantee at all.
func guarantees(shares []Share) ([]float64, bool) {
	own, sum, without := make([]float64, len(shares)), 0.0, 0.0
	for i, s := range shares {
		own[i] = float64(s.Guarantee) / 100
		sum += own[i]
		if s.Guarantee == 0 {
			without++
		}
	}
	if sum == 0 {
		return own, false
	}
	if without > 0 {
		each := min(least, leastSum/without)
		for i, s := range shares {
			if s.Guarantee == 0 {
				own[i] = each
			}
		}
		sum += each * without
	}
	if sum > 1 {
		for i := range own {
			own[i] /= sum
		}
	}
	return own, true
}

// fill raises the parts of the shares that may use idle time up to what to
// says, in proportion to their guarantees, and returns what is left.
func fill(shares []Share, part []float64, left float64, to func(int) float64) float64 {
	const nothing = 1e-9
	for left > nothing {
		weight := 0.0
		for i, s := range shares {
			if !s.hard() && to(i) > part[i]+nothing {
				weight += s.weight()
			}
		}
		if weight == 0 {
			break
		}
		given := 0.0
		for i, s := range shares {
			if room := to(i) - part[i]; !s.hard() && room > nothing {
				more := min(room, left*s.weight()/weight)
				part[i] += more
				given += more
			}
		}
		left -= given
	}
	return left
}

func (s Share) hard() bool { return s.Hard && s.Guarantee > 0 }

func (s Share) weight() float64 {
	if s.Guarantee == 0 {
		return modest
	}
	return float64(s.Guarantee) / 100
}

// fallback is what a share may use while nobody looks: its guarantee, or its
// part of what nobody is guaranteed.
func fallback(shares []Share, i int, own []float64) float64 {
	if shares[i].Guarantee > 0 {
		return own[i]
	}
	free, without := 1.0, 0.0
	for _, s := range shares {
		free -= float64(s.Guarantee) / 100
		if s.Guarantee == 0 {
			without++
		}
	}
	return max(own[i], free/without)
}

// millionths rounds down, but for what floating point lost.
func millionths(part float64) uint32 {
	const lost = 1e-3
	return uint32(min(max(part, 0), 1)*whole + lost)
}
