package engine

import (
	"strings"
	"time"
)

// Resource names a budget dimension, for example "nvidia.com/gpu-memory".
type Resource string

// Pods is counted by the engine itself: a queue that covers it is charged one
// for every pod, whether or not a pod set asks for it.
const Pods Resource = "pods"

// InThousandths says whether amounts of a resource are held in thousandths: those
// of cpu, as Kubernetes does, and of resources under quota.sluice.dev/, which
// count parts of cards. All others are whole numbers.
func InThousandths(r Resource) bool {
	return r == "cpu" || strings.HasPrefix(string(r), "quota.sluice.dev/")
}

// FlavorName names a ResourceFlavor.
type FlavorName string

// FlavorResource is what a quota is about: one resource of one flavor.
type FlavorResource struct {
	Flavor   FlavorName
	Resource Resource
}

// QueueName names a ClusterQueue.
type QueueName string

// CohortName names a Cohort. A cohort that is named but was never described is
// implicit: it joins its members and has no quota and no parent.
type CohortName string

// LocalQueueName names a LocalQueue.
type LocalQueueName struct {
	Namespace, Name string
}

func (n LocalQueueName) String() string { return n.Namespace + "/" + n.Name }

// WorkloadID is the identity of a workload for its whole life, and the last
// tie-break of every order. "namespace/name" reads best in messages; a UID is
// as good. It must not be used again for another workload before
// [WorkloadRemoved].
type WorkloadID string

// Amounts maps resources to amounts. The engine reads it and keeps no
// reference to it.
type Amounts map[Resource]Amount

// Weight is a share of fair sharing in billionths, so that the smallest legal
// weight of the API, 1e-9, is 1.
type Weight int64

// OneWeight is the weight of a node that names none.
const OneWeight Weight = 1_000_000_000

// Selector says which namespaces a queue serves. The zero Selector serves none
// (as a nil namespaceSelector does); Everything serves all (as {} does).
type Selector struct {
	// Everything makes the requirements moot.
	Everything bool
	// Requirements must all hold.
	Requirements []Requirement
}

// Requirement is one condition on a label, as in a Kubernetes LabelSelector.
type Requirement struct {
	Key      string
	Operator Operator
	Values   []string
}

// Operator compares a label with the values of a [Requirement].
type Operator string

// The operators of a Kubernetes LabelSelector, with its meaning: NotIn holds
// when the label is absent.
const (
	In           Operator = "In"
	NotIn        Operator = "NotIn"
	Exists       Operator = "Exists"
	DoesNotExist Operator = "DoesNotExist"
)

// Matches says whether a namespace with these labels is served.
func (s Selector) Matches(labels map[string]string) bool {
	if s.Everything {
		return true
	}
	for _, r := range s.Requirements {
		if !r.holds(labels) {
			return false
		}
	}
	return len(s.Requirements) > 0
}

func (r Requirement) holds(labels map[string]string) bool {
	value, found := labels[r.Key]
	switch r.Operator {
	case Exists:
		return found
	case DoesNotExist:
		return !found
	case In:
		return found && contains(r.Values, value)
	case NotIn:
		return !found || !contains(r.Values, value)
	}
	return false
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

// instant is a point in time as the engine keeps it; 0 is "not set".
type instant int64

func instantOf(t time.Time) instant {
	if t.IsZero() {
		return 0
	}
	return instant(t.UnixNano())
}

func (i instant) time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(i)).UTC()
}
