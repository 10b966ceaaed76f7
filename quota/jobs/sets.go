package jobs

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// PodSet is one set of like pods of a job, as its user wrote it.
type PodSet struct {
	Name     string
	Count    int32
	Template corev1.PodTemplateSpec
}

// mostSets is how many sets a Workload can have.
const mostSets = 18

// setName is what the API takes for the name of a set.
var setName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// place is one set of pods in one job.
type place struct {
	name string
	// in is the part of the object that the paths of the description start in. It
	// is not a copy.
	in map[string]any
	at Template
}

// places finds the sets of a job. The maps in it are those of the object.
func (k *Kind) places(job *unstructured.Unstructured) ([]place, error) {
	var all []place
	for _, t := range k.Sets {
		found, err := k.expand(job, t)
		if err != nil {
			return nil, err
		}
		for _, p := range found {
			if _, has, _ := unstructured.NestedMap(p.in, fields(t.Path)...); !has && t.Optional {
				continue
			}
			if !setName.MatchString(p.name) {
				return nil, fmt.Errorf("%s %s: %q is no name for a set of pods, use lower case letters, digits and -", k.Kind, job.GetName(), p.name)
			}
			if slices.ContainsFunc(all, func(o place) bool { return o.name == p.name }) {
				return nil, fmt.Errorf("%s %s has two sets of pods with the name %q", k.Kind, job.GetName(), p.name)
			}
			all = append(all, p)
		}
	}
	if len(all) == 0 || len(all) > mostSets {
		return nil, fmt.Errorf("%s %s has %d sets of pods, 1 to %d can be governed", k.Kind, job.GetName(), len(all), mostSets)
	}
	return all, nil
}

func (k *Kind) expand(job *unstructured.Unstructured, t Template) ([]place, error) {
	if t.Each == "" {
		return []place{{name: t.Name, in: job.Object, at: t}}, nil
	}
	value, found, err := unstructured.NestedFieldNoCopy(job.Object, fields(t.Each)...)
	if err != nil || !found {
		return nil, nil //nolint:nilerr // nothing there is a job without such sets
	}
	var all []place
	add := func(name string, element any) error {
		in, ok := element.(map[string]any)
		if !ok {
			return fmt.Errorf("%s %s: %s has an element that is no object", k.Kind, job.GetName(), t.Each)
		}
		all = append(all, place{name: strings.ToLower(name), in: in, at: t})
		return nil
	}
	switch value := value.(type) {
	case []any:
		for _, element := range value {
			in, _ := element.(map[string]any)
			name, _, _ := unstructured.NestedString(in, fields(t.Name)...)
			if err := add(name, element); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			if err := add(key, value[key]); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// Check says why a job cannot be governed: its pod templates are not where they
// should be, or it is one that its own controller does not let be suspended.
func (k *Kind) Check(job *unstructured.Unstructured) error {
	for _, path := range k.Demands {
		if ok, _, err := unstructured.NestedBool(job.Object, fields(path)...); err != nil || !ok {
			return fmt.Errorf("%s %s must set %s: true, or it could not be suspended", k.Kind, job.GetName(), path)
		}
	}
	if k.Made != nil {
		return nil
	}
	_, err := k.PodSets(job)
	return err
}

// PodSets reads the job's sets of pods. On a job that was started they are as
// they were before, by the annotation that [Kind.Start] left; one that cannot be
// read counts as none.
func (k *Kind) PodSets(job *unstructured.Unstructured) ([]PodSet, error) {
	places, err := k.places(job)
	if err != nil {
		return nil, err
	}
	before := originals(job)
	var sets []PodSet
	for _, p := range places {
		template, err := k.template(job, p)
		if err != nil {
			return nil, err
		}
		if o, ok := before[p.name]; ok {
			o.restore(template)
		}
		sets = append(sets, PodSet{Name: p.name, Count: p.count(), Template: *template})
	}
	return sets, nil
}

// TemplateLabel is the value of a label of the first template that has it, ""
// if none has.
func (k *Kind) TemplateLabel(job *unstructured.Unstructured, label string) string {
	places, err := k.places(job)
	if err != nil {
		return ""
	}
	for _, p := range places {
		labels, _, _ := unstructured.NestedMap(p.in, append(fields(p.at.Path), "metadata", "labels")...)
		if value, _ := labels[label].(string); value != "" {
			return value
		}
	}
	return ""
}

// OneSet is the name of the only set of pods that jobs of the kind have, "" if
// they may have several.
func (k *Kind) OneSet() string {
	if len(k.Sets) == 1 && k.Sets[0].Each == "" {
		return k.Sets[0].Name
	}
	return ""
}

// SetOf is the set that a pod of the kind belongs to, by the label that an
// admission put into its template or, without it, by that of the kind's own
// controller; "" if nothing tells. Labels are what anybody can write.
func (k *Kind) SetOf(pod *corev1.Pod, label string) string {
	if only := k.OneSet(); only != "" {
		return only
	}
	if set := pod.Labels[label]; set != "" || k.SetLabel == "" {
		return set
	}
	return strings.ToLower(pod.Labels[k.SetLabel])
}

func (k *Kind) template(job *unstructured.Unstructured, p place) (*corev1.PodTemplateSpec, error) {
	raw, found, err := unstructured.NestedMap(p.in, fields(p.at.Path)...)
	if err != nil || !found {
		return nil, fmt.Errorf("%s %s has no pod template at %s", k.Kind, job.GetName(), p.where())
	}
	template := &corev1.PodTemplateSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw, template); err != nil {
		return nil, fmt.Errorf("%s %s: pod template at %s: %w", k.Kind, job.GetName(), p.where(), err)
	}
	return template, nil
}

func (p place) where() string {
	if p.at.Each == "" {
		return p.at.Path
	}
	return p.at.Each + "[" + p.name + "]." + p.at.Path
}

// count is the number of pods, at least 0 and at most what an int32 holds.
func (p place) count() int32 {
	n := p.least()
	for _, path := range p.at.Times {
		if v, found, err := unstructured.NestedInt64(p.in, fields(path)...); err == nil && found {
			n = min(n*min(max(v, 0), math.MaxInt32), math.MaxInt32)
		}
	}
	return int32(n)
}

// least is the least of the counts, 1 if there is none.
func (p place) least() int64 {
	n, any := int64(1), false
	for _, path := range p.at.Least {
		if v, found, err := unstructured.NestedInt64(p.in, fields(path)...); err == nil && found && (!any || v < n) {
			n, any = v, true
		}
	}
	return min(max(n, 0), math.MaxInt32)
}
