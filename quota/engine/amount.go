package engine

import (
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// Amount is how much of one resource: devices, bytes, percent of a card, CPU
// thousandths, or any unit an operator defines. The engine never converts
// units. Sums and products saturate at both ends, so an overflow can neither
// turn a huge request into a small one nor make usage negative.
//
// A negative Amount appears only as an answer: what is available after a quota
// was cut below what is in use. Requests and quotas below zero are refused.
type Amount int64

const (
	// Unlimited absorbs: Unlimited plus or minus a bounded amount is Unlimited.
	Unlimited Amount = math.MaxInt64
	// deficit is what remains of a bounded amount when Unlimited is taken away.
	deficit Amount = math.MinInt64
)

// Add returns a+b, saturated.
func (a Amount) Add(b Amount) Amount {
	if a == Unlimited || b == Unlimited {
		return Unlimited
	}
	s := a + b
	if a > 0 && b > 0 && s < 0 {
		return Unlimited
	}
	if a < 0 && b < 0 && s >= 0 {
		return deficit
	}
	return s
}

// Sub returns a-b, saturated. Unlimited less anything stays Unlimited; a
// bounded amount less Unlimited is the lowest amount there is.
func (a Amount) Sub(b Amount) Amount {
	switch {
	case a == Unlimited:
		return Unlimited
	case b == Unlimited:
		return deficit
	}
	d := a - b
	if a >= 0 && b < 0 && d < 0 {
		return Unlimited
	}
	if a < 0 && b > 0 && d >= 0 {
		return deficit
	}
	return d
}

// Times returns a*n, saturated.
func (a Amount) Times(n int64) Amount {
	if a == 0 || n == 0 {
		return 0
	}
	negative := (a < 0) != (n < 0)
	hi, lo := bits.Mul64(magnitude(int64(a)), magnitude(n))
	if hi != 0 || lo > math.MaxInt64 {
		if negative {
			return deficit
		}
		return Unlimited
	}
	if negative {
		return -Amount(lo)
	}
	return Amount(lo)
}

func magnitude(n int64) uint64 {
	if n < 0 {
		return -uint64(n)
	}
	return uint64(n)
}

// FormatAmount prints an amount of a resource for people: what is held in
// thousandths is printed as Kubernetes does ("1500m"), resources whose name
// ends in "memory" or "storage" are bytes and printed in binary units ("20Gi"),
// all others are plain numbers.
func FormatAmount(r Resource, a Amount) string {
	switch {
	case a == Unlimited:
		return "unlimited"
	case InThousandths(r):
		if a%1000 == 0 {
			return strconv.FormatInt(int64(a/1000), 10)
		}
		return strconv.FormatInt(int64(a), 10) + "m"
	case strings.HasSuffix(string(r), "memory") || strings.HasSuffix(string(r), "storage"):
		return formatBytes(a)
	}
	return strconv.FormatInt(int64(a), 10)
}

func formatBytes(a Amount) string {
	for i, unit := range []string{"Ti", "Gi", "Mi", "Ki"} {
		size := Amount(1) << (10 * (4 - i))
		if a != 0 && a%size == 0 {
			return strconv.FormatInt(int64(a/size), 10) + unit
		}
	}
	return strconv.FormatInt(int64(a), 10)
}
