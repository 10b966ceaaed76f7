// Package translate puts objects of the quota API (kueue.x-k8s.io/v1beta2) into the engine's terms
// and what the engine says into the API's. It decides nothing, keeps nothing and is the only place
// where the two meet: the engine knows no API, and the controller no fields.
package translate

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// Amount is a quantity in the engine's unit: thousandths of what is held in
// those, otherwise whole numbers, rounded up.
func Amount(name corev1.ResourceName, q resource.Quantity) engine.Amount {
	if engine.InThousandths(engine.Resource(name)) {
		if q.CmpInt64(math.MaxInt64/1000) > 0 {
			return engine.Unlimited
		}
		return engine.Amount(q.MilliValue())
	}
	if q.CmpInt64(math.MaxInt64) >= 0 {
		return engine.Unlimited
	}
	return engine.Amount(q.Value())
}

// Quantity is the inverse of Amount, in the format that people expect of the
// resource.
func Quantity(r engine.Resource, a engine.Amount) resource.Quantity {
	switch {
	case engine.InThousandths(r):
		return *resource.NewMilliQuantity(int64(a), resource.DecimalSI)
	case strings.HasSuffix(string(r), "memory"), strings.HasSuffix(string(r), "storage"):
		return *resource.NewQuantity(int64(a), resource.BinarySI)
	}
	return *resource.NewQuantity(int64(a), resource.DecimalSI)
}

// ClusterQueue is the engine's view of a ClusterQueue. A queue that asks for something
// that nothing here does is Inactive with that as the reason.
func ClusterQueue(cq *kueue.ClusterQueue) engine.ClusterQueue {
	q := engine.ClusterQueue{
		Name:       engine.QueueName(cq.Name),
		Cohort:     engine.CohortName(cq.Spec.CohortName),
		Groups:     resourceGroups(cq.Spec.ResourceGroups),
		Strategy:   engine.Strategy(cq.Spec.QueueingStrategy),
		Namespaces: selector(cq.Spec.NamespaceSelector),
		Stop:       engine.StopPolicy(ptr.Deref(cq.Spec.StopPolicy, kueue.None)),
		Weight:     weight(cq.Spec.FairSharing),
		Inactive:   unsupported(cq),
	}
	if p := cq.Spec.Preemption; p != nil {
		q.Preemption = engine.Preemption{
			WithinQueue: engine.PreemptionPolicy(p.WithinClusterQueue),
			Reclaim:     engine.PreemptionPolicy(p.ReclaimWithinCohort),
		}
		if b := p.BorrowWithinCohort; b != nil {
			q.Preemption.BorrowWithin = engine.PreemptionPolicy(b.Policy)
			q.Preemption.BorrowThreshold = b.MaxPriorityThreshold
		}
	}
	if f := cq.Spec.FlavorFungibility; f != nil {
		q.Fungibility = engine.Fungibility{
			WhenCanBorrow:  engine.FungibilityPolicy(f.WhenCanBorrow),
			WhenCanPreempt: engine.FungibilityPolicy(f.WhenCanPreempt),
			Preference:     engine.FungibilityPreference(ptr.Deref(f.Preference, "")),
		}
	}
	if s := cq.Spec.AdmissionScope; s != nil {
		q.UsageBased = s.AdmissionMode == kueue.UsageBasedAdmissionFairSharing
	}
	return q
}

// unsupported names the first thing that a queue asks for and that would be
// ignored here, so that it is inactive with a reason instead.
func unsupported(cq *kueue.ClusterQueue) string {
	if cq.Spec.ConcurrentAdmissionPolicy != nil {
		return "concurrentAdmissionPolicy is not supported"
	}
	return ""
}

func resourceGroups(groups []kueue.ResourceGroup) []engine.ResourceGroup {
	var all []engine.ResourceGroup
	for _, g := range groups {
		to := engine.ResourceGroup{}
		for _, r := range g.CoveredResources {
			to.Resources = append(to.Resources, engine.Resource(r))
		}
		for _, f := range g.Flavors {
			flavor := engine.FlavorQuotas{Flavor: engine.FlavorName(f.Name), Quotas: make([]engine.Quota, len(to.Resources))}
			for i, r := range g.CoveredResources {
				for _, q := range f.Resources {
					if q.Name == r {
						flavor.Quotas[i] = engine.Quota{
							Nominal: Amount(r, q.NominalQuota),
							Borrow:  Optional(r, q.BorrowingLimit),
							Lend:    Optional(r, q.LendingLimit),
						}
					}
				}
			}
			to.Flavors = append(to.Flavors, flavor)
		}
		all = append(all, to)
	}
	return all
}

// Optional is Amount of a quantity that may be missing.
func Optional(name corev1.ResourceName, q *resource.Quantity) *engine.Amount {
	if q == nil {
		return nil
	}
	return ptr.To(Amount(name, *q))
}

func weight(f *kueue.FairSharing) *engine.Weight {
	if f == nil || f.Weight == nil {
		return nil
	}
	// Billionths hold the smallest weight that the API allows.
	return ptr.To(engine.Weight(f.Weight.ScaledValue(resource.Nano)))
}

func selector(s *metav1.LabelSelector) engine.Selector {
	if s == nil {
		return engine.Selector{}
	}
	if len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0 {
		return engine.Selector{Everything: true}
	}
	var to engine.Selector
	for k, v := range s.MatchLabels {
		to.Requirements = append(to.Requirements, engine.Requirement{Key: k, Operator: engine.In, Values: []string{v}})
	}
	for _, e := range s.MatchExpressions {
		to.Requirements = append(to.Requirements, engine.Requirement{Key: e.Key, Operator: engine.Operator(e.Operator), Values: e.Values})
	}
	return to
}

// Cohort is the engine's view of a Cohort.
func Cohort(c *kueue.Cohort) engine.Cohort {
	return engine.Cohort{
		Name:   engine.CohortName(c.Name),
		Parent: engine.CohortName(c.Spec.ParentName),
		Groups: resourceGroups(c.Spec.ResourceGroups),
		Weight: weight(c.Spec.FairSharing),
	}
}

// LocalQueue is the engine's view of a LocalQueue.
func LocalQueue(l *kueue.LocalQueue) engine.LocalQueue {
	return engine.LocalQueue{
		Name:   engine.LocalQueueName{Namespace: l.Namespace, Name: l.Name},
		Queue:  engine.QueueName(l.Spec.ClusterQueue),
		Stop:   engine.StopPolicy(ptr.Deref(l.Spec.StopPolicy, kueue.None)),
		Weight: weight(l.Spec.FairSharing),
	}
}

// Admission is the API's form of an assignment.
func Admission(a engine.Assignment) *kueue.Admission {
	to := &kueue.Admission{ClusterQueue: kueue.ClusterQueueReference(a.Queue)}
	for _, s := range a.PodSets {
		set := kueue.PodSetAssignment{
			Name:          kueue.PodSetReference(s.Name),
			Count:         ptr.To(s.Count),
			Flavors:       map[corev1.ResourceName]kueue.ResourceFlavorReference{},
			ResourceUsage: corev1.ResourceList{},
		}
		for r, f := range s.Flavors {
			set.Flavors[corev1.ResourceName(r)] = kueue.ResourceFlavorReference(f)
		}
		for r, n := range s.Usage {
			set.ResourceUsage[corev1.ResourceName(r)] = Quantity(r, n)
		}
		to.PodSetAssignments = append(to.PodSetAssignments, set)
	}
	return to
}

// Assignment reads what a Workload's status says it was given.
func Assignment(a *kueue.Admission) engine.Assignment {
	to := engine.Assignment{Queue: engine.QueueName(a.ClusterQueue)}
	for i := range a.PodSetAssignments {
		s := &a.PodSetAssignments[i]
		set := engine.PodSetAssignment{
			Name:    string(s.Name),
			Count:   ptr.Deref(s.Count, 0),
			Flavors: map[engine.Resource]engine.FlavorName{},
			Usage:   engine.Amounts{},
		}
		for r, f := range s.Flavors {
			set.Flavors[engine.Resource(r)] = engine.FlavorName(f)
		}
		for r, q := range s.ResourceUsage {
			// What is given of no flavor is charged to no quota: it is there to
			// bound tickets.
			if s.Flavors[r] != "" {
				set.Usage[engine.Resource(r)] = Amount(r, q)
			}
		}
		to.PodSets = append(to.PodSets, set)
	}
	return to
}

// Charge is what a Workload that holds quota is charged: what it was given, less
// the part of pods that are done for good (status.reclaimablePods).
func Charge(wl *kueue.Workload) engine.Assignment {
	a := Assignment(wl.Status.Admission)
	for _, done := range wl.Status.ReclaimablePods {
		for i := range a.PodSets {
			set := &a.PodSets[i]
			if set.Name != string(done.Name) || set.Count <= 0 {
				continue
			}
			left := max(0, set.Count-done.Count)
			for r, n := range set.Usage {
				if n < engine.Unlimited {
					set.Usage[r] = n / engine.Amount(set.Count) * engine.Amount(left)
				}
			}
			set.Count = left
		}
	}
	return a
}

// PreemptionGated says whether a gate of the Workload keeps it from evicting
// others: each is closed until its status says that it is open.
func PreemptionGated(wl *kueue.Workload) bool {
	for _, g := range wl.Spec.PreemptionGates {
		open := slices.ContainsFunc(wl.Status.PreemptionGates, func(s kueue.PreemptionGateState) bool {
			return s.Name == g.Name && s.Position == kueue.PreemptionGatePositionOpen
		})
		if !open {
			return true
		}
	}
	return false
}

// Unsupported names the first thing that a Workload asks for and that would be
// ignored here; "" if there is none.
func Unsupported(wl *kueue.Workload) string {
	for i := range wl.Spec.PodSets {
		if wl.Spec.PodSets[i].TopologyRequest != nil {
			return fmt.Sprintf("pod set %q has a topologyRequest, which is not supported", wl.Spec.PodSets[i].Name)
		}
	}
	return ""
}

// Resources are the resources of the amounts, in order.
func Resources(a engine.Amounts) []engine.Resource { return slices.Sorted(maps.Keys(a)) }
