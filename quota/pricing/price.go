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
}

// Add returns the sum of two prices.
func (p Price) Add(q Price) Price {
	return Price{add(p.Devices, q.Devices), add(p.Memory, q.Memory), add(p.Cores, q.Cores)}
}

// Times returns the price of n such requests; n below zero counts as zero.
func (p Price) Times(n int64) Price {
	return Price{times(p.Devices, n), times(p.Memory, n), times(p.Cores, n)}
}

// Max returns the larger amount in each dimension.
func (p Price) Max(q Price) Price {
	return Price{max(p.Devices, q.Devices), max(p.Memory, q.Memory), max(p.Cores, q.Cores)}
}

// Covers says whether p pays for q in every dimension.
func (p Price) Covers(q Price) bool {
	return p.Devices >= q.Devices && p.Memory >= q.Memory && p.Cores >= q.Cores
}

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
