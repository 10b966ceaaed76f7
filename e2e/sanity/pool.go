package sanity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// device is a published device.
type device struct {
	pool string
	resourceapi.Device
}

func (d device) String() string { return d.pool + "/" + d.Name }

// shareable tells whether the device can be given to several claims at once.
func (d device) shareable() bool { return ptr.Deref(d.AllowMultipleAllocations, false) }

// smallShare is a size that fits at least twice on the device, for each of its
// capacities, or an error that tells which one has none.
func (d device) smallShare() (map[resourceapi.QualifiedName]resource.Quantity, error) {
	share := map[resourceapi.QualifiedName]resource.Quantity{}
	for name, c := range d.Capacity {
		size, ok := smallPart(c)
		if !ok {
			return nil, fmt.Errorf("capacity %s of %s (%s) cannot be had twice", name, d, c.Value.String())
		}
		share[name] = size
	}
	return share, nil
}

// smallPart is a size that the capacity's policy allows, of which two fit: the
// default if that does, else the smallest that is not zero.
func smallPart(c resourceapi.DeviceCapacity) (resource.Quantity, bool) {
	fitsTwice := func(q resource.Quantity) bool {
		if q.Sign() <= 0 {
			return false
		}
		q = q.DeepCopy()
		q.Add(q)
		return q.Cmp(c.Value) <= 0
	}
	if c.RequestPolicy == nil {
		quarter := *resource.NewQuantity(c.Value.Value()/4, c.Value.Format)
		return quarter, fitsTwice(quarter)
	}
	var sizes []resource.Quantity
	if q := c.RequestPolicy.Default; q != nil {
		sizes = append(sizes, *q)
	}
	sizes = append(sizes, c.RequestPolicy.ValidValues...)
	if r := c.RequestPolicy.ValidRange; r != nil && r.Min != nil {
		sizes = append(sizes, *r.Min)
		step := resource.MustParse("1")
		if r.Step != nil {
			step = *r.Step
		}
		next := r.Min.DeepCopy()
		next.Add(step)
		sizes = append(sizes, next)
	}
	for _, q := range sizes {
		if fitsTwice(q) {
			return q, true
		}
	}
	return resource.Quantity{}, false
}

// listSlices returns the slices of the driver for the node, in the order of
// their names.
func (s *suite) listSlices(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	list, err := s.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + s.d.Name})
	if err != nil {
		return nil, err
	}
	items := slices.DeleteFunc(list.Items, func(slice resourceapi.ResourceSlice) bool {
		return ptr.Deref(slice.Spec.NodeName, s.d.NodeName) != s.d.NodeName
	})
	slices.SortFunc(items, func(a, b resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	return items, nil
}

// incomplete tells what a scheduler would still wait for, and nil if it can use
// all pools.
func incomplete(items []resourceapi.ResourceSlice) error {
	if len(items) == 0 {
		return errors.New("no ResourceSlice")
	}
	pools := map[string][]resourceapi.ResourceSlice{}
	for _, slice := range items {
		pools[slice.Spec.Pool.Name] = append(pools[slice.Spec.Pool.Name], slice)
	}
	var problems []error
	for name, members := range pools {
		newest := slices.MaxFunc(members, func(a, b resourceapi.ResourceSlice) int {
			return cmp.Compare(a.Spec.Pool.Generation, b.Spec.Pool.Generation)
		}).Spec.Pool
		count := int64(0)
		for _, slice := range members {
			switch p := slice.Spec.Pool; {
			case p.Generation != newest.Generation:
				problems = append(problems, fmt.Errorf("pool %s: slice %s is of generation %d, the newest is %d", name, slice.Name, p.Generation, newest.Generation))
				continue
			case p.ResourceSliceCount != newest.ResourceSliceCount:
				problems = append(problems, fmt.Errorf("pool %s, generation %d: one slice says that there are %d slices, another %d", name, p.Generation, newest.ResourceSliceCount, p.ResourceSliceCount))
			}
			count++
		}
		if count != newest.ResourceSliceCount {
			problems = append(problems, fmt.Errorf("pool %s, generation %d: %d slices of %d", name, newest.Generation, count, newest.ResourceSliceCount))
		}
	}
	return errors.Join(problems...)
}

// published waits until all pools are complete and returns their slices.
func (s *suite) published(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	var items []resourceapi.ResourceSlice
	err := eventually(ctx, s.d.Patience, func() (err error) {
		if items, err = s.listSlices(ctx); err != nil {
			return err
		}
		return incomplete(items)
	})
	if err != nil {
		return nil, violated(fmt.Sprintf("complete pools of driver %s on node %s within %s", s.d.Name, s.d.NodeName, s.d.Patience), "%v", err)
	}
	return items, nil
}

// devicesOf lists the devices of the slices.
func devicesOf(items []resourceapi.ResourceSlice) []device {
	var all []device
	for _, slice := range items {
		for _, d := range slice.Spec.Devices {
			all = append(all, device{slice.Spec.Pool.Name, d})
		}
	}
	return all
}

// names is a list of devices as text.
func names(devices []device) string {
	var all []string
	for _, d := range devices {
		all = append(all, d.String())
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
