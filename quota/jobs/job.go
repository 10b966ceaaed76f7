package jobs

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// OriginalAnnotation keeps, on a job that was started, what its templates were
// before the flavors were put into them.
const OriginalAnnotation = "quota.sluice.dev/original-templates"

// Injection is what admission adds to the templates of a set.
type Injection struct {
	Labels       map[string]string
	NodeSelector map[string]string
	Tolerations  []corev1.Toleration
	Gates        []corev1.PodSchedulingGate
}

// original is the part of a template that an [Injection] touches.
type original struct {
	Name         string                     `json:"name"`
	Labels       map[string]string          `json:"labels,omitempty"`
	NodeSelector map[string]string          `json:"nodeSelector,omitempty"`
	Tolerations  []corev1.Toleration        `json:"tolerations,omitempty"`
	Gates        []corev1.PodSchedulingGate `json:"schedulingGates,omitempty"`
}

// CanSuspend says whether jobs of the kind can be held back.
func (k *Kind) CanSuspend() bool { return k.Suspend != "" }

// SuspendPath are the names of the fields down to the one that holds a job back.
func (k *Kind) SuspendPath() []string { return fields(k.Suspend) }

// Suspended says whether the job is held back.
func (k *Kind) Suspended(job *unstructured.Unstructured) bool {
	if !k.CanSuspend() {
		return false
	}
	suspended, _, _ := unstructured.NestedBool(job.Object, fields(k.Suspend)...)
	return suspended
}

// SetSuspended holds the job back or lets it go.
func (k *Kind) SetSuspended(job *unstructured.Unstructured, suspended bool) error {
	return unstructured.SetNestedField(job.Object, suspended, fields(k.Suspend)...)
}

// ActivePods is how many pods of the job are not finished, 0 where that does not
// matter.
func (k *Kind) ActivePods(job *unstructured.Unstructured) int64 {
	if k.Active == "" {
		return 0
	}
	n, _, _ := unstructured.NestedInt64(job.Object, fields(k.Active)...)
	return n
}

// Priority is the name of the priority class that the job itself names, "" if
// none.
func (k *Kind) Priority(job *unstructured.Unstructured) string {
	if k.PriorityClass == "" {
		return ""
	}
	name, _, _ := unstructured.NestedString(job.Object, fields(k.PriorityClass)...)
	return name
}

// Done says whether the job has ended for good, how, and what it says itself.
func (k *Kind) Done(job *unstructured.Unstructured) (done, succeeded bool, message string) {
	for _, e := range k.Ends {
		if e.Path != "" {
			if value, _, _ := unstructured.NestedString(job.Object, fields(e.Path)...); value == e.Value {
				message, _, _ = unstructured.NestedString(job.Object, "status", "message")
				return true, !e.Failed, message
			}
			continue
		}
		if c := condition(job, e.Condition); c != nil && c["status"] == "True" {
			message, _ = c["message"].(string)
			return true, !e.Failed, message
		}
	}
	return false, false, ""
}

func condition(job *unstructured.Unstructured, kind string) map[string]any {
	all, _, _ := unstructured.NestedSlice(job.Object, "status", "conditions")
	for _, c := range all {
		if c, ok := c.(map[string]any); ok && c["type"] == kind {
			return c
		}
	}
	return nil
}

// Start lets a suspended job go with what its admission adds to each set's
// template, and keeps the templates' former state in an annotation.
func (k *Kind) Start(job *unstructured.Unstructured, add map[string]Injection) error {
	if _, started := job.GetAnnotations()[OriginalAnnotation]; started {
		if err := k.Restore(job); err != nil {
			return err
		}
	}
	places, err := k.places(job)
	if err != nil {
		return err
	}
	var before []original
	for _, p := range places {
		inject, ok := add[p.name]
		if !ok {
			continue
		}
		template, err := k.template(job, p)
		if err != nil {
			return err
		}
		before = append(before, originalOf(p.name, template))
		inject.into(template)
		if err := p.write(template); err != nil {
			return err
		}
	}
	if err := keepOriginals(job, before); err != nil {
		return err
	}
	if !k.CanSuspend() {
		return nil
	}
	return k.SetSuspended(job, false)
}

func originalOf(name string, template *corev1.PodTemplateSpec) original {
	return original{
		Name:         name,
		Labels:       maps.Clone(template.Labels),
		NodeSelector: maps.Clone(template.Spec.NodeSelector),
		Tolerations:  slices.Clone(template.Spec.Tolerations),
		Gates:        slices.Clone(template.Spec.SchedulingGates),
	}
}

func keepOriginals(job *unstructured.Unstructured, before []original) error {
	kept, err := json.Marshal(before)
	if err != nil {
		return err
	}
	annotations := job.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[OriginalAnnotation] = string(kept)
	job.SetAnnotations(annotations)
	return nil
}

func dropOriginals(job *unstructured.Unstructured) {
	annotations := job.GetAnnotations()
	delete(annotations, OriginalAnnotation)
	job.SetAnnotations(annotations)
}

// Started says whether the templates carry what an admission added.
func Started(job *unstructured.Unstructured) bool {
	_, ok := job.GetAnnotations()[OriginalAnnotation]
	return ok
}

// Restore makes the templates again what they were before [Kind.Start]. Fields
// that an injection does not touch stay as they are now, and all do if the
// annotation cannot be read.
func (k *Kind) Restore(job *unstructured.Unstructured) error {
	if k.Made != nil {
		return k.restoreMade(job)
	}
	before := originals(job)
	places, err := k.places(job)
	if err != nil && len(before) > 0 {
		return err
	}
	for _, p := range places {
		o, ok := before[p.name]
		if !ok {
			continue
		}
		template, err := k.template(job, p)
		if err != nil {
			return err
		}
		o.restore(template)
		if err := p.write(template); err != nil {
			return err
		}
	}
	dropOriginals(job)
	return nil
}

// Added is what was put into each set's template by [Kind.Start].
func (k *Kind) Added(job *unstructured.Unstructured) (map[string]Injection, error) {
	if k.Made != nil {
		return k.addedToMade(job), nil
	}
	places, err := k.places(job)
	if err != nil {
		return nil, err
	}
	before := originals(job)
	added := map[string]Injection{}
	for _, p := range places {
		o, ok := before[p.name]
		if !ok {
			continue
		}
		template, err := k.template(job, p)
		if err != nil {
			return nil, err
		}
		added[p.name] = o.added(template.Spec)
	}
	return added, nil
}

// added is what a pod spec has that the original had not.
func (o original) added(now corev1.PodSpec) Injection {
	i := Injection{NodeSelector: map[string]string{}}
	for key, value := range now.NodeSelector {
		if had, ok := o.NodeSelector[key]; !ok || had != value {
			i.NodeSelector[key] = value
		}
	}
	i.Tolerations = without(now.Tolerations, o.Tolerations)
	i.Gates = without(now.SchedulingGates, o.Gates)
	return i
}

// TakeOut removes from the templates of a job, which was made of another, what
// was added there for the set that a label of the template names. It says
// whether there was anything.
func (k *Kind) TakeOut(job *unstructured.Unstructured, label string, added map[string]Injection) (bool, error) {
	places, err := k.places(job)
	if err != nil {
		return false, err
	}
	changed := false
	for _, p := range places {
		template, err := k.template(job, p)
		if err != nil {
			return false, err
		}
		i, ok := added[template.Labels[label]]
		if !ok {
			continue
		}
		before := template.DeepCopy()
		for key, value := range i.NodeSelector {
			if template.Spec.NodeSelector[key] == value {
				delete(template.Spec.NodeSelector, key)
			}
		}
		template.Spec.Tolerations = without(template.Spec.Tolerations, i.Tolerations)
		template.Spec.SchedulingGates = without(template.Spec.SchedulingGates, i.Gates)
		if equality.Semantic.DeepEqual(before, template) {
			continue
		}
		changed = true
		if err := p.write(template); err != nil {
			return false, err
		}
	}
	return changed, nil
}

// without are the elements of all that are not in some.
func without[T any](all, some []T) []T {
	return slices.DeleteFunc(slices.Clone(all), func(e T) bool {
		return slices.ContainsFunc(some, func(o T) bool { return equality.Semantic.DeepEqual(o, e) })
	})
}

// write puts back only what an injection touches, so that fields which this
// version of the types does not know are not lost.
func (p place) write(template *corev1.PodTemplateSpec) error {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(template)
	if err != nil {
		return err
	}
	for _, path := range [][]string{{"metadata", "labels"}, {"spec", "nodeSelector"}, {"spec", "tolerations"}, {"spec", "schedulingGates"}} {
		at := append(fields(p.at.Path), path...)
		value, found, err := unstructured.NestedFieldCopy(raw, path...)
		if err != nil {
			return err
		}
		if !found || value == nil {
			unstructured.RemoveNestedField(p.in, at...)
			parent := at[:len(at)-1]
			if m, ok, _ := unstructured.NestedMap(p.in, parent...); ok && len(m) == 0 {
				unstructured.RemoveNestedField(p.in, parent...)
			}
			continue
		}
		if err := unstructured.SetNestedField(p.in, value, at...); err != nil {
			return err
		}
	}
	return nil
}

func (i Injection) into(t *corev1.PodTemplateSpec) {
	t.Labels = merged(t.Labels, i.Labels)
	t.Spec.NodeSelector = merged(t.Spec.NodeSelector, i.NodeSelector)
	t.Spec.Tolerations = AddTolerations(t.Spec.Tolerations, i.Tolerations)
	for _, g := range i.Gates {
		if !slices.Contains(t.Spec.SchedulingGates, g) {
			t.Spec.SchedulingGates = append(t.Spec.SchedulingGates, g)
		}
	}
}

// AddTolerations appends those that are not there already.
func AddTolerations(have, more []corev1.Toleration) []corev1.Toleration {
	for _, m := range more {
		if !slices.ContainsFunc(have, func(h corev1.Toleration) bool { return equality.Semantic.DeepEqual(h, m) }) {
			have = append(have, m)
		}
	}
	return have
}

func merged(have, more map[string]string) map[string]string {
	if len(more) == 0 {
		return have
	}
	have = maps.Clone(have)
	if have == nil {
		have = map[string]string{}
	}
	maps.Copy(have, more)
	return have
}

func (o original) restore(t *corev1.PodTemplateSpec) {
	t.Labels, t.Spec.NodeSelector, t.Spec.Tolerations, t.Spec.SchedulingGates = o.Labels, o.NodeSelector, o.Tolerations, o.Gates
}

// originals is empty where the annotation cannot be read: whoever can break it
// must not hinder the job from being stopped.
func originals(job *unstructured.Unstructured) map[string]original {
	kept, ok := job.GetAnnotations()[OriginalAnnotation]
	if !ok {
		return nil
	}
	var list []original
	if err := json.Unmarshal([]byte(kept), &list); err != nil {
		return nil
	}
	byName := map[string]original{}
	for _, o := range list {
		byName[o.Name] = o
	}
	return byName
}
