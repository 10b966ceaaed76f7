package jobs

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind describes one kind of job.
type Kind struct {
	schema.GroupVersionKind
	// Suspend is the path of the field that holds it back.
	Suspend []string
	// Templates are its sets of like pods.
	Templates []Template
	// Finished are the condition types that, when True, end it for good; those
	// named in Failed end it without success.
	Finished, Failed []string
	// Active is the path of the number of its pods that are not finished, of
	// which the API forbids to change the template.
	Active []string
}

// Template is one set of like pods.
type Template struct {
	// Name is the pod set's.
	Name string
	// Path is the path of the PodTemplateSpec.
	Path []string
	// Counts are paths of which the least value present is the number of pods;
	// one pod if none is.
	Counts [][]string
}

// Kinds are the kinds of jobs that are governed.
var Kinds = []Kind{{
	GroupVersionKind: schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"},
	Suspend:          []string{"spec", "suspend"},
	Templates: []Template{{
		Name:   "main",
		Path:   []string{"spec", "template"},
		Counts: [][]string{{"spec", "parallelism"}, {"spec", "completions"}},
	}},
	Finished: []string{"Complete", "Failed"},
	Failed:   []string{"Failed"},
	Active:   []string{"status", "active"},
}}

// Find returns the row of a kind, nil if it is not governed.
func Find(apiVersion, kind string) *Kind {
	i := slices.IndexFunc(Kinds, func(k Kind) bool { return k.GroupVersion().String() == apiVersion && k.Kind == kind })
	if i < 0 {
		return nil
	}
	return &Kinds[i]
}
