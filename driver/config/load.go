package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apivalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// MinShareMi is the smallest part of a card that is ever given out.
const MinShareMi = 256

// maxFactor is the highest oversubscription that makes any sense: each of
// sixteen shares may use the whole card while the others idle.
const maxFactor = 16

// Default offers every card in mode dynamic.
func Default() *DriverConfiguration {
	c := &DriverConfiguration{}
	setDefaults(c)
	return c
}

// Load reads and checks a file. An empty name is the default configuration.
func Load(name string) (*DriverConfiguration, error) {
	if name == "" {
		return Default(), nil
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("driver configuration: %w", err)
	}
	c, err := Decode(data)
	if err != nil {
		return nil, fmt.Errorf("driver configuration %s: %w", name, err)
	}
	c.name = name
	return c, nil
}

// Decode parses YAML or JSON. Unknown and repeated fields are errors: a
// misspelt field would silently offer cards in another way than was meant.
// The result has defaults filled in and is valid. Errors that are about a
// field are of type Error.
func Decode(data []byte) (*DriverConfiguration, error) {
	text := readDocument(data)
	var meta metav1.TypeMeta
	if err := yaml.Unmarshal(data, &meta); err != nil {
		return nil, err
	}
	if meta.APIVersion != GroupVersion || meta.Kind != Kind {
		return nil, fmt.Errorf("is apiVersion %q kind %q, must be apiVersion %q kind %q", meta.APIVersion, meta.Kind, GroupVersion, Kind)
	}
	js, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, err
	}
	c := &DriverConfiguration{text: text}
	unknown, err := kjson.UnmarshalStrict(js, c)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		return nil, Error{text.wrongType(wrong)}
	case err != nil:
		return nil, err
	}
	var problems Error
	for _, err := range unknown {
		var fe kjson.FieldError
		path := ""
		if errors.As(err, &fe) {
			path = fe.FieldPath()
		}
		problems = append(problems, text.problem(path, err.Error()))
	}
	if len(problems) > 0 {
		return nil, problems
	}
	setDefaults(c)
	for _, err := range Validate(c) {
		problems = append(problems, text.problem(err.Field, err.Error()))
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return c, nil
}

// Wrong says that the configuration does not add up, though each field may be
// as it should: where is a node group's name and field, reason is for people.
func (c *DriverConfiguration) Wrong(group, fieldPath string, reason error) error {
	path := ""
	if i := slices.IndexFunc(c.NodeGroups, func(g NodeGroup) bool { return g.Name == group }); i >= 0 {
		path = field.NewPath("nodeGroups").Index(i).String() + "." + fieldPath
	}
	where := "driver configuration"
	if c.name != "" {
		where += " " + c.name
	}
	return &wrong{text: where + ": " + c.text.problem(path, reason.Error()).String(), reason: reason}
}

// wrong is a reason with the place that it is about.
type wrong struct {
	text   string
	reason error
}

func (w *wrong) Error() string { return w.text }
func (w *wrong) Unwrap() error { return w.reason }

func setDefaults(c *DriverConfiguration) {
	if c.Violations.Policy == "" {
		c.Violations.Policy = Report
	}
	if c.Violations.After.Duration == 0 {
		c.Violations.After.Duration = 30 * time.Second
	}
	c.APIVersion, c.Kind = GroupVersion, Kind
	if len(c.NodeGroups) == 0 {
		c.NodeGroups = []NodeGroup{{Name: "default"}}
	}
	for i := range c.NodeGroups {
		g := &c.NodeGroups[i]
		if g.Mode == "" {
			g.Mode = Dynamic
		}
		if g.Mode == Fixed && g.Memory == "" {
			g.Memory = Auto
		}
		if g.Order == "" {
			g.Order = Pack
		}
		if g.CorePolicy == "" {
			g.CorePolicy = Burst
		}
		if g.Enforcement == "" {
			g.Enforcement = Limiter
			if g.Mode == MIG {
				g.Enforcement = ByMIG
			}
		}
		if g.Mode == MIG && g.Profiles == nil {
			g.Profiles = []string{"*"}
		}
	}
}

// Validate checks what can be known without cards. Every error carries the
// path of its field.
func Validate(c *DriverConfiguration) field.ErrorList {
	var errs field.ErrorList
	if p := c.Violations.Policy; p != Report && p != Kill {
		errs = append(errs, field.NotSupported(field.NewPath("violations", "policy"), p, []ViolationPolicy{Report, Kill}))
	}
	if a := c.Violations.After; a.Duration <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("violations", "after"), a.Duration.String(), "is the time above its limit that a share is given, such as 30s"))
	}
	if q := c.Health.Quiet; q != nil && q.Duration <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("health", "quiet"), q.Duration.String(), "is the time without an error after which a card is offered again, such as 10m"))
	}
	names := map[string]bool{}
	for i, g := range c.NodeGroups {
		at := field.NewPath("nodeGroups").Index(i)
		switch {
		case g.Name == "":
			errs = append(errs, field.Required(at.Child("name"), "messages and metrics name the group"))
		case names[g.Name]:
			errs = append(errs, field.Duplicate(at.Child("name"), g.Name))
		}
		names[g.Name] = true
		errs = append(errs, validateNodeSelector(g.NodeSelector, at.Child("nodeSelector"))...)
		if s := g.DeviceSelector; s != nil {
			errs = append(errs, validateDeviceSelector(s, at.Child("deviceSelector"))...)
		}
		if g.Cores < 0 || g.Cores > 100 {
			errs = append(errs, field.Invalid(at.Child("cores"), g.Cores, "is a percentage of one card, 0 to 100"))
		}
		errs = append(errs, validatePolicies(g, at)...)
		errs = append(errs, validateOrder(g, at)...)
		errs = append(errs, validateMemory(g, at)...)
		errs = append(errs, validateProfiles(g, at)...)
		switch g.Mode {
		case Dynamic:
			errs = append(errs, validateUncut(g, at, "each claim names its size")...)
		case Whole:
			errs = append(errs, validateUncut(g, at, "every claim gets all of a card")...)
		case MIG:
			errs = append(errs, validateUncut(g, at, "the hardware cuts the card")...)
		case Fixed:
			errs = append(errs, validateFixed(g, at)...)
		default:
			errs = append(errs, field.NotSupported(at.Child("mode"), g.Mode, []Mode{Dynamic, Fixed, Whole, MIG}))
		}
	}
	return errs
}

func validatePolicies(g NodeGroup, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !slices.Contains(corePolicies, g.CorePolicy) {
		errs = append(errs, field.NotSupported(at.Child("corePolicy"), g.CorePolicy, corePolicies))
	}
	if g.CorePolicy == Hard && g.Cores == 0 && (g.Mode == Dynamic || g.Mode == Fixed) {
		errs = append(errs, field.Invalid(at.Child("cores"), g.Cores, "with corePolicy hard a share gets its cores and no more; say how many a claim gets that names none"))
	}
	switch {
	case !slices.Contains(enforcements, g.Enforcement):
		errs = append(errs, field.NotSupported(at.Child("enforcement"), g.Enforcement, enforcements))
	case (g.Enforcement == ByMIG) != (g.Mode == MIG):
		errs = append(errs, field.Invalid(at.Child("enforcement"), g.Enforcement, "instances are held by the hardware, so mode mig and enforcement mig go together"))
	}
	return errs
}

// validateOrder allows an order where a card takes shares beside others.
func validateOrder(g NodeGroup, at *field.Path) field.ErrorList {
	switch {
	case g.Order != Pack && g.Order != Spread:
		return field.ErrorList{field.NotSupported(at.Child("order"), g.Order, []Order{Pack, Spread})}
	case g.Order == Spread && (g.Mode == Whole || g.Mode == MIG):
		return field.ErrorList{field.Invalid(at.Child("order"), g.Order, fmt.Sprintf("in mode %s no two claims share a device, so that there is nothing to spread; it belongs to modes dynamic and fixed", g.Mode))}
	}
	return nil
}

// validateMemory checks what says how much of a card's memory is given out.
func validateMemory(g NodeGroup, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if g.DefaultMemory != "" {
		if g.Mode != Dynamic {
			errs = append(errs, field.Invalid(at.Child("defaultMemory"), g.DefaultMemory, fmt.Sprintf("belongs to mode dynamic; in mode %s there is one size", g.Mode)))
		} else if _, err := parseMi(g.DefaultMemory); err != nil {
			errs = append(errs, field.Invalid(at.Child("defaultMemory"), g.DefaultMemory, err.Error()))
		}
	}
	if _, err := parseReserve(g.Reserve); err != nil {
		errs = append(errs, field.Invalid(at.Child("reserve"), g.Reserve, err.Error()))
	}
	if f := g.Oversubscription; f != nil {
		at := at.Child("oversubscription")
		switch m := f.MilliValue(); {
		case m < 1000 || m > maxFactor*1000 || f.Cmp(*resource.NewMilliQuantity(m, resource.DecimalSI)) != 0:
			errs = append(errs, field.Invalid(at, f.String(), fmt.Sprintf("must be a number from 1 to %d in steps of 0.001", maxFactor)))
		case m > 1000 && (g.Mode == Whole || g.Mode == MIG):
			errs = append(errs, field.Invalid(at, f.String(), fmt.Sprintf("in mode %s a claim has its memory for itself; oversubscription belongs to modes dynamic and fixed", g.Mode)))
		}
	}
	return errs
}

func validateNodeSelector(selector map[string]string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	keys := make([]string, 0, len(selector))
	for k := range selector {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		one := map[string]string{k: selector[k]}
		errs = append(errs, apivalidation.ValidateLabelName(k, at)...)
		if _, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchLabels: one}); err != nil {
			errs = append(errs, field.Invalid(at.Key(k), selector[k], err.Error()))
		}
	}
	return errs
}

func validateUncut(g NodeGroup, at *field.Path, instead string) field.ErrorList {
	var errs field.ErrorList
	reason := fmt.Sprintf("belongs to mode fixed; in mode %s %s", g.Mode, instead)
	if g.Slices != 0 {
		errs = append(errs, field.Invalid(at.Child("slices"), g.Slices, reason))
	}
	if g.Memory != "" {
		errs = append(errs, field.Invalid(at.Child("memory"), g.Memory, reason))
	}
	return errs
}

func validateFixed(g NodeGroup, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if g.Slices < 1 {
		errs = append(errs, field.Invalid(at.Child("slices"), g.Slices, "mode fixed needs the number of slices per card, 1 or more"))
	}
	if g.Memory != Auto {
		if _, err := parseMi(g.Memory); err != nil {
			errs = append(errs, field.Invalid(at.Child("memory"), g.Memory, err.Error()))
		}
	}
	if g.Slices > 0 && g.Cores > 0 && g.Slices*g.Cores > 100 {
		errs = append(errs, field.Invalid(at.Child("cores"), g.Cores,
			fmt.Sprintf("%d slices with %d percent each make %d percent of a card; the largest guarantee is %d, and 0 lets every slice use idle time",
				g.Slices, g.Cores, g.Slices*g.Cores, 100/g.Slices)))
	}
	return errs
}

// parseMi reads a quantity that is a whole number of Mi, at least MinShareMi.
func parseMi(s string) (int64, error) {
	q, err := resource.ParseQuantity(s)
	if err != nil {
		return 0, fmt.Errorf(`must be "auto" or a quantity such as 20000Mi or 20Gi`)
	}
	v := q.Value()
	const mi = 1 << 20
	switch {
	case strings.HasPrefix(s, "-") || v < MinShareMi*mi:
		return 0, fmt.Errorf("must be at least %dMi", MinShareMi)
	case v%mi != 0:
		return 0, fmt.Errorf("must be a whole number of Mi; the next smaller one is %dMi", v/mi)
	}
	return v / mi, nil
}

// parseReserve reads a quantity that is a whole number of Mi, 0 or more. Empty
// is 0.
func parseReserve(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	q, err := resource.ParseQuantity(s)
	const mi = 1 << 20
	switch {
	case err != nil:
		return 0, errors.New("must be a quantity such as 1Gi")
	case q.Sign() < 0:
		return 0, errors.New("must be 0 or more")
	case q.Value()%mi != 0:
		return 0, fmt.Errorf("must be a whole number of Mi; the next smaller one is %dMi", q.Value()/mi)
	}
	return q.Value() / mi, nil
}
