package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Some jobs have no pod templates of their own. The controller of a TrainJob
// makes a JobSet of it, from a runtime that the TrainJob names and from patches
// that it lists, and holds the JobSet back as long as the TrainJob is held back.
// The sets of pods are then those of the JobSet, and what an admission adds is
// one more patch in the TrainJob, which is taken out again on eviction.

// Made describes the job that a kind's own controller makes of another.
type Made struct {
	// Group and Kind name the kind of the job that is made.
	Group, Kind string
	// Patches is the path, in the job that it is made of, of the list of what is
	// laid over it. Each element has its manager's name, and below
	// trainingRuntimeSpec.template what is changed.
	Patches string
}

// ErrNotMade says that the job which the pods belong to is not there, or not yet
// what the job that it is made of asks for.
var ErrNotMade = errors.New("its own controller has not made or changed the job that has its pods yet")

const (
	// PatchManager is the manager of what an admission adds.
	PatchManager = "quota.sluice.dev/admission"
	// PatchedAnnotation marks a job that carries such a patch.
	PatchedAnnotation = "quota.sluice.dev/patched"
)

// Makes says whether jobs of another kind are what the pods of this one belong
// to.
func (k *Kind) Makes(of *Kind) bool {
	return k.Made != nil && k.Made.Group == of.Group && k.Made.Kind == of.Kind
}

// MadeSets reads the sets of pods of a job from the one that was made of it,
// which is of another kind, as they are without an admission. ErrNotMade if the
// two do not agree yet on whether there is one.
func (k *Kind) MadeSets(job, made *unstructured.Unstructured, of *Kind) ([]PodSet, error) {
	patched := made.GetAnnotations()[PatchedAnnotation] != ""
	if patched && !Started(job) {
		return nil, ErrNotMade
	}
	sets, err := of.PodSets(made)
	if err != nil || !patched {
		return sets, err
	}
	before := originals(job)
	for i := range sets {
		if o, ok := before[sets[i].Name]; ok {
			o.restore(&sets[i].Template)
		}
	}
	return sets, nil
}

// patch is an element of the list of patches, as far as it is written here.
type patch struct {
	Manager string `json:"manager"`
	// Time is when it was written. A webhook of the trainer writes it where it is
	// missing, and in doing so numbers of the job as texts, which others of its
	// rules take for changes of fields that must not change.
	Time    string `json:"time"`
	Runtime struct {
		Template struct {
			Metadata struct {
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
			Spec struct {
				Jobs []jobPatch `json:"replicatedJobs"`
			} `json:"spec"`
		} `json:"template"`
	} `json:"trainingRuntimeSpec"`
}

type jobPatch struct {
	Name     string `json:"name"`
	Template struct {
		Spec struct {
			Template podPatch `json:"template"`
		} `json:"spec"`
	} `json:"template"`
}

type podPatch struct {
	Metadata struct {
		Labels map[string]string `json:"labels,omitempty"`
	} `json:"metadata"`
	Spec struct {
		NodeSelector map[string]string          `json:"nodeSelector,omitempty"`
		Tolerations  []corev1.Toleration        `json:"tolerations,omitempty"`
		Gates        []corev1.PodSchedulingGate `json:"schedulingGates,omitempty"`
	} `json:"spec"`
}

// StartMade lets a job go whose pods are those of another, of which MadeSets has
// read the sets, with what its admission adds to each, at a time.
func (k *Kind) StartMade(job *unstructured.Unstructured, sets []PodSet, add map[string]Injection, now time.Time) error {
	p := patch{Manager: PatchManager, Time: now.UTC().Format(time.RFC3339)}
	p.Runtime.Template.Metadata.Annotations = map[string]string{PatchedAnnotation: "true"}
	var before []original
	for _, s := range sets {
		inject, ok := add[s.Name]
		if !ok {
			continue
		}
		before = append(before, originalOf(s.Name, &s.Template))
		one := jobPatch{Name: s.Name}
		pods := &one.Template.Spec.Template
		pods.Metadata.Labels = inject.Labels
		pods.Spec.NodeSelector, pods.Spec.Gates = inject.NodeSelector, inject.Gates
		// A patch takes the place of all tolerations.
		pods.Spec.Tolerations = AddTolerations(slices.Clone(s.Template.Spec.Tolerations), inject.Tolerations)
		p.Runtime.Template.Spec.Jobs = append(p.Runtime.Template.Spec.Jobs, one)
	}
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&p)
	if err != nil {
		return err
	}
	others := k.otherPatches(job)
	if err := unstructured.SetNestedSlice(job.Object, append(others, raw), fields(k.Made.Patches)...); err != nil {
		return fmt.Errorf("%s %s: %w", k.Kind, job.GetName(), err)
	}
	if err := keepOriginals(job, before); err != nil {
		return err
	}
	return k.SetSuspended(job, false)
}

// otherPatches are those of other managers.
func (k *Kind) otherPatches(job *unstructured.Unstructured) []any {
	all, _, _ := unstructured.NestedSlice(job.Object, fields(k.Made.Patches)...)
	return slices.DeleteFunc(all, func(p any) bool {
		m, _ := p.(map[string]any)
		return m["manager"] == PatchManager
	})
}

// restoreMade takes out of a job what StartMade has put in.
func (k *Kind) restoreMade(job *unstructured.Unstructured) error {
	path := fields(k.Made.Patches)
	if others := k.otherPatches(job); len(others) > 0 {
		if err := unstructured.SetNestedSlice(job.Object, others, path...); err != nil {
			return err
		}
	} else {
		unstructured.RemoveNestedField(job.Object, path...)
	}
	dropOriginals(job)
	return nil
}

// addedToMade is what was put into each set by StartMade.
func (k *Kind) addedToMade(job *unstructured.Unstructured) map[string]Injection {
	added, before := map[string]Injection{}, originals(job)
	all, _, _ := unstructured.NestedSlice(job.Object, fields(k.Made.Patches)...)
	for _, element := range all {
		m, _ := element.(map[string]any)
		var p patch
		// Whoever can break it must not hinder the job from being stopped.
		if raw, err := json.Marshal(m); m["manager"] != PatchManager || err != nil || json.Unmarshal(raw, &p) != nil {
			continue
		}
		for _, one := range p.Runtime.Template.Spec.Jobs {
			if o, ok := before[one.Name]; ok {
				pods := &one.Template.Spec.Template
				added[one.Name] = o.added(corev1.PodSpec{NodeSelector: maps.Clone(pods.Spec.NodeSelector), Tolerations: pods.Spec.Tolerations, SchedulingGates: pods.Spec.Gates})
			}
		}
	}
	return added
}

// trainJob is the kind of Kubeflow's trainer, which succeeds those of the
// training operator.
func trainJob() Kind {
	return Kind{
		Group: "trainer.kubeflow.org", Version: "v1alpha1", Kind: "TrainJob", Resource: "trainjobs",
		Suspend:  "spec.suspend",
		Made:     &Made{Group: "jobset.x-k8s.io", Kind: "JobSet", Patches: "spec.runtimePatches"},
		Ends:     conditions("Failed", "Complete"),
		SetLabel: "jobset.sigs.k8s.io/replicatedjob-name",
		Nested:   true,
	}
}
