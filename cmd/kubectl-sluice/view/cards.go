package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sluice-gpu/sluice/driver"
)

// Cards lists every device that the nodes offer, with what claims hold of it.
// node restricts it to one node; empty: all.
func Cards(offered []resourceapi.ResourceSlice, claims []resourceapi.ResourceClaim, node string) Table {
	held := holdings(claims)
	t := Table{{"NODE", "DEVICE", "TYPE", "PRODUCT", "MEMORY", "CORES", "STATE", "CLAIMS"}}
	for _, s := range newest(offered) {
		if node != "" && s.Spec.Pool.Name != node {
			continue
		}
		for _, d := range s.Spec.Devices {
			h := held[s.Spec.Pool.Name+"/"+d.Name]
			t = append(t, []string{
				s.Spec.Pool.Name, d.Name, attribute(d, "type"), attribute(d, "productName"),
				of(d, h, "memory", gib), of(d, h, "cores", func(n int64) string { return fmt.Sprint(n) }),
				state(d, h), names(h),
			})
		}
	}
	return t
}

// holding is what claims hold of one device.
type holding struct {
	claims        []string // namespace/name
	memory, cores int64
	exclusive     bool
}

func holdings(claims []resourceapi.ResourceClaim) map[string]*holding {
	held := map[string]*holding{}
	for _, c := range claims {
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver != driver.Name || r.AdminAccess != nil && *r.AdminAccess {
				continue
			}
			key := r.Pool + "/" + r.Device
			h := held[key]
			if h == nil {
				h = &holding{}
				held[key] = h
			}
			if name := c.Namespace + "/" + c.Name; !slices.Contains(h.claims, name) {
				h.claims = append(h.claims, name)
			}
			h.exclusive = h.exclusive || r.ShareID == nil
			h.memory += value(r.ConsumedCapacity["memory"])
			h.cores += value(r.ConsumedCapacity["cores"])
		}
	}
	for _, h := range held {
		slices.Sort(h.claims)
	}
	return held
}

func value(q resource.Quantity) int64 { return q.Value() }

func names(h *holding) string {
	if h == nil {
		return "-"
	}
	return strings.Join(h.claims, ",")
}

// newest are the driver's slices of the newest generation of each pool, by pool
// and name. An older one is on its way out and says what is no longer true.
func newest(all []resourceapi.ResourceSlice) []resourceapi.ResourceSlice {
	generation := map[string]int64{}
	for _, s := range all {
		generation[s.Spec.Pool.Name] = max(generation[s.Spec.Pool.Name], s.Spec.Pool.Generation)
	}
	var out []resourceapi.ResourceSlice
	for _, s := range all {
		if s.Spec.Driver == driver.Name && s.Spec.Pool.Generation == generation[s.Spec.Pool.Name] {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b resourceapi.ResourceSlice) int {
		return cmp.Or(cmp.Compare(a.Spec.Pool.Name, b.Spec.Pool.Name), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func attribute(d resourceapi.Device, name resourceapi.QualifiedName) string {
	if a, ok := d.Attributes[name]; ok && a.StringValue != nil && *a.StringValue != "" {
		return *a.StringValue
	}
	return "-"
}

// of writes "held/whole" of one capacity.
func of(d resourceapi.Device, h *holding, name resourceapi.QualifiedName, write func(int64) string) string {
	c, ok := d.Capacity[name]
	if !ok {
		return "-"
	}
	whole, used := value(c.Value), int64(0)
	switch {
	case h == nil:
	case h.exclusive:
		used = whole
	case name == "memory":
		used = h.memory
	default:
		used = h.cores
	}
	return write(used) + "/" + write(whole)
}

// state names the taints of a device; "free", "shared" or "full" without any.
func state(d resourceapi.Device, h *holding) string {
	var taints []string
	for _, taint := range d.Taints {
		taints = append(taints, strings.TrimPrefix(taint.Key, driver.Name+"/"))
	}
	c := d.Capacity["memory"]
	switch {
	case len(taints) > 0:
		return strings.Join(taints, ",")
	case h == nil:
		return "free"
	case h.exclusive, h.memory >= value(c.Value):
		return "full"
	default:
		return "shared"
	}
}
