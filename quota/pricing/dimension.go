package pricing

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/ext"
	resourceapi "k8s.io/api/resource/v1"
)

// MaxDimensions is how many dimensions there may be beside devices, memory and
// cores.
const MaxDimensions = 8

// More are the amounts of a price in the dimensions of a [Dimensions], in their
// order.
type More [MaxDimensions]int64

// Dimension is one more thing that a budget can count.
type Dimension struct {
	// Name is the resource's in ClusterQueues.
	Name string
	// Expression is CEL: what one device of a request costs. It sees
	//
	//	device.driver, device.name, device.node, device.pool
	//	device.attributes[domain].name  numbers are doubles, versions strings
	//	device.capacity[domain].name    as doubles, in bytes or percent
	//	request.memory, request.cores   what is taken of the device
	//	request.memoryShare, request.coresShare  the same as parts of a card
	//	flavor.name, flavor.nodeLabels
	//
	// all numbers as doubles, and gives a number that is not negative.
	Expression string
	// Thousandths says that amounts are counted in thousandths, otherwise in
	// whole numbers. Either way they are rounded up.
	Thousandths bool
}

// Cards is the expression of how many cards a request is worth: the larger of
// its parts of a card's memory and of its time. It is computed without CEL,
// since it is always there.
const Cards = "math.greatest(request.memoryShare, request.coresShare)"

// maxCost bounds one evaluation, in CEL's units; an expression of some twenty
// operations costs less than a thousandth of it.
const maxCost = 100_000

// maxExpression is the longest expression that is read.
const maxExpression = 10 * 1024

// Dimensions are compiled dimensions. They are read-only and may be used by
// several goroutines; nil has none.
type Dimensions struct{ all []compiled }

type compiled struct {
	Dimension
	// program is nil for [Cards].
	program celgo.Program
}

// Compile reads dimensions and tries each on cards like those that the driver
// publishes, so that mistakes show at start and not when somebody waits.
func Compile(list []Dimension) (*Dimensions, error) {
	if len(list) > MaxDimensions {
		return nil, fmt.Errorf("%d dimensions, at most %d are counted", len(list), MaxDimensions)
	}
	d := &Dimensions{}
	for _, one := range list {
		if slices.ContainsFunc(d.all, func(c compiled) bool { return c.Name == one.Name }) ||
			slices.Contains([]string{ResourceDevices, ResourceMemory, ResourceCores}, one.Name) {
			return nil, fmt.Errorf("dimension %s is there twice", one.Name)
		}
		c, err := compile(one)
		if err == nil {
			err = c.try()
		}
		if err != nil {
			return nil, fmt.Errorf("dimension %s: %w", one.Name, err)
		}
		d.all = append(d.all, c)
	}
	return d, nil
}

// Names are the resources' names, in the order of [More].
func (d *Dimensions) Names() []string {
	if d == nil {
		return nil
	}
	names := make([]string, len(d.all))
	for i := range d.all {
		names[i] = d.all[i].Name
	}
	return names
}

// environment is what expressions may use.
func environment() (*celgo.Env, error) {
	return celgo.NewEnv(
		celgo.Variable("device", celgo.MapType(celgo.StringType, celgo.DynType)),
		celgo.Variable("request", celgo.MapType(celgo.StringType, celgo.DoubleType)),
		celgo.Variable("flavor", celgo.MapType(celgo.StringType, celgo.DynType)),
		celgo.OptionalTypes(), celgo.CrossTypeNumericComparisons(true), ext.Math(), ext.Strings(),
	)
}

func compile(one Dimension) (compiled, error) {
	c := compiled{Dimension: one}
	if one.Expression == Cards {
		return c, nil
	}
	if one.Expression == "" || len(one.Expression) > maxExpression {
		return c, fmt.Errorf("its expression has %d bytes, 1 to %d are read", len(one.Expression), maxExpression)
	}
	env, err := environment()
	if err != nil {
		return c, err
	}
	ast, issues := env.Compile(one.Expression)
	if issues.Err() != nil {
		text := issues.Err().Error()
		if strings.Contains(text, "no matching overload") {
			text += "\n (all numbers are doubles: write 100.0, not 100)"
		}
		return c, errors.New(text)
	}
	switch out := ast.OutputType(); {
	case out.IsExactType(celgo.DoubleType), out.IsExactType(celgo.IntType), out.IsExactType(celgo.DynType):
	default:
		return c, fmt.Errorf("its expression gives a %s, a number is needed", out)
	}
	c.program, err = env.Program(ast, celgo.CostLimit(maxCost), celgo.EvalOptions(celgo.OptOptimize))
	return c, err
}

// try evaluates an expression for a whole card and for part of one. What a node
// label is cannot be known here, so its absence is no mistake.
func (c *compiled) try() error {
	card := sample()
	for _, share := range []Price{{Devices: 1, Memory: 80 << 30, Cores: WholeCard}, {Devices: 1, Memory: 1 << 28}} {
		_, err := c.amount(context.Background(), share, card, Tariff{Flavor: "sample"})
		if err != nil && !(strings.Contains(c.Expression, "nodeLabels") && strings.Contains(err.Error(), "no such key")) {
			return fmt.Errorf("%w (tried on a card with attributes %s)", err, quoteKeys(sortedKeys(card.Attributes)))
		}
	}
	return nil
}

// amount is what a share of a device, or a device taken whole, costs.
func (c *compiled) amount(ctx context.Context, share Price, d Device, t Tariff) (int64, error) {
	request := parts(share, d)
	if c.program == nil {
		return c.count(max(request["memoryShare"], request["coresShare"]))
	}
	out, _, err := c.program.ContextEval(ctx, map[string]any{"device": variables(d), "request": request, "flavor": t.variables()})
	if err != nil {
		return 0, err
	}
	n, err := number(out)
	if err != nil {
		return 0, err
	}
	return c.count(n)
}

func number(v ref.Val) (float64, error) {
	switch n := v.Value().(type) {
	case float64:
		return n, nil
	case int64:
		return float64(n), nil
	case uint64:
		return float64(n), nil
	}
	return 0, fmt.Errorf("its expression gives a %s, a number is needed", v.Type().TypeName())
}

// count rounds up to whole units. A hair above a whole number is that number:
// 0.1 + 0.2 are three tenths.
func (c *compiled) count(n float64) (int64, error) {
	if math.IsNaN(n) || math.IsInf(n, 0) || n < 0 {
		return 0, fmt.Errorf("its expression gives %v, a number that is not negative is needed", n)
	}
	if c.Thousandths {
		n *= 1000
	}
	n = math.Ceil(n - n*1e-12)
	if n >= math.MaxInt64 {
		return math.MaxInt64, nil
	}
	return int64(n), nil
}

// parts is what a request takes of a device.
func parts(share Price, d Device) map[string]float64 {
	cores := float64(share.Cores) / WholeCard
	memory := 0.0
	if all, ok := d.Capacity[CapacityMemory]; ok && all.Value.Sign() > 0 {
		memory = float64(share.Memory) / all.Value.AsApproximateFloat64()
	}
	if !d.Shareable() && allCores(d.Device) < WholeCard {
		// An instance of a card publishes its own memory; its cores say which part
		// of the card it is.
		memory = cores
	}
	return map[string]float64{
		"memory": float64(share.Memory), "cores": float64(share.Cores),
		"memoryShare": memory, "coresShare": cores,
	}
}

func variables(d Device) map[string]any {
	attributes := map[string]map[string]any{}
	for name, a := range d.Attributes {
		domain, id := qualified(name)
		if attributes[domain] == nil {
			attributes[domain] = map[string]any{}
		}
		attributes[domain][id] = attribute(a)
	}
	capacity := map[string]map[string]float64{}
	for name, c := range d.Capacity {
		domain, id := qualified(name)
		if capacity[domain] == nil {
			capacity[domain] = map[string]float64{}
		}
		capacity[domain][id] = c.Value.AsApproximateFloat64()
	}
	return map[string]any{
		"driver": DriverName, "name": d.Device.Name, "node": d.Node, "pool": d.Pool,
		"attributes": attributes, "capacity": capacity,
	}
}

func attribute(a resourceapi.DeviceAttribute) any {
	switch {
	case a.IntValue != nil:
		return float64(*a.IntValue)
	case a.BoolValue != nil:
		return *a.BoolValue
	case a.VersionValue != nil:
		return *a.VersionValue
	case a.StringValue != nil:
		return *a.StringValue
	}
	return nil
}

// qualified splits a name; without a domain it is the driver's.
func qualified(name resourceapi.QualifiedName) (domain, id string) {
	if domain, id, ok := strings.Cut(string(name), "/"); ok {
		return domain, id
	}
	return DriverName, string(name)
}
