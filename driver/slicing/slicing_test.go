package slicing

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/gpu"
)

// models are cards as NVML describes them.
var models = map[string]gpu.GPU{
	"A100":  {ProductName: "NVIDIA A100-SXM4-80GB", Brand: "Nvidia", Architecture: "Ampere", ComputeCapability: "8.0", MemoryTotal: 81920 << 20, MemoryReserved: 631 << 20, SMCount: 108},
	"T4":    {ProductName: "Tesla T4", Brand: "Tesla", Architecture: "Turing", ComputeCapability: "7.5", MemoryTotal: 15360 << 20, MemoryReserved: 250 << 20, SMCount: 40},
	"H200":  {ProductName: "NVIDIA H200", Brand: "Nvidia", Architecture: "Hopper", ComputeCapability: "9.0", MemoryTotal: 143771 << 20, MemoryReserved: 600 << 20, SMCount: 132},
	"DUMMY": {ProductName: "No memory", MemoryTotal: 1 << 20},
}

// TestStories runs the stories in testdata: a node's cards and labels and a
// configuration go in, what the node offers comes out.
//
//	cards                      a card a line: UUID-PREFIX MODEL PCI [mig[=PROFILE@SLICE,...]]
//	labels                     key=value ...
//	offer                      YAML of nodeGroups; prints the devices
//	attributes device=NAME     prints the attributes of the last offer
//	claim [memory=Q] [cores=Q] [count=N] [admin] [class=NAME]
//	                           asks the scheduler's allocator for devices of
//	                           the last offer, which stay allocated
//	arrange                    publishes the cards that are spread by what the
//	                           claims hold; prints all devices if that changed
//	                           anything
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var cards []gpu.GPU
		labels := map[string]string{}
		var plan *Plan
		var pool *allocations
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "cards":
				cards = nil
				for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
					cards = append(cards, parseCard(t, line))
				}
				return ""
			case "labels":
				labels = map[string]string{}
				for _, kv := range strings.Fields(d.Input) {
					k, v, _ := strings.Cut(kv, "=")
					labels[k] = v
				}
				return ""
			case "offer":
				cfg, err := config.Decode([]byte("apiVersion: gpu.sluice.dev/v1alpha1\nkind: DriverConfiguration\n" + d.Input))
				if err != nil {
					return "configuration refused: " + err.Error() + "\n"
				}
				plan, err = Make(cards, labels, cfg)
				pool = newAllocations(t, plan)
				var misfit Misfit
				if errors.As(err, &misfit) {
					group, field := misfit.Where()
					return cfg.Wrong(group, field, err).Error() + "\n" + describe(plan)
				}
				return describe(plan)
			case "claim":
				return pool.claim(t, d.CmdArgs)
			case "arrange":
				next, changed := plan.Spread(pool.held(), plan.order)
				if !changed {
					return "no change\n"
				}
				plan.Arrange(next)
				pool.publish(plan)
				return strings.Join(deviceList(plan), " ") + "\n"
			case "attributes":
				var name string
				d.ScanArgs(t, "device", &name)
				return describeAttributes(t, plan, name)
			default:
				t.Fatalf("unknown command %s", d.Cmd)
				return ""
			}
		})
	})
}

func parseCard(t *testing.T, line string) gpu.GPU {
	f := strings.Fields(line)
	if len(f) < 3 {
		t.Fatalf("card %q", line)
	}
	g, ok := models[f[1]]
	if !ok {
		t.Fatalf("no model %s", f[1])
	}
	g.UUID = "GPU-" + f[0] + "-0000-0000-0000-000000000000"
	if len(f[0]) > 8 {
		g.UUID = "GPU-" + f[0]
	}
	g.PCIBusID = f[2]
	g.DriverVersion, g.CUDAVersion, g.NUMANode = "535.104.05", "12.2", -1
	for _, word := range f[3:] {
		k, v, _ := strings.Cut(word, "=")
		switch k {
		case "mig":
			g.MIG = true
			g.Partition = partition(t, v)
		case "numa":
			_, err := fmt.Sscan(v, &g.NUMANode)
			if err != nil {
				t.Fatal(err)
			}
		case "root":
			g.PCIeRoot = v
		case "nvlink":
			g.NVLinkDomain = v
		}
	}
	return g
}

func deviceList(p *Plan) []string {
	var out []string
	for _, d := range p.Devices() {
		out = append(out, d.Name)
	}
	return out
}

func describe(p *Plan) string {
	var b strings.Builder
	for i, s := range p.Slices() {
		fmt.Fprintf(&b, "slice %d\n", i)
		for _, set := range s.SharedCounters {
			fmt.Fprintf(&b, "  counters of %s:%s\n", set.Name, counters(set.Counters))
		}
		for _, d := range s.Devices {
			fmt.Fprintf(&b, "  %s", d.Name)
			if m, ok := d.Capacity["memory"]; ok {
				fmt.Fprintf(&b, " memory %s", policy(m))
			}
			if c, ok := d.Capacity["cores"]; ok {
				fmt.Fprintf(&b, ", cores %s", policy(c))
			}
			if d.AllowMultipleAllocations == nil {
				b.WriteString(" exclusive")
			}
			for _, c := range d.ConsumesCounters {
				fmt.Fprintf(&b, ", takes of %s%s", c.CounterSet, counters(c.Counters))
			}
			for _, t := range d.Taints {
				fmt.Fprintf(&b, ", taint %s:%s", t.Key, t.Effect)
			}
			b.WriteString("\n")
		}
	}
	for _, g := range p.Unwanted {
		fmt.Fprintf(&b, "not offered: %s %s\n", g.UUID, g.ProductName)
	}
	return b.String()
}

func policy(c resourceapi.DeviceCapacity) string {
	if c.RequestPolicy == nil {
		return c.Value.String()
	}
	out := c.Value.String() + " default " + c.RequestPolicy.Default.String()
	if r := c.RequestPolicy.ValidRange; r != nil {
		out += " min " + r.Min.String() + " step " + r.Step.String()
		if r.Max != nil {
			out += " max " + r.Max.String()
		}
		return out
	}
	for _, v := range c.RequestPolicy.ValidValues {
		out += " only " + v.String()
	}
	return out
}

func describeAttributes(t *testing.T, p *Plan, name string) string {
	for _, d := range p.Devices() {
		if d.Name != name {
			continue
		}
		var lines []string
		for k, a := range d.Attributes {
			var v any
			switch {
			case a.StringValue != nil:
				v = fmt.Sprintf("%q", *a.StringValue)
			case a.VersionValue != nil:
				v = "v" + *a.VersionValue
			case a.IntValue != nil:
				v = *a.IntValue
			case a.BoolValue != nil:
				v = *a.BoolValue
			}
			lines = append(lines, fmt.Sprintf("%s: %v", k, v))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n") + "\n"
	}
	t.Fatalf("no device %s", name)
	return ""
}

// genNode draws a node's cards and a configuration that applies to them.
func genNode(t *rapid.T) ([]gpu.GPU, map[string]string, *config.DriverConfiguration) {
	n := rapid.IntRange(0, 80).Draw(t, "cards")
	var cards []gpu.GPU
	for i := range n {
		g := models[rapid.SampledFrom([]string{"A100", "T4", "H200", "DUMMY"}).Draw(t, "model")]
		// Few distinct prefixes, so that names collide now and then.
		g.UUID = fmt.Sprintf("GPU-%08x-0000-0000-0000-%012x", rapid.IntRange(0, 200).Draw(t, "prefix"), i)
		g.PCIBusID = fmt.Sprintf("0000:%02x:00.0", i)
		if g.MIG = rapid.Bool().Draw(t, "mig"); g.MIG {
			g.Partition = partition(t, rapid.SampledFrom([]string{"", "3g.40gb@0", "1g.10gb@6,2g.20gb@2", "7g.80gb@0"}).Draw(t, "instances"))
		}
		g.NUMANode = rapid.IntRange(-1, 1).Draw(t, "numa")
		g.DriverVersion = rapid.SampledFrom([]string{"570.86.15", "535.104.05", ""}).Draw(t, "driver")
		cards = append(cards, g)
	}
	cfg := &config.DriverConfiguration{}
	for i := range rapid.IntRange(0, 3).Draw(t, "groups") {
		g := config.NodeGroup{Name: fmt.Sprint(i), Mode: config.Dynamic}
		if rapid.Bool().Draw(t, "by MIG") {
			g.Mode, g.Profiles = config.MIG, rapid.SampledFrom([][]string{{"*"}, {}, {"?g.*gb"}}).Draw(t, "profiles")
		} else if rapid.Bool().Draw(t, "fixed") {
			g.Mode, g.Slices, g.Memory = config.Fixed, int64(rapid.IntRange(1, 8).Draw(t, "slices")), config.Auto
		}
		if rapid.Bool().Draw(t, "selective") {
			g.DeviceSelector = &config.DeviceSelector{Product: rapid.SampledFrom([]string{"NVIDIA*", "Tesla T4", "*H200"}).Draw(t, "product")}
		}
		if rapid.Bool().Draw(t, "by expression") {
			g.DeviceSelector = &config.DeviceSelector{CEL: rapid.SampledFrom([]string{
				`device.attributes["gpu.sluice.dev"].smCount > 100`,
				`device.capacity["gpu.sluice.dev"].memory.compareTo(quantity("40Gi")) < 0`,
				`device.attributes["gpu.sluice.dev"].index < 2`,
			}).Draw(t, "expression")}
		}
		if rapid.Bool().Draw(t, "reserving") {
			g.Reserve = fmt.Sprintf("%dMi", rapid.IntRange(0, 20000).Draw(t, "reserve"))
		}
		if rapid.Bool().Draw(t, "oversubscribed") {
			g.Oversubscription = resource.NewMilliQuantity(int64(rapid.IntRange(1000, 4000).Draw(t, "factor")), resource.DecimalSI)
		}
		if g.Mode != config.MIG && rapid.Bool().Draw(t, "spread") {
			g.Order = config.Spread
		}
		if g.Mode == config.Dynamic && rapid.Bool().Draw(t, "with a default") {
			g.DefaultMemory = fmt.Sprintf("%dMi", rapid.IntRange(256, 20000).Draw(t, "default"))
		}
		cfg.NodeGroups = append(cfg.NodeGroups, g)
	}
	return cards, map[string]string{}, cfg
}

func TestTheOrderOfEnumerationChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cards, labels, cfg := genNode(t)
		a, errA := Make(cards, labels, cfg)
		shuffled := rapid.Permutation(cards).Draw(t, "order")
		for i := range shuffled {
			shuffled[i].Index = i
		}
		b, errB := Make(shuffled, labels, cfg)
		if fmt.Sprint(errA) != fmt.Sprint(errB) {
			t.Fatalf("%v in one order, %v in another", errA, errB)
		}
		if !reflect.DeepEqual(a.Slices(), b.Slices()) {
			t.Fatalf("slices differ:\n%s\n%s", describe(a), describe(b))
		}
	})
}

func TestWhatIsPublishedIsValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cards, labels, cfg := genNode(t)
		p, err := Make(cards, labels, cfg)
		var misfit Misfit
		if err != nil && !errors.As(err, &misfit) {
			t.Fatalf("unexpected error %v", err)
		}
		pool := p.Slices()
		if len(pool) == 0 {
			t.Fatal("no slice at all")
		}
		seen := map[string]bool{}
		var attributes []string
		for _, s := range pool {
			if len(s.Devices) > 64 {
				t.Fatalf("%d devices in a slice", len(s.Devices))
			}
			for _, d := range s.Devices {
				if seen[d.Name] {
					t.Fatalf("two devices are named %s", d.Name)
				}
				seen[d.Name] = true
				var have []string
				for k := range d.Attributes {
					have = append(have, string(k))
				}
				slices.Sort(have)
				if attributes == nil {
					attributes = have
				}
				if !slices.Equal(attributes, have) {
					t.Fatalf("%s has attributes %v, others %v", d.Name, have, attributes)
				}
				if n := len(d.Attributes) + len(d.Capacity); n > 32 {
					t.Fatalf("%s has %d attributes and capacities, the API takes 32", d.Name, n)
				}
				for name, c := range d.Capacity {
					if d.AllowMultipleAllocations == nil {
						if c.RequestPolicy != nil {
							t.Fatalf("%s is exclusive and has a policy for %s", d.Name, name)
						}
						continue
					}
					checkPolicy(t, d.Name+" "+string(name), c)
				}
			}
		}
		for _, c := range p.Cards {
			if c.SliceMi > 0 && c.MemoryMi%c.SliceMi != 0 {
				t.Fatalf("%s: slices of %dMi make %dMi in all", c.Device, c.SliceMi, c.MemoryMi)
			}
			if c.LargestMi > c.UsableMi() || c.DefaultMi > c.LargestMi && c.Unfit == nil {
				t.Fatalf("%s: default %dMi, largest %dMi, %dMi usable", c.Device, c.DefaultMi, c.LargestMi, c.UsableMi())
			}
			if c.MemoryMi > c.UsableMi() && (!c.Oversubscribed || c.Whole(c.LargestMi)) {
				t.Fatalf("%s: %dMi are given out of %dMi without a limit", c.Device, c.MemoryMi, c.UsableMi())
			}
		}
	})
}

// checkPolicy holds a request policy against the API's rules.
func checkPolicy(t *rapid.T, what string, c resourceapi.DeviceCapacity) {
	p := c.RequestPolicy
	if p == nil || p.Default == nil {
		t.Fatalf("%s has no default", what)
	}
	value, def := c.Value.Value(), p.Default.Value()
	if def > value {
		t.Fatalf("%s: default %d above value %d", what, def, value)
	}
	if r := p.ValidRange; r != nil {
		if def < r.Min.Value() || (def-r.Min.Value())%r.Step.Value() != 0 {
			t.Fatalf("%s: default %d with min %d step %d", what, def, r.Min.Value(), r.Step.Value())
		}
		if r.Max != nil && (r.Max.Value() < def || r.Max.Value() > value || (r.Max.Value()-r.Min.Value())%r.Step.Value() != 0) {
			t.Fatalf("%s: max %d with default %d value %d", what, r.Max.Value(), def, value)
		}
		if r.Min.Value()+r.Step.Value() > value && r.Min.Value() != value {
			t.Fatalf("%s: min %d + step %d above value %d", what, r.Min.Value(), r.Step.Value(), value)
		}
		return
	}
	if !slices.ContainsFunc(p.ValidValues, p.Default.Equal) {
		t.Fatalf("%s: default is not a valid value", what)
	}
}
