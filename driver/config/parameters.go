package config

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/sluice-gpu/sluice/driver"
)

// Parameters are the valid SliceConfigs of one allocation.
type Parameters struct {
	list []parameter
}

type parameter struct {
	// where is the entry without its parameters, for matching requests.
	where resourceapi.DeviceAllocationConfiguration
	slice *SliceConfig
}

// AllocatedParameters reads the parameters of an allocation that are for this
// driver, those of classes before those of the claim. Entries for other drivers
// are not looked at. at is the path of the list.
func AllocatedParameters(configs []resourceapi.DeviceAllocationConfiguration, at *field.Path) (Parameters, field.ErrorList) {
	var p Parameters
	var errs field.ErrorList
	for i, c := range configs {
		if c.Opaque == nil || c.Opaque.Driver != driver.Name {
			continue
		}
		from := FromClaim
		if c.Source == resourceapi.AllocationConfigSourceClass {
			from = FromClass
		}
		s, bad := DecodeSlice(c.Opaque.Parameters.Raw, from, parametersOf(at.Index(i)))
		errs = append(errs, bad...)
		p.list = append(p.list, parameter{c, s})
	}
	if len(errs) > 0 {
		return Parameters{}, errs
	}
	slices.SortStableFunc(p.list, func(a, b parameter) int { return rank(a.where.Source) - rank(b.where.Source) })
	return p, nil
}

func rank(s resourceapi.AllocationConfigSource) int {
	if s == resourceapi.AllocationConfigSourceClass {
		return 0
	}
	return 1
}

// For merges what applies to one result: field by field, later entries over
// earlier ones, the claim over the class. Nothing said gives an empty
// SliceConfig.
func (p Parameters) For(r resourceapi.DeviceRequestAllocationResult) SliceConfig {
	var out SliceConfig
	for _, e := range p.list {
		if len(resourceclaim.ConfigForResult([]resourceapi.DeviceAllocationConfiguration{e.where}, r)) > 0 {
			out.override(e.slice)
		}
	}
	return out
}

// ValidateClaimConfig checks the parameters for this driver in a claim's or a
// template's spec.devices.config, whose path is at.
func ValidateClaimConfig(configs []resourceapi.DeviceClaimConfiguration, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, c := range configs {
		errs = append(errs, validateEntry(c.DeviceConfiguration, FromClaim, at.Index(i))...)
	}
	return errs
}

// ValidateClassConfig checks the parameters for this driver in a class's
// spec.config, whose path is at.
func ValidateClassConfig(configs []resourceapi.DeviceClassConfiguration, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, c := range configs {
		errs = append(errs, validateEntry(c.DeviceConfiguration, FromClass, at.Index(i))...)
	}
	return errs
}

func validateEntry(c resourceapi.DeviceConfiguration, from From, at *field.Path) field.ErrorList {
	if c.Opaque == nil || c.Opaque.Driver != driver.Name {
		return nil
	}
	_, errs := DecodeSlice(c.Opaque.Parameters.Raw, from, parametersOf(at))
	return errs
}

func parametersOf(at *field.Path) *field.Path { return at.Child("opaque", "parameters") }
