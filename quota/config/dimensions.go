package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

// Dimension is one more thing that budgets count.
type Dimension struct {
	// Name is the resource's in ClusterQueues, for example
	// example.com/fp16-tflops. Amounts are whole numbers; under quota.sluice.dev/
	// they have three decimals.
	Name string `json:"name"`
	// Expression is CEL and says what one device of a request costs; see
	// [pricing.Dimension].
	Expression string `json:"expression"`
}

// CardsName is the dimension that is always there: how many cards a request is
// worth, by memory or by time, whichever is more.
const CardsName = "quota.sluice.dev/cards"

var presets = map[string][]Dimension{
	"hami": {
		{Name: "nvidia.com/total-gpumem", Expression: "request.memory / 1048576.0"},
		{Name: "nvidia.com/total-gpucores", Expression: "request.cores"},
	},
}

// Pricing are the dimensions beside devices, memory and cores.
func (c *QuotaConfiguration) Pricing() *pricing.Dimensions { return c.compiled }

func (c *QuotaConfiguration) compile() error {
	all := []Dimension{{Name: CardsName, Expression: pricing.Cards}}
	for _, name := range c.Presets {
		preset, ok := presets[name]
		if !ok {
			return fmt.Errorf("presets names %q, known are %s", name, strings.Join(slices.Sorted(maps.Keys(presets)), ", "))
		}
		all = append(all, preset...)
	}
	all = append(all, c.Dimensions...)
	var list []pricing.Dimension
	for _, d := range all {
		domain, _, qualified := strings.Cut(d.Name, "/")
		if wrong := validation.IsQualifiedName(d.Name); len(wrong) > 0 || !qualified {
			return fmt.Errorf("dimension %q: its name must be one that a resource can have, with a domain, as in example.com/fp16-tflops", d.Name)
		}
		if domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") {
			return fmt.Errorf("dimension %q: names under kubernetes.io are taken", d.Name)
		}
		list = append(list, pricing.Dimension{Name: d.Name, Expression: d.Expression, Thousandths: engine.InThousandths(engine.Resource(d.Name))})
	}
	compiled, err := pricing.Compile(list)
	if err != nil {
		return err
	}
	c.compiled = compiled
	if c.FlavorOrder != "" && !slices.Contains(compiled.Names(), c.FlavorOrder) {
		return fmt.Errorf("flavorOrder is %q, which is none of the dimensions %s", c.FlavorOrder, strings.Join(compiled.Names(), ", "))
	}
	return nil
}
