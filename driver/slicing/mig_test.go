package slicing

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/gpu"
)

// a100Profiles are those of an A100 of 80 GB (NVIDIA MIG user guide).
func a100Profiles() []gpu.MIGProfile {
	row := func(name string, id, slices, count, sms, ofa int, mi int64, size int, starts ...int) gpu.MIGProfile {
		p := gpu.MIGProfile{Name: name, ID: id, Slices: slices, Count: count, MemoryMi: mi, Engines: gpu.Engines{SMs: sms, Copy: slices, OFA: ofa, JPEG: ofa}}
		for _, s := range starts {
			p.Places = append(p.Places, gpu.Place{Start: s, Size: size})
		}
		return p
	}
	return []gpu.MIGProfile{
		row("1g.10gb", 19, 1, 7, 14, 0, 9728, 1, 0, 1, 2, 3, 4, 5, 6),
		row("2g.20gb", 14, 2, 3, 28, 0, 19968, 2, 0, 2, 4),
		row("3g.40gb", 9, 3, 2, 42, 0, 40192, 4, 0, 4),
		row("4g.40gb", 5, 4, 1, 56, 0, 40192, 4, 0),
		row("7g.80gb", 0, 7, 1, 98, 1, 80384, 8, 0),
		row("1g.10gb+me", 20, 1, 1, 14, 1, 9728, 1, 0, 1, 2, 3, 4, 5, 6),
		row("1g.20gb", 15, 1, 4, 14, 0, 19968, 2, 0, 2, 4, 6),
	}
}

type fatal interface{ Fatalf(string, ...any) }

// partition reads "3g.40gb@0,1c.3g.40gb@4": instances that are there.
func partition(t fatal, text string) *gpu.Partition {
	p := &gpu.Partition{Profiles: a100Profiles()}
	for n, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) {
		name, at, _ := strings.Cut(word, "@")
		whole := name
		if part, rest, ok := strings.Cut(name, "c."); ok && len(part) == 1 {
			whole = rest
		}
		i := slices.IndexFunc(p.Profiles, func(p gpu.MIGProfile) bool { return p.Name == whole })
		if i < 0 {
			t.Fatalf("no profile %s", whole)
		}
		var start int
		if _, err := fmt.Sscan(at, &start); err != nil {
			t.Fatalf("place %s: %v", word, err)
		}
		profile := p.Profiles[i]
		p.Instances = append(p.Instances, gpu.Instance{
			ID: n + 1, ProfileID: profile.ID, Place: gpu.Place{Start: start, Size: profile.Places[0].Size},
			Devices: []gpu.MIGDevice{{UUID: fmt.Sprintf("MIG-%d", n), Profile: name, MemoryMi: profile.MemoryMi, Engines: profile.Engines}},
		})
	}
	return p
}

// counters prints memory slices as a map of the card, the rest by name.
func counters(c map[string]resourceapi.Counter) string {
	place := []byte("--------")
	var rest []string
	for name, v := range c {
		var n int
		if _, err := fmt.Sscanf(name, "memory-slice-%d", &n); err == nil {
			place[n] = byte('0' + v.Value.Value())
			continue
		}
		rest = append(rest, name+"="+v.Value.String())
	}
	slices.Sort(rest)
	return " " + string(place) + " " + strings.Join(rest, " ")
}

// Whatever claims come in whatever order, and some go, no two that live have a
// memory slice in common, and none of them one of an instance that is there.
func TestInstancesThatAreGivenOutNeverOverlap(t *testing.T) {
	outer := t
	rapid.Check(t, func(t *rapid.T) {
		g := models["A100"]
		g.UUID, g.PCIBusID, g.MIG = "GPU-aaaa0001-0000-0000-0000-000000000000", "0000:a0:00.0", true
		g.Partition = partition(t, rapid.SampledFrom([]string{"", "3g.40gb@0", "1g.10gb@6", "2g.20gb@2,1g.10gb@6"}).Draw(t, "there"))
		p, err := Make([]gpu.GPU{g}, nil, &config.DriverConfiguration{NodeGroups: []config.NodeGroup{{Name: "m", Mode: config.MIG, Profiles: []string{"*"}}}})
		if err != nil {
			t.Fatal(err)
		}
		pool := newAllocations(outer, p)
		taken := map[string]gpu.Place{}
		for range rapid.IntRange(1, 12).Draw(t, "claims") {
			if names := sorted(taken); len(names) > 0 && rapid.IntRange(0, 3).Draw(t, "release") == 0 {
				name := rapid.SampledFrom(names).Draw(t, "which")
				pool.give(name)
				delete(taken, name)
			}
			profile := rapid.SampledFrom([]string{"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}).Draw(t, "profile")
			name := pool.instance(outer, profile)
			if name == "" {
				continue
			}
			_, in, ok := p.Instance(name)
			if !ok || in.Profile != profile {
				t.Fatalf("%s was given for %s", name, profile)
			}
			for other, at := range taken {
				if at.Overlaps(in.Place) {
					t.Fatalf("%s and %s overlap", name, other)
				}
			}
			for _, there := range g.Partition.Instances {
				if in.UUID == "" && there.Overlaps(in.Place) {
					t.Fatalf("%s is where an instance is", name)
				}
			}
			taken[name] = in.Place
		}
	})
}

func sorted(m map[string]gpu.Place) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
