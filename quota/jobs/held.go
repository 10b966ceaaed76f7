package jobs

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// HeldAnnotation marks a job that its user wanted to run and that was suspended
// for its queue: when it is not governed any more, it runs.
const HeldAnnotation = "quota.sluice.dev/held"

// Held says whether a job is so marked.
func Held(job *unstructured.Unstructured) bool { return job.GetAnnotations()[HeldAnnotation] != "" }

// Hold suspends a job that runs. One that was started before is not marked: it
// was its admission that let it run.
func (k *Kind) Hold(job *unstructured.Unstructured) error {
	if !k.Suspended(job) && !Started(job) {
		Mark(job)
	}
	return k.SetSuspended(job, true)
}

// Mark notes that the user of a suspended job wants it to run.
func Mark(job *unstructured.Unstructured) {
	annotations := job.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[HeldAnnotation] = "true"
	job.SetAnnotations(annotations)
}

// Meant says whether the user of a suspended job that is not marked wants it to
// run, by what kubectl apply has kept of what was applied. Versions of Sluice
// before the mark suspended jobs too; of those that were not applied nobody knows.
func (k *Kind) Meant(job *unstructured.Unstructured) bool {
	applied := &unstructured.Unstructured{}
	text := job.GetAnnotations()[corev1.LastAppliedConfigAnnotation]
	if text == "" || json.Unmarshal([]byte(text), &applied.Object) != nil {
		return false
	}
	return !k.Suspended(applied)
}

// LetGo makes a suspended job what it was before it was governed: it runs if its
// user wanted that.
func (k *Kind) LetGo(job *unstructured.Unstructured) error {
	if !Held(job) {
		return nil
	}
	annotations := job.GetAnnotations()
	delete(annotations, HeldAnnotation)
	job.SetAnnotations(annotations)
	return k.SetSuspended(job, false)
}
