package jobs

import (
	"math"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Completions say how much of a set's work is left.
type Completions struct {
	// Of is the path of how many completions there are to be, in an element where
	// the set is one of several. One completion is that of a pod, or, where the
	// number of pods is multiplied, of as many pods as are multiplied.
	Of string
	// Each is the path of a list with one element for each set, by its name; empty
	// if there is one set.
	Each string
	// Done is the path of how many there are, in such an element.
	Done string
	// Again is the path of a policy by which a job may begin again with what is
	// done already: nothing is given back where there is one. Empty if no job does.
	Again string
}

// Left is how many pods each set can still need at the most, for the sets of which
// that can be told.
func (k *Kind) Left(job *unstructured.Unstructured) map[string]int32 {
	places, err := k.places(job)
	if err != nil {
		return nil
	}
	left := map[string]int32{}
	for _, p := range places {
		c := p.at.Completions
		if c == nil || c.again(job) {
			continue
		}
		of, found, err := unstructured.NestedInt64(p.in, fields(c.Of)...)
		if err != nil || !found {
			continue
		}
		unit := int64(1)
		if len(p.at.Times) > 0 {
			unit = p.least()
		}
		rest := min(max(of-max(c.done(job, p.name), 0), 0), math.MaxInt32)
		left[p.name] = int32(min(rest*unit, math.MaxInt32))
	}
	return left
}

// again says whether what is done may be done once more.
func (c *Completions) again(job *unstructured.Unstructured) bool {
	if c.Again == "" {
		return false
	}
	policy, found, err := unstructured.NestedFieldNoCopy(job.Object, fields(c.Again)...)
	return err != nil || found && policy != nil
}

func (c *Completions) done(job *unstructured.Unstructured, set string) int64 {
	if c.Each == "" {
		n, _, _ := unstructured.NestedInt64(job.Object, fields(c.Done)...)
		return n
	}
	all, _, _ := unstructured.NestedSlice(job.Object, fields(c.Each)...)
	for _, e := range all {
		m, _ := e.(map[string]any)
		if m["name"] == set {
			n, _, _ := unstructured.NestedInt64(m, fields(c.Done)...)
			return n
		}
	}
	return 0
}
