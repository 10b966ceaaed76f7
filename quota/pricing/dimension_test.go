package pricing

import (
	"context"
	"math"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

// in prices a claim on a fleet whose cards are known by their attributes.
func in(t *testing.T, list []Dimension, devices []Device, c *resourceapi.DeviceClaim, labels map[string]string) (More, error) {
	t.Helper()
	d, err := Compile(list)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewFleet("f", stockClasses(), devices, nil, WithTariff(Tariff{Dimensions: d, Flavor: "f", NodeLabels: labels})).Claim(context.Background(), c)
	return p.More, err
}

func TestDimensionsArePricedByDeviceAndRequest(t *testing.T) {
	a100, half := card("gpu-0", "80Gi", ""), card("gpu-1", "40Gi", "")
	a100.Attributes["fp16TFLOPS"] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(312))}
	half.Attributes["fp16TFLOPS"] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(100))}
	tflops := Dimension{Name: "example.com/tflops", Expression: `device.attributes["gpu.sluice.dev"].fp16TFLOPS * math.greatest(request.coresShare, request.memoryShare)`}
	cards := Dimension{Name: "quota.sluice.dev/cards", Expression: Cards, Thousandths: true}
	cost := Dimension{Name: "example.com/cents-per-hour", Expression: `double(flavor.nodeLabels["cents"]) * request.coresShare`}
	mebi := Dimension{Name: "nvidia.com/total-gpumem", Expression: "request.memory / 1048576.0"}

	for _, tc := range []struct {
		name    string
		d       Dimension
		devices []Device
		r       resourceapi.DeviceRequest
		want    int64
	}{
		{"a whole card", tflops, on("n", a100), ask("gpu.sluice.dev", "", "", 1), 312},
		{"half a card, twice", tflops, on("n", a100, a100), ask("gpu.sluice.dev", "10Gi", "50", 2), 312},
		{"rounded up", tflops, on("n", a100), ask("gpu.sluice.dev", "1Gi", "1", 1), 4},
		{"the dearest card of the flavor", tflops, on("n", half, a100), ask("gpu.sluice.dev", "", "", 1), 312},
		{"a quarter by memory", cards, on("n", a100), ask("gpu.sluice.dev", "20Gi", "10", 1), 250},
		{"a third by time", cards, on("n", a100), ask("gpu.sluice.dev", "20Gi", "33", 1), 330},
		{"all memory is the card", cards, on("n", a100), ask("gpu.sluice.dev", "", "", 1), 1000},
		{"an instance is the part of the card that its time is", cards, on("n", mig("mig-0", "10Gi")), ask("mig.gpu.sluice.dev", "", "", 1), 140},
		{"by the label of the flavor's nodes", cost, on("n", a100), ask("gpu.sluice.dev", "1Gi", "30", 1), 75},
		{"whole numbers are not rounded up", mebi, on("n", a100), ask("gpu.sluice.dev", "3000Mi", "", 1), 3000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := in(t, []Dimension{tc.d}, tc.devices, claim(tc.r), map[string]string{"cents": "250"})
			if err != nil || got[0] != tc.want {
				t.Errorf("%d, %v, want %d", got[0], err, tc.want)
			}
		})
	}
}

func TestMistakesInDimensionsShowAtStart(t *testing.T) {
	for _, tc := range []struct{ name, expression, want string }{
		{"no CEL", "request.", "Syntax error"},
		{"not a number", `device.name + "x"`, "a number is needed"},
		{"text where it shows only later", `device.attributes["gpu.sluice.dev"].productName`, "a number is needed"},
		{"a whole number among doubles", "request.memory / 1024", "write 100.0, not 100"},
		{"an attribute that nothing has", `device.attributes["gpu.sluice.dev"].tflops * 2.0`, "no such key: tflops"},
		{"what is not there", "price * 2.0", "undeclared reference"},
		{"less than nothing", "request.cores - 50.0", "not negative"},
		{"a division by nothing", "1.0 / request.cores", "not negative"},
		{"an endless one", `[1,2,3,4,5,6,7,8,9].map(a, [1,2,3,4,5,6,7,8,9].map(b, [1,2,3,4,5,6,7,8,9].map(c, [1,2,3,4,5,6,7,8,9].map(d, [1,2,3,4,5,6,7,8,9].map(e, a*b*c*d*e))))).size()`, "cost limit"},
		{"nothing", "", "0 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Compile([]Dimension{{Name: "example.com/x", Expression: tc.expression}})
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "example.com/x") {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
	if _, err := Compile([]Dimension{{Name: ResourceMemory, Expression: Cards}}); err == nil {
		t.Error("a dimension replaces the memory")
	}
	if _, err := Compile(make([]Dimension, MaxDimensions+1)); err == nil {
		t.Error("there are more dimensions than are counted")
	}
}

// TestADimensionThatFailsIsNeverFree: what cannot be priced is not admitted.
func TestADimensionThatFailsIsNeverFree(t *testing.T) {
	for _, expression := range []string{`double(flavor.nodeLabels["price"])`, `device.attributes["gpu.sluice.dev"].fp16TFLOPS`} {
		_, err := in(t, []Dimension{{Name: "example.com/x", Expression: expression}}, on("n", card("gpu-0", "80Gi", "")), claim(ask("gpu.sluice.dev", "", "", 1)), nil)
		if err == nil || !strings.Contains(err.Error(), "example.com/x") {
			t.Errorf("%s: %v", expression, err)
		}
	}
}

func TestAmountsOfDimensionsRoundUpAndSaturate(t *testing.T) {
	d, err := Compile([]Dimension{{Name: "example.com/x", Expression: "request.memory * 1.0e290"}, {Name: "example.com/y", Expression: "request.memory * 1.0e10"}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewFleet("f", stockClasses(), on("n", card("gpu-0", "80Gi", "")), nil, WithTariff(Tariff{Dimensions: d})).Claim(context.Background(), claim(ask("gpu.sluice.dev", "", "", 1)))
	if err != nil || p.More[0] != math.MaxInt64 || p.More[1] != math.MaxInt64 {
		t.Errorf("%v, %v", p.More, err)
	}
	if sum := p.Add(p); sum.More[0] != math.MaxInt64 {
		t.Errorf("the sum wraps: %v", sum.More)
	}
	rapid.Check(t, func(t *rapid.T) {
		c := compiled{Dimension: Dimension{Thousandths: rapid.Bool().Draw(t, "thousandths")}}
		x := rapid.Float64Range(0, 1e15).Draw(t, "x")
		n, err := c.count(x)
		scaled := x
		if c.Thousandths {
			scaled *= 1000
		}
		if err != nil || float64(n) < scaled-scaled*1e-11 || float64(n) > scaled+1 {
			t.Fatalf("%v becomes %d, %v", x, n, err)
		}
	})
}

func TestAFlavorsScoreIsThatOfItsCheapestCard(t *testing.T) {
	d, err := Compile([]Dimension{{Name: "example.com/cost", Expression: "request.memory / 1073741824.0"}})
	if err != nil {
		t.Fatal(err)
	}
	monitor := &resourceapi.Device{Name: "monitor"}
	f := NewFleet("f", stockClasses(), on("n", card("gpu-0", "80Gi", ""), card("gpu-1", "24Gi", ""), monitor), nil, WithTariff(Tariff{Dimensions: d}))
	if n, ok := f.Score(context.Background(), "example.com/cost"); !ok || n != 24 {
		t.Errorf("%d, %v", n, ok)
	}
	if _, ok := f.Score(context.Background(), "example.com/other"); ok {
		t.Error("a dimension that is not there has a score")
	}
}
