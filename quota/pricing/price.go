package pricing

import (
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
)

// The names under which the three dimensions appear in the quotas of a
// ClusterQueue.
const (
	ResourceDevices = "nvidia.com/gpu"
	ResourceMemory  = "nvidia.com/gpu-memory"
	ResourceCores   = "nvidia.com/gpu-core-percent"
)

// The capacities that the driver gpu.sluice.dev publishes.
const (
	CapacityMemory = "memory"
	CapacityCores  = "cores"
)

// WholeCard is the price of all cores of one card, in percent.
const WholeCard = 100

// Price is a cost in all dimensions at once. Amounts saturate at the largest
// int64 and are never negative.
type Price struct {
	// Devices counts shares and exclusive devices alike.
	Devices int64
	// Memory is in bytes.
	Memory int64
	// Cores is in percent of one card: two half cards cost 100.
	Cores int64
	// More are the amounts in the dimensions that the configuration adds.
	More More
}

// Add returns the sum of two prices.
func (p Price) Add(q Price) Price { return p.with(q, add) }

// Times returns the price of n such requests; n below zero counts as zero.
func (p Price) Times(n int64) Price {
	return p.with(p, func(a, _ int64) int64 { return times(a, n) })
}

// Max returns the larger amount in each dimension.
func (p Price) Max(q Price) Price {
	return p.with(q, func(a, b int64) int64 { return max(a, b) })
}

// Min returns the smaller amount in each dimension.
func (p Price) Min(q Price) Price {
	return p.with(q, func(a, b int64) int64 { return min(a, b) })
}

// with combines two prices in each dimension.
func (p Price) with(q Price, f func(a, b int64) int64) Price {
	r := Price{Devices: f(p.Devices, q.Devices), Memory: f(p.Memory, q.Memory), Cores: f(p.Cores, q.Cores)}
	for i := range r.More {
		r.More[i] = f(p.More[i], q.More[i])
	}
	return r
}

// Covers says whether p pays for q in every dimension.
func (p Price) Covers(q Price) bool { return p.Max(q) == p }

// IsZero says that nothing is charged.
func (p Price) IsZero() bool { return p == Price{} }

// String is the price for people: "1 device, 20Gi, 50% cores".
func (p Price) String() string {
	noun := "devices"
	if p.Devices == 1 {
		noun = "device"
	}
	return fmt.Sprintf("%d %s, %s, %d%% cores", p.Devices, noun, FormatBytes(p.Memory), p.Cores)
}

// FormatBytes prints bytes in the largest binary unit that divides them.
func FormatBytes(n int64) string {
	return resource.NewQuantity(n, resource.BinarySI).String()
}

func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func times(a, n int64) int64 {
	if a <= 0 || n <= 0 {
		return 0
	}
	if a > math.MaxInt64/n {
		return math.MaxInt64
	}
	return a * n
}
