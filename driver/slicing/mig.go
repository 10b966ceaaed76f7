package slicing

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/sluice-gpu/sluice/driver"
	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/gpu"
)

// Instance is a device of a card in MIG mode: one that is there, or one that is
// made when a claim is prepared. It belongs to one claim at a time.
//
// What can be made is every profile at every place, far more than fits: the
// devices of a card draw on the card's counters (KEP-4815), one for each memory
// slice and one for whatever else is scarce, so that the scheduler never gives
// out two that overlap. What is there already, made by an administrator, needs
// no counter: its places are not offered at all.
type Instance struct {
	// Device is the name under which the instance is published. It tells the
	// card, the profile and the place, so that it means the same after the
	// instance was destroyed and made again.
	Device string
	// UUID is empty for an instance that is to be made.
	UUID string
	// ProfileID is the card's number of the profile of the GPU instance.
	ProfileID int
	// Profile is its name, such as "3g.40gb", and "1c.3g.40gb" for a part.
	Profile  string
	MemoryMi int64
	// Cores is the part of the card's multiprocessors, in percent of those
	// that instances can have at all.
	Cores int64
	gpu.Engines
	gpu.Place
	// Unfit says why nothing may be placed on the instance; see Card.Unfit for
	// what is wrong with the whole card.
	Unfit *Unfit

	slices int
	count  int // how many of the profile fit on an empty card; 0: it is there
}

// PartOfInstance is the key of an Unfit instance that shares its memory with
// others.
const PartOfInstance = "mig-part"

// Partitioned tells that the card's devices are instances, not the card.
func (c Card) Partitioned() bool { return c.partitioned }

// partition lists what the card in MIG mode is offered as.
func (c *Card) partition(group config.NodeGroup) {
	c.partitioned = true
	most := c.mostSMs()
	for _, i := range c.Partition.Instances {
		for _, d := range i.Devices {
			in := Instance{
				Device: c.instanceName(d.Profile, i.Start), UUID: d.UUID, ProfileID: i.ProfileID, Profile: d.Profile,
				MemoryMi: d.MemoryMi, Engines: d.Engines, Place: i.Place, Cores: percent(d.SMs, most),
			}
			if d.Fault != "" {
				in.Unfit = &Unfit{Key: "faulty", Reason: d.Fault}
			}
			if strings.Contains(d.Profile, "c.") {
				in.Device += fmt.Sprintf("-%d", d.ID)
				in.Unfit = &Unfit{Key: PartOfInstance, Reason: "the device is a part of a GPU instance and has no memory of its own"}
			}
			c.Instances = append(c.Instances, in)
		}
	}
	for _, p := range c.Partition.Profiles {
		if !offers(group.Profiles, p.Name) {
			continue
		}
		for _, at := range p.Places {
			if c.placeTaken(at) {
				continue
			}
			c.Instances = append(c.Instances, Instance{
				Device: c.instanceName(p.Name, at.Start), ProfileID: p.ID, Profile: p.Name, MemoryMi: p.MemoryMi,
				Engines: p.Engines, Place: at, Cores: percent(p.SMs, most), slices: p.Slices, count: p.Count,
			})
		}
	}
	c.order()
}

// percent rounds down: all instances of a card together never have more than
// the card.
func percent(sms, most int) int64 {
	if most == 0 {
		return 0
	}
	return int64(sms * driver.AllCores / most)
}

func offers(globs []string, profile string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool {
		ok, err := path.Match(glob, profile)
		return err == nil && ok
	})
}

// placeTaken tells whether an instance that is there is in the way.
func (c *Card) placeTaken(at gpu.Place) bool {
	return slices.ContainsFunc(c.Partition.Instances, func(i gpu.Instance) bool { return i.Overlaps(at) })
}

func (c *Card) instanceName(profile string, start int) string {
	plain := strings.NewReplacer(".", "", "+", "-", ",", "-").Replace(profile)
	return fmt.Sprintf("%s-mig-%s-%d", c.Device, plain, start)
}

// order puts first what the scheduler should take first, since it takes the
// first that fits: the smallest instance that will do, one that is there before
// one that has to be made, and of the places the one that spoils the fewest
// others.
func (c *Card) order() {
	spoils := map[string]int{}
	for _, a := range c.Instances {
		for _, b := range c.Instances {
			if a.Overlaps(b.Place) && a.UUID == "" && b.UUID == "" {
				spoils[a.Device] += b.Size
			}
		}
	}
	made := func(i Instance) int { return min(i.count, 1) }
	slices.SortFunc(c.Instances, func(a, b Instance) int {
		return cmp.Or(
			cmp.Compare(a.MemoryMi, b.MemoryMi), cmp.Compare(a.SMs, b.SMs), cmp.Compare(len(a.Profile), len(b.Profile)), cmp.Compare(a.Profile, b.Profile),
			cmp.Compare(made(a), made(b)), cmp.Compare(spoils[a.Device], spoils[b.Device]), cmp.Compare(a.Start, b.Start), cmp.Compare(a.Device, b.Device))
	})
}

// Instance finds a MIG device by name, and its card.
func (p *Plan) Instance(device string) (Card, Instance, bool) {
	name, _, ok := strings.Cut(device, "-mig-")
	if i, found := p.byDevice[name]; ok && found {
		for _, in := range p.Cards[i].Instances {
			if in.Device == device {
				return p.Cards[i], in, true
			}
		}
	}
	return Card{}, Instance{}, false
}

// MarkInstance says why nothing may be placed on an instance. The first reason
// stays.
func (p *Plan) MarkInstance(device string, why Unfit) {
	name, _, _ := strings.Cut(device, "-mig-")
	i, ok := p.byDevice[name]
	if !ok {
		return
	}
	for k := range p.Cards[i].Instances {
		if in := &p.Cards[i].Instances[k]; in.Device == device && in.Unfit == nil {
			in.Unfit = &why
		}
	}
}

// devices are the card's instances as the API has them.
func (c Card) instanceDevices() []resourceapi.Device {
	var out []resourceapi.Device
	for _, i := range c.Instances {
		d := resourceapi.Device{Name: i.Device, Attributes: c.instanceAttributes(i), Capacity: i.capacity()}
		if i.count > 0 {
			d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: c.Device, Counters: i.counters()}}
		}
		for _, u := range []*Unfit{c.Unfit, i.Unfit} {
			if u != nil {
				d.Taints = append(d.Taints, u.taint())
				break
			}
		}
		out = append(out, d)
	}
	return out
}

func (c Card) instanceAttributes(i Instance) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	g := c.GPU
	g.UUID, g.SMCount = i.UUID, i.SMs
	// Peak rates are the card's, of which an instance has its part.
	if most := c.mostSMs(); most > 0 {
		g.FP16TFLOPS = g.FP16TFLOPS * int64(i.SMs) / int64(most)
		g.MemoryBandwidth = g.MemoryBandwidth * int64(i.Size) / int64(c.memorySlices())
	}
	g.NVLinkDomain = "" // instances do not reach others
	out := attributes(driver.TypeMIG, i.Device, g, c.Position, false)
	out["profile"] = text(i.Profile)
	out["parentUUID"] = text(c.UUID)
	return out
}

func (c Card) memorySlices() (n int) {
	for _, p := range c.Partition.Profiles {
		for _, at := range p.Places {
			n = max(n, at.Start+at.Size)
		}
	}
	return n
}

func (c Card) mostSMs() (most int) {
	for _, p := range c.Partition.Profiles {
		most = max(most, p.SMs)
	}
	return most
}

// capacity is what the instance has, all of which is its claim's. Memory and
// cores are named as those of cards are: they are what a budget counts.
func (i Instance) capacity() map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	plain := func(n int64) resourceapi.DeviceCapacity {
		return resourceapi.DeviceCapacity{Value: *resource.NewQuantity(n, resource.DecimalSI)}
	}
	return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		driver.CapacityMemory: {Value: mi(i.MemoryMi)},
		driver.CapacityCores:  plain(i.Cores),
		"multiprocessors":     plain(int64(i.SMs)),
		"copyEngines":         plain(int64(i.Copy)),
		"decoders":            plain(int64(i.Decoders)),
		"encoders":            plain(int64(i.Encoders)),
		"jpegEngines":         plain(int64(i.JPEG)),
		"ofaEngines":          plain(int64(i.OFA)),
	}
}

// counters are what the instance takes of its card. Two instances of a profile
// of which there can be fewer than places also draw on the profile's own.
func (i Instance) counters() map[string]resourceapi.Counter {
	out := map[string]resourceapi.Counter{
		"compute-slices":   counter(i.slices),
		i.profileCounter(): counter(1),
	}
	for n := i.Start; n < i.Start+i.Size; n++ {
		out[sliceCounter(n)] = counter(1)
	}
	if i.OFA > 0 {
		out["ofa-engines"] = counter(i.OFA)
	}
	return out
}

func (i Instance) profileCounter() string { return fmt.Sprintf("profile-%d", i.ProfileID) }

func sliceCounter(n int) string { return fmt.Sprintf("memory-slice-%d", n) }

func counter(n int) resourceapi.Counter {
	return resourceapi.Counter{Value: *resource.NewQuantity(int64(n), resource.DecimalSI)}
}

// counterSet is what the card has left for instances to be made.
func (c Card) counterSet() (resourceapi.CounterSet, bool) {
	set := resourceapi.CounterSet{Name: c.Device, Counters: map[string]resourceapi.Counter{}}
	for _, i := range c.Instances {
		if i.count == 0 {
			continue
		}
		for name := range i.counters() {
			set.Counters[name] = counter(1)
		}
		set.Counters[i.profileCounter()] = counter(i.count)
	}
	if len(set.Counters) == 0 {
		return set, false
	}
	var computes, ofa int // those of the largest profile, which has all
	for _, p := range c.Partition.Profiles {
		computes, ofa = max(computes, p.Slices), max(ofa, p.OFA)
	}
	for _, i := range c.Partition.Instances {
		for _, p := range c.Partition.Profiles {
			if p.ID != i.ProfileID {
				continue
			}
			computes -= p.Slices
			ofa -= p.OFA
			name := Instance{ProfileID: p.ID}.profileCounter()
			if have, ok := set.Counters[name]; ok {
				set.Counters[name] = counter(max(int(have.Value.Value())-1, 0))
			}
		}
	}
	set.Counters["compute-slices"] = counter(max(computes, 0))
	if _, ok := set.Counters["ofa-engines"]; ok {
		set.Counters["ofa-engines"] = counter(max(ofa, 0))
	}
	return set, true
}

// counterSlices hold the counters of all cards: the API keeps them apart from
// devices, and takes eight sets a slice.
func (p *Plan) counterSlices() []resourceslice.Slice {
	var sets []resourceapi.CounterSet
	for _, c := range p.Cards {
		if set, ok := c.counterSet(); ok {
			sets = append(sets, set)
		}
	}
	var out []resourceslice.Slice
	for chunk := range slices.Chunk(sets, resourceapi.ResourceSliceMaxCounterSets) {
		out = append(out, resourceslice.Slice{SharedCounters: chunk})
	}
	return out
}
