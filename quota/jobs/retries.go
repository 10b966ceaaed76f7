package jobs

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A pod that ends before its time is replaced by most jobs, and not by some. What
// a job is charged for its pods can be known for good only of those which are not
// replaced, so this file tells, by fields of the job, which these are.

// Retries are the signs by which no pod is made in place of one that fails. All
// that are named must be there. Those of a kind are read from the job's root,
// those of a template in an element of its sets.
type Retries struct {
	// Sets are those that the signs of a kind are about; all of them if it is empty.
	Sets []string `json:"sets,omitempty"`
	// Limit is the path of how many pods may fail before the job does with the next,
	// Failed that of how many have failed; without it none counts as failed.
	Limit  string `json:"limit,omitempty"`
	Failed string `json:"failed,omitempty"`
	// Missing is the limit of jobs that name none. Without it they show no sign.
	Missing *int64 `json:"missing,omitempty"`
	// Policy is the path of a text, Never are its values by which no pod is replaced.
	// An empty one is for jobs that name none.
	Policy string   `json:"policy,omitempty"`
	Never  []string `json:"never,omitempty"`
	// Unless are the paths of fields with which nothing is sure, where they are there
	// and not false.
	Unless []string `json:"unless,omitempty"`
}

// Last are the sets of a job for whose pods it makes no others: where one fails,
// the job does, or goes on without it. It may still make those that it has not
// come to yet; see [Kind.Left]. Nothing is known of kinds without signs.
func (k *Kind) Last(job *unstructured.Unstructured) map[string]bool {
	places, err := k.places(job)
	if err != nil {
		return nil
	}
	last := map[string]bool{}
	for _, p := range places {
		all := k.Retries != nil && (len(k.Retries.Sets) == 0 || slices.Contains(k.Retries.Sets, p.name))
		switch {
		case !all && p.at.Retries == nil,
			all && !k.Retries.over(job.Object),
			p.at.Retries != nil && !p.at.Retries.over(p.in):
			continue
		}
		last[p.name] = true
	}
	return last
}

// over says whether all signs are there.
func (r *Retries) over(in map[string]any) bool {
	for _, path := range r.Unless {
		value, _, err := unstructured.NestedFieldNoCopy(in, fields(path)...)
		if err != nil || value != nil && value != false {
			return false
		}
	}
	if r.Policy != "" {
		policy, _, err := unstructured.NestedString(in, fields(r.Policy)...)
		if err != nil || !slices.Contains(r.Never, policy) {
			return false
		}
	}
	if r.Limit == "" {
		return true
	}
	limit, found, err := unstructured.NestedInt64(in, fields(r.Limit)...)
	if err != nil || !found && r.Missing == nil {
		return false
	}
	if !found {
		limit = *r.Missing
	}
	failed := int64(0)
	if r.Failed != "" {
		if failed, _, err = unstructured.NestedInt64(in, fields(r.Failed)...); err != nil {
			return false
		}
	}
	return failed >= limit
}

// validate refuses signs that would be there always, or never.
func (r *Retries) validate() error {
	switch {
	case r == nil:
		return nil
	case r.Limit == "" && r.Policy == "":
		return fmt.Errorf("retries names neither a limit nor a policy; without one of them nothing says that pods are not replaced")
	case (r.Policy == "") != (len(r.Never) == 0):
		return fmt.Errorf("retries.policy is a path, and retries.never the values there by which no pod is replaced; name both or none")
	case r.Limit == "" && (r.Failed != "" || r.Missing != nil):
		return fmt.Errorf("retries.failed and retries.missing need retries.limit, the path of how many pods may fail")
	}
	return nil
}

func (r *Retries) paths() []string {
	if r == nil {
		return nil
	}
	return append([]string{r.Limit, r.Failed, r.Policy}, r.Unless...)
}
