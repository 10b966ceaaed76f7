package pricing

import resourceapi "k8s.io/api/resource/v1"

// Allocated prices what a claim was given: the sum over all results of the
// driver except those with admin access, by the same rules as [Fleet.Claim].
// device finds a published device and may return nil; then the whole-card rule
// cannot be applied to that result and it costs what it says.
func Allocated(a *resourceapi.AllocationResult, device func(pool, name string) *resourceapi.Device) Price {
	var total Price
	if a == nil {
		return total
	}
	for i := range a.Devices.Results {
		r := &a.Devices.Results[i]
		if r.Driver != DriverName || (r.AdminAccess != nil && *r.AdminAccess) {
			continue
		}
		d := device(r.Pool, r.Device)
		if r.ConsumedCapacity == nil {
			if d == nil {
				total = total.Add(Price{Devices: 1, Cores: WholeCard})
			} else {
				total = total.Add(exclusive(Device{Pool: r.Pool, Device: d}))
			}
			continue
		}
		share := Price{Devices: 1}
		if q, ok := r.ConsumedCapacity[CapacityMemory]; ok {
			share.Memory = q.Value()
		}
		if q, ok := r.ConsumedCapacity[CapacityCores]; ok {
			share.Cores = q.Value()
		}
		if d != nil {
			share = Whole(share, d)
		}
		total = total.Add(share)
	}
	return total
}
