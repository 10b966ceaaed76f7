package pricing

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
)

// Allocated prices what a claim was given: the sum over all results of the
// driver except those with admin access, by the same rules as [Fleet.Claim].
// device finds a published device, nil if it is not published now; then what the
// claim was given cannot be priced, and that is the error.
func (t Tariff) Allocated(ctx context.Context, a *resourceapi.AllocationResult, device func(pool, name string) *Device) (Price, error) {
	var total Price
	if a == nil {
		return total, nil
	}
	for i := range a.Devices.Results {
		r := &a.Devices.Results[i]
		if r.Driver != DriverName || (r.AdminAccess != nil && *r.AdminAccess) {
			continue
		}
		d := device(r.Pool, r.Device)
		if d == nil {
			return total, fmt.Errorf("device %s/%s is not published now", r.Pool, r.Device)
		}
		share := exclusive(*d)
		if r.ConsumedCapacity != nil {
			share = Price{Devices: 1}
			if q, ok := r.ConsumedCapacity[CapacityMemory]; ok {
				share.Memory = q.Value()
			}
			if q, ok := r.ConsumedCapacity[CapacityCores]; ok {
				share.Cores = q.Value()
			}
			share = Whole(share, d.Device)
		}
		share, err := t.of(ctx, share, *d)
		if err != nil {
			return total, err
		}
		total = total.Add(share)
	}
	return total, nil
}
