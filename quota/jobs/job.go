package jobs

import (
	"encoding/json"
	"fmt"
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

// PodSet is one set of like pods of a job, as its user wrote it.
type PodSet struct {
	Name     string
	Count    int32
	Template corev1.PodTemplateSpec
}

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

// Suspended says whether the job is held back.
func (k *Kind) Suspended(job *unstructured.Unstructured) bool {
	suspended, _, _ := unstructured.NestedBool(job.Object, k.Suspend...)
	return suspended
}

// SetSuspended holds the job back or lets it go.
func (k *Kind) SetSuspended(job *unstructured.Unstructured, suspended bool) error {
	return unstructured.SetNestedField(job.Object, suspended, k.Suspend...)
}

// ActivePods is how many pods of the job are not finished.
func (k *Kind) ActivePods(job *unstructured.Unstructured) int64 {
	n, _, _ := unstructured.NestedInt64(job.Object, k.Active...)
	return n
}

// Done says whether the job has ended for good, how, and what it says itself.
func (k *Kind) Done(job *unstructured.Unstructured) (done, succeeded bool, message string) {
	conditions, _, _ := unstructured.NestedSlice(job.Object, "status", "conditions")
	for _, c := range conditions {
		c, ok := c.(map[string]any)
		if !ok || c["status"] != "True" {
			continue
		}
		kind, _ := c["type"].(string)
		if !slices.Contains(k.Finished, kind) {
			continue
		}
		message, _ = c["message"].(string)
		return true, !slices.Contains(k.Failed, kind), message
	}
	return false, false, ""
}

// PodSets reads the job's sets of pods. On a job that was started they are as
// they were before, by the annotation that [Kind.Start] left; one that cannot be
// read counts as none.
func (k *Kind) PodSets(job *unstructured.Unstructured) ([]PodSet, error) {
	before := originals(job)
	var sets []PodSet
	for _, t := range k.Templates {
		template, err := k.template(job, t)
		if err != nil {
			return nil, err
		}
		if o, ok := before[t.Name]; ok {
			o.restore(template)
		}
		sets = append(sets, PodSet{Name: t.Name, Count: count(job, t), Template: *template})
	}
	return sets, nil
}

func (k *Kind) template(job *unstructured.Unstructured, t Template) (*corev1.PodTemplateSpec, error) {
	raw, found, err := unstructured.NestedMap(job.Object, t.Path...)
	if err != nil || !found {
		return nil, fmt.Errorf("%s %s has no pod template at %v", k.Kind, job.GetName(), t.Path)
	}
	template := &corev1.PodTemplateSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw, template); err != nil {
		return nil, fmt.Errorf("%s %s: pod template at %v: %w", k.Kind, job.GetName(), t.Path, err)
	}
	return template, nil
}

func count(job *unstructured.Unstructured, t Template) int32 {
	least, any := int64(1), false
	for _, path := range t.Counts {
		n, found, err := unstructured.NestedInt64(job.Object, path...)
		if err == nil && found && (!any || n < least) {
			least, any = n, true
		}
	}
	return int32(least)
}

// Start lets a suspended job go with what its admission adds to each set's
// template, and keeps the templates' former state in an annotation.
func (k *Kind) Start(job *unstructured.Unstructured, add map[string]Injection) error {
	if _, started := job.GetAnnotations()[OriginalAnnotation]; started {
		if err := k.Restore(job); err != nil {
			return err
		}
	}
	var before []original
	for _, t := range k.Templates {
		inject, ok := add[t.Name]
		if !ok {
			continue
		}
		template, err := k.template(job, t)
		if err != nil {
			return err
		}
		before = append(before, original{
			Name:         t.Name,
			Labels:       maps.Clone(template.Labels),
			NodeSelector: maps.Clone(template.Spec.NodeSelector),
			Tolerations:  slices.Clone(template.Spec.Tolerations),
			Gates:        slices.Clone(template.Spec.SchedulingGates),
		})
		inject.into(template)
		if err := k.write(job, t, template); err != nil {
			return err
		}
	}
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
	return k.SetSuspended(job, false)
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
	before := originals(job)
	for _, t := range k.Templates {
		o, ok := before[t.Name]
		if !ok {
			continue
		}
		template, err := k.template(job, t)
		if err != nil {
			return err
		}
		o.restore(template)
		if err := k.write(job, t, template); err != nil {
			return err
		}
	}
	annotations := job.GetAnnotations()
	delete(annotations, OriginalAnnotation)
	job.SetAnnotations(annotations)
	return nil
}

// write puts back only what an injection touches, so that fields which this
// version of the types does not know are not lost.
func (k *Kind) write(job *unstructured.Unstructured, t Template, template *corev1.PodTemplateSpec) error {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(template)
	if err != nil {
		return err
	}
	for _, path := range [][]string{{"metadata", "labels"}, {"spec", "nodeSelector"}, {"spec", "tolerations"}, {"spec", "schedulingGates"}} {
		at := append(slices.Clone(t.Path), path...)
		value, found, err := unstructured.NestedFieldCopy(raw, path...)
		if err != nil {
			return err
		}
		if !found || value == nil {
			unstructured.RemoveNestedField(job.Object, at...)
			parent := at[:len(at)-1]
			if m, ok, _ := unstructured.NestedMap(job.Object, parent...); ok && len(m) == 0 {
				unstructured.RemoveNestedField(job.Object, parent...)
			}
			continue
		}
		if err := unstructured.SetNestedField(job.Object, value, at...); err != nil {
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
