package slicing

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/gpu"
)

// row is a node with n cards that are all offered in one group.
func row(t testing.TB, n int, order config.Order) (*Plan, error) {
	t.Helper()
	var cards []gpu.GPU
	for i := range n {
		g := models["A100"]
		g.UUID, g.PCIBusID = fmt.Sprintf("GPU-%08x-0000-0000-0000-000000000000", i), fmt.Sprintf("0000:%02x:00.0", i)
		cards = append(cards, g)
	}
	return Make(cards, nil, &config.DriverConfiguration{NodeGroups: []config.NodeGroup{{Name: "all", Mode: config.Dynamic, Order: order}}})
}

func TestTheCardThatHoldsLeastIsFirst(t *testing.T) {
	const a, b, c = "gpu-00000000", "gpu-00000001", "gpu-00000002"
	pci := []string{a, b, c}
	for name, tc := range map[string]struct {
		held    map[string]Holding
		present []string
		want    []string
		changed bool
	}{
		"nothing is held":                {nil, pci, pci, false},
		"nothing was arranged":           {nil, nil, pci, false},
		"less memory":                    {map[string]Holding{a: {300, 1}, b: {200, 1}, c: {100, 1}}, pci, []string{c, b, a}, true},
		"memory before shares":           {map[string]Holding{a: {300, 1}, b: {200, 9}, c: {400, 1}}, pci, []string{b, a, c}, true},
		"fewer shares":                   {map[string]Holding{a: {200, 3}, b: {200, 2}, c: {200, 1}}, pci, []string{c, b, a}, true},
		"the same of all":                {map[string]Holding{a: {200, 2}, b: {200, 2}, c: {200, 2}}, pci, pci, false},
		"back in PCI order":              {nil, []string{c, a, b}, pci, true},
		"arranged so already":            {map[string]Holding{a: {1, 1}}, []string{b, c, a}, []string{b, c, a}, false},
		"a card is gone that was first":  {nil, []string{"gpu-0000000f", a, b, c}, pci, false},
		"a card is new":                  {map[string]Holding{a: {1, 1}}, []string{b, a}, []string{b, c, a}, true},
		"holdings of what is no card":    {map[string]Holding{"monitor": {1, 1}, "gpu-0000000f": {1, 1}}, pci, pci, false},
		"a name is said twice of a card": {nil, []string{a, a, b, c}, pci, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := row(t, 3, config.Spread)
			if err != nil {
				t.Fatal(err)
			}
			got, changed := p.Spread(tc.held, tc.present)
			if !slices.Equal(got, tc.want) || changed != tc.changed {
				t.Errorf("got %v, changed %v; want %v, changed %v", got, changed, tc.want, tc.changed)
			}
			p.Arrange(got)
			if published := deviceList(p); !slices.Equal(published, append(slices.Clone(tc.want), "monitor")) {
				t.Errorf("published %v", published)
			}
		})
	}
}

func genHeld(t *rapid.T, p *Plan) map[string]Holding {
	out := map[string]Holding{}
	for _, c := range p.Cards {
		if rapid.Bool().Draw(t, "used") {
			out[c.Device] = Holding{MemoryMi: int64(rapid.IntRange(0, 3).Draw(t, "memory")) << 10, Shares: rapid.IntRange(1, 3).Draw(t, "shares")}
		}
	}
	return out
}

func TestTheOrderChangesOnlyIfHoldingsDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cards, labels, cfg := genNode(t)
		p, _ := Make(cards, labels, cfg)
		held := genHeld(t, p)
		next, _ := p.Spread(held, rapid.Permutation(deviceList(p)).Draw(t, "present"))
		if again, changed := p.Spread(held, next); changed || !slices.Equal(again, next) {
			t.Fatalf("%v became %v", next, again)
		}
	})
}

func TestWhatIsOfferedIsTheSameInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cards, labels, cfg := genNode(t)
		p, _ := Make(cards, labels, cfg)
		before := p.Devices()
		next, changed := p.Spread(genHeld(t, p), nil)
		p.Arrange(next)
		after := p.Devices()
		if !changed && !reflect.DeepEqual(before, after) {
			t.Fatal("no change, and another list")
		}
		if len(before) != len(after) {
			t.Fatalf("%d devices became %d", len(before), len(after))
		}
		for i, d := range before {
			k := slices.IndexFunc(after, func(o resourceapi.Device) bool { return o.Name == d.Name })
			if k < 0 || !reflect.DeepEqual(after[k], d) {
				t.Fatalf("%s was changed or lost", d.Name)
			}
			if c, ok := p.Card(d.Name); (!ok || !c.Spread) && k != i {
				t.Fatalf("%s is not spread, and was moved from place %d to %d", d.Name, i, k)
			}
		}
	})
}

func TestCardsArePackedUnlessTheGroupSpreadsThem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cards, labels, cfg := genNode(t)
		for i := range cfg.NodeGroups {
			cfg.NodeGroups[i].Order = rapid.SampledFrom([]config.Order{"", config.Pack}).Draw(t, "order")
		}
		p, _ := Make(cards, labels, cfg)
		before := p.Slices()
		next, changed := p.Spread(genHeld(t, p), nil)
		p.Arrange(next)
		if p.Spreads() || changed || !reflect.DeepEqual(before, p.Slices()) {
			t.Fatal("cards were moved")
		}
	})
}

func TestCardsAreNotSpreadOverSeveralSlices(t *testing.T) {
	if _, err := row(t, maxDevices-1, config.Spread); err != nil {
		t.Errorf("a full slice: %v", err) // with the monitor
	}
	p, err := row(t, maxDevices, config.Spread)
	var misfit Misfit
	if !errors.As(err, &misfit) {
		t.Fatalf("error %v, want a misfit", err)
	}
	if group, field := misfit.Where(); group != "all" || field != "order" {
		t.Errorf("it is about %s of %s", field, group)
	}
	for _, want := range []string{"65 devices", "2 ResourceSlices", "say order: pack"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	for _, c := range p.Cards {
		if c.Spread || c.Unfit == nil || c.Unfit.Key != "misconfigured" || c.Unfit.Reason != err.Error() {
			t.Fatalf("%s: spread %v, unfit %+v", c.Device, c.Spread, c.Unfit)
		}
	}
	if _, err := row(t, maxDevices, config.Pack); err != nil {
		t.Errorf("packed: %v", err)
	}
}
