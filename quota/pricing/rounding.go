package pricing

import (
	"fmt"
	"math"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// consumed returns what a request takes of one capacity of a shareable device,
// rounded by its request policy (KEP-5075), and whether the device can serve it
// at all: false means that the value lies above the policy's limits or above the
// capacity. asked is nil where the claim does not name the capacity.
//
// Values that no arithmetic of the allocator can represent are an error: there
// the allocator gives up on the pod as a whole.
func consumed(asked *resource.Quantity, c resourceapi.DeviceCapacity) (resource.Quantity, bool, error) {
	policy := c.RequestPolicy
	if asked == nil {
		got := c.Value
		if policy != nil && policy.Default != nil {
			got = *policy.Default
		}
		return got, got.Cmp(c.Value) <= 0, nil
	}
	got := *asked
	switch {
	case policy == nil:
	case policy.ValidRange != nil && policy.ValidRange.Min != nil:
		rounded, err := roundToRange(*asked, policy.ValidRange)
		if err != nil {
			return got, false, err
		}
		got = rounded
		if policy.ValidRange.Max != nil && got.Cmp(*policy.ValidRange.Max) > 0 {
			return got, false, nil
		}
	case len(policy.ValidValues) > 0:
		found := false
		for _, v := range policy.ValidValues {
			if asked.Cmp(v) <= 0 {
				got, found = v, true
				break
			}
		}
		if !found {
			return got, false, nil
		}
	}
	if got.Sign() < 0 {
		return got, false, fmt.Errorf("a negative amount, %s, is asked", asked.String())
	}
	return got, got.Cmp(c.Value) <= 0, nil
}

// roundToRange raises a value to the range's minimum, then to the next step
// above it.
func roundToRange(asked resource.Quantity, r *resourceapi.CapacityRequestPolicyRange) (resource.Quantity, error) {
	if asked.Cmp(*r.Min) < 0 {
		return *r.Min, nil
	}
	if r.Step == nil {
		return asked, nil
	}
	if inThousandths(r) {
		if asked.CmpInt64(math.MaxInt64/1000) > 0 {
			return asked, fmt.Errorf("%s is larger than can be counted in thousandths", asked.String())
		}
		n, err := roundUp(asked.MilliValue(), r.Min.MilliValue(), r.Step.MilliValue())
		if err != nil {
			return asked, err
		}
		return *resource.NewMilliQuantity(n, r.Step.Format), nil
	}
	if asked.CmpInt64(math.MaxInt64) > 0 {
		return asked, fmt.Errorf("%s is larger than can be counted", asked.String())
	}
	n, err := roundUp(asked.Value(), r.Min.Value(), r.Step.Value())
	if err != nil {
		return asked, err
	}
	return *resource.NewQuantity(n, r.Step.Format), nil
}

// roundUp returns the least min+k*step that is not below n; n is not below min.
func roundUp(n, min, step int64) (int64, error) {
	if step <= 0 {
		return 0, fmt.Errorf("the request policy has a step of %d", step)
	}
	k := (n - min) / step
	if (n-min)%step != 0 {
		k++
	}
	if min >= 0 && k > (math.MaxInt64-min)/step {
		return 0, fmt.Errorf("%d rounded up to a step of %d is larger than can be counted", n, step)
	}
	return min + k*step, nil
}

// inThousandths says whether a range has fractions, in which case the allocator
// counts it in thousandths where they can hold it.
func inThousandths(r *resourceapi.CapacityRequestPolicyRange) bool {
	fraction := false
	for _, q := range []*resource.Quantity{r.Min, r.Max, r.Step} {
		if q == nil {
			continue
		}
		if q.CmpInt64(math.MaxInt64/1000) > 0 {
			return false
		}
		if q.MilliValue()%1000 != 0 {
			fraction = true
		}
	}
	return fraction && r.Step.MilliValue() >= 1
}

// Consumed is what a request takes of one capacity of a shareable device, rounded
// by its request policy; false if the device can never serve it, or if that is no
// whole number. asked is nil where the claim does not name the capacity.
func Consumed(asked *resource.Quantity, c resourceapi.DeviceCapacity) (int64, bool) {
	got, ok, err := consumed(asked, c)
	if err != nil || !ok || got.CmpInt64(got.Value()) != 0 {
		return 0, false
	}
	return got.Value(), true
}
