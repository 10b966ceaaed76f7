package config

import (
	"context"
	"fmt"
	"path"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/cel"
)

// DeviceSelector matches cards. A card must satisfy all that is said, and
// something must be.
type DeviceSelector struct {
	// Product is a glob ("*", "?", "[a-c]") over the whole product name as
	// the driver reports it, for example "NVIDIA A100*".
	Product string `json:"product,omitempty"`

	// CEL is an expression as in a DeviceClass or a claim, over the attributes
	// that cards are published with; device.capacity has the memory of the
	// whole card, whatever the group gives out of it.
	CEL string `json:"cel,omitempty"`

	compiled *cel.CompilationResult
}

// Matches tells whether a card with the product name is meant, which CEL sees
// as device says. No selector means every card. The error is one of evaluation: the expression reads what the
// device does not have.
func (s *DeviceSelector) Matches(product string, device func() cel.Device) (bool, error) {
	if s == nil {
		return true, nil
	}
	if s.Product != "" {
		if ok, err := path.Match(s.Product, product); !ok || err != nil {
			return false, err
		}
	}
	if s.CEL == "" {
		return true, nil
	}
	compiled := s.compiled
	if compiled == nil {
		compiled = compile(s.CEL)
	}
	if compiled.Error != nil {
		return false, compiled.Error
	}
	ok, _, err := compiled.DeviceMatches(context.Background(), device())
	return ok, err
}

func compile(expression string) *cel.CompilationResult {
	// The features are those that the API server compiles selectors with.
	r := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(expression, cel.Options{DisableCostEstimation: true})
	return &r
}

// validateDeviceSelector also keeps what it compiled.
func validateDeviceSelector(s *DeviceSelector, at *field.Path) field.ErrorList {
	if s.Product == "" && s.CEL == "" {
		return field.ErrorList{field.Required(at, "an empty selector would match nothing in particular; say product or cel, or leave deviceSelector out to take all cards")}
	}
	var errs field.ErrorList
	if _, err := path.Match(s.Product, ""); err != nil {
		errs = append(errs, field.Invalid(at.Child("product"), s.Product, "is not a well-formed glob"))
	}
	if s.CEL != "" {
		if s.compiled = compile(s.CEL); s.compiled.Error != nil {
			errs = append(errs, field.Invalid(at.Child("cel"), s.CEL, fmt.Sprintf("is no selector of devices: %s", s.compiled.Error.Detail)))
		}
	}
	return errs
}
