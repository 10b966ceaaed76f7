package ticket

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gpu/sluice/quota/pricing"
	resourceapi "k8s.io/api/resource/v1"
)

// Prefix begins every ticket annotation. Only the quota controller may write
// annotations that begin with it.
const Prefix = "quota.sluice.dev/ticket"

// The annotations of a ticket. All of them are there or none.
const (
	// ByWorkload is the name of the Workload that is charged, in the claim's
	// namespace.
	ByWorkload = Prefix
	// Devices is the largest number of results, in decimal.
	Devices = Prefix + "-devices"
	// Memory is the largest sum of memory over all results, in bytes, in
	// decimal.
	Memory = Prefix + "-memory"
	// Cores is the largest sum of cores over all results, in percent of a card.
	Cores = Prefix + "-cores"
	// Pools are the pools that may be used, separated by commas.
	Pools = Prefix + "-pools"
	// Exclusive are the exclusive devices that may be used, as pool/device,
	// separated by commas; empty for none.
	Exclusive = Prefix + "-exclusive"
)

// MaxPools and MaxExclusive bound the size of a ticket, and with it the cost of
// checking it in the API server.
const (
	MaxPools     = 64
	MaxExclusive = 64
)

// Ticket is what a claim may be given.
type Ticket struct {
	Workload string
	// Price bounds the sums over all results.
	pricing.Price
	// Pools may be used, the preferred one first.
	Pools []string
	// Exclusive devices may be used, as "pool/device".
	Exclusive []string
}

// Annotations encodes the ticket. Lists beyond [MaxPools] and [MaxExclusive] are
// cut at their end.
func (t Ticket) Annotations() map[string]string {
	return map[string]string{
		ByWorkload: t.Workload,
		Devices:    strconv.FormatInt(t.Price.Devices, 10),
		Memory:     strconv.FormatInt(t.Price.Memory, 10),
		Cores:      strconv.FormatInt(t.Price.Cores, 10),
		Pools:      strings.Join(t.Pools[:min(len(t.Pools), MaxPools)], ","),
		Exclusive:  strings.Join(t.Exclusive[:min(len(t.Exclusive), MaxExclusive)], ","),
	}
}

// Read decodes the ticket among an object's annotations. It returns nil without
// an error where there is none. A ticket in part, or with a number that is
// negative or unreadable, is an error: it admits nothing.
func Read(annotations map[string]string) (*Ticket, error) {
	if !Has(annotations) {
		return nil, nil
	}
	for _, key := range []string{ByWorkload, Devices, Memory, Cores, Pools, Exclusive} {
		if _, ok := annotations[key]; !ok {
			return nil, fmt.Errorf("the ticket lacks annotation %s", key)
		}
	}
	t := &Ticket{Workload: annotations[ByWorkload], Pools: list(annotations[Pools]), Exclusive: list(annotations[Exclusive])}
	for key, into := range map[string]*int64{Devices: &t.Price.Devices, Memory: &t.Price.Memory, Cores: &t.Price.Cores} {
		n, err := strconv.ParseInt(annotations[key], 10, 64)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("ticket annotation %s is %q, a number not below zero is needed", key, annotations[key])
		}
		*into = n
	}
	return t, nil
}

// Charge is the price of the ticket among an object's annotations; false if
// there is none that can be read. It looks at the numbers only, for those who
// sum many.
func Charge(annotations map[string]string) (pricing.Price, bool) {
	var p pricing.Price
	for _, f := range [...]struct {
		key  string
		into *int64
	}{{Devices, &p.Devices}, {Memory, &p.Memory}, {Cores, &p.Cores}} {
		n, err := strconv.ParseInt(annotations[f.key], 10, 64)
		if err != nil || n < 0 {
			return pricing.Price{}, false
		}
		*f.into = n
	}
	return p, true
}

// Has says whether any ticket annotation is present, even of an incomplete
// ticket.
func Has(annotations map[string]string) bool {
	for key := range annotations {
		if strings.HasPrefix(key, Prefix) {
			return true
		}
	}
	return false
}

// Strip returns the annotations without those of a ticket, and whether there
// were any. The argument is not changed.
func Strip(annotations map[string]string) (map[string]string, bool) {
	if !Has(annotations) {
		return annotations, false
	}
	rest := maps.Clone(annotations)
	maps.DeleteFunc(rest, func(key, _ string) bool { return strings.HasPrefix(key, Prefix) })
	return rest, true
}

// Equal says whether two tickets admit the same and charge the same workload.
func (t Ticket) Equal(u Ticket) bool { return maps.Equal(t.Annotations(), u.Annotations()) }

// Covers returns nil if the ticket allows an allocation, and otherwise what it
// lacks. admin says whether the claim's namespace may use admin access; results
// with admin access cost nothing there, and count as any other elsewhere.
func (t Ticket) Covers(results []resourceapi.DeviceRequestAllocationResult, admin bool) error {
	var sum pricing.Price
	for i := range results {
		r := &results[i]
		if r.Driver != pricing.DriverName || (admin && r.AdminAccess != nil && *r.AdminAccess) {
			continue
		}
		if !slices.Contains(t.Pools, r.Pool) {
			return fmt.Errorf("pool %q is not among the ticket's pools (%s)", r.Pool, strings.Join(t.Pools, ", "))
		}
		sum.Devices++
		if r.ShareID == nil && r.ConsumedCapacity == nil {
			if name := r.Pool + "/" + r.Device; !slices.Contains(t.Exclusive, name) {
				return fmt.Errorf("device %s is taken whole and not named by the ticket", name)
			}
			continue
		}
		memory, ok := r.ConsumedCapacity[pricing.CapacityMemory]
		cores, ok2 := r.ConsumedCapacity[pricing.CapacityCores]
		if !ok || !ok2 || memory.Sign() < 0 || cores.Sign() < 0 {
			return fmt.Errorf("the share of %s/%s does not say what it consumes", r.Pool, r.Device)
		}
		sum = sum.Add(pricing.Price{Memory: memory.Value(), Cores: cores.Value()})
	}
	if !t.Price.Covers(sum) {
		return fmt.Errorf("%v allocated, the ticket pays for %v", sum, t.Price)
	}
	return nil
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}
