package config

import (
	"path"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateProfiles checks what belongs to mode mig, and what does not.
func validateProfiles(g NodeGroup, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if g.Mode != MIG {
		if g.Profiles != nil {
			errs = append(errs, field.Invalid(at.Child("profiles"), g.Profiles, "belongs to mode mig; in mode "+string(g.Mode)+" no MIG instances are made"))
		}
		return errs
	}
	for i, glob := range g.Profiles {
		if _, err := path.Match(glob, ""); err != nil || glob == "" {
			errs = append(errs, field.Invalid(at.Child("profiles").Index(i), glob, `is not a well-formed glob such as "1g.10gb" or "*g.*gb"`))
		}
	}
	const hardware = "in mode mig an instance has what its profile says"
	if g.Cores != 0 {
		errs = append(errs, field.Invalid(at.Child("cores"), g.Cores, hardware))
	}
	if g.Reserve != "" {
		errs = append(errs, field.Invalid(at.Child("reserve"), g.Reserve, hardware))
	}
	return errs
}
