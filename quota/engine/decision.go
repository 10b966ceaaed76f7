package engine

import (
	"fmt"
	"strings"
)

// Decision is something for the caller to do. Decisions are in the order in
// which the engine took them.
type Decision interface {
	fmt.Stringer
	isDecision()
}

// Admit gives a workload its quota. It is assumed at once; answer with
// [Admitted] or [AdmissionFailed].
type Admit struct {
	ID         WorkloadID
	Assignment Assignment
	// Placement is what [Fit] said, nil without a Fit or where room is not
	// awaited (see FlavorSpec.Elastic).
	Placement *Placement
}

// Evict takes quota back. The victim keeps it until [Released]. Answer with
// Evicting, or with EvictionFailed.
type Evict struct {
	// Victim is whom to evict.
	Victim WorkloadID
	// Reason is the class of reasons.
	Reason EvictReason
	// For is the workload that needs the room, "" where none does.
	For WorkloadID
	// Message is one sentence for the victim's owner.
	Message string
}

// EvictReason is why a workload is evicted. The values are those of the API's
// Preempted and Evicted conditions.
type EvictReason string

const (
	// InClusterQueue made room for a workload of the same queue.
	InClusterQueue EvictReason = "InClusterQueue"
	// InCohortReclamation gave back quota that the victim's queue had borrowed.
	InCohortReclamation EvictReason = "InCohortReclamation"
	// InCohortFairSharing made shares more even.
	InCohortFairSharing EvictReason = "InCohortFairSharing"
	// InCohortReclaimWhileBorrowing made room for a workload that borrows
	// itself.
	InCohortReclaimWhileBorrowing EvictReason = "InCohortReclaimWhileBorrowing"
	// ClusterQueueStopped follows a ClusterQueue's stopPolicy.
	ClusterQueueStopped EvictReason = "ClusterQueueStopped"
	// LocalQueueStopped follows a LocalQueue's stopPolicy.
	LocalQueueStopped EvictReason = "LocalQueueStopped"
	// Deactivated follows Workload.Inactive.
	Deactivated EvictReason = "Deactivated"
)

// Wait says that a workload was looked at and waits, and why. It is given when
// the reason is new. A workload that waits because an equal one was refused
// before it is not looked at and gets none: [Engine.Why] answers for all.
type Wait struct {
	ID  WorkloadID
	Why Why
}

func (Admit) isDecision() {}
func (Evict) isDecision() {}
func (Wait) isDecision()  {}

func (d Admit) String() string {
	s := "admit " + string(d.ID) + " to " + string(d.Assignment.Queue)
	if p := d.Assignment.String(); p != "" {
		s += ": " + p
	}
	if d.Assignment.Borrow > 0 {
		s += fmt.Sprintf(", borrowing at height %d", d.Assignment.Borrow)
	}
	if d.Placement != nil && len(d.Placement.Pods) > 0 {
		s += ", on " + d.Placement.String()
	}
	return s
}

func (d Evict) String() string {
	s := "evict " + string(d.Victim) + ": " + string(d.Reason)
	if d.For != "" {
		s += " for " + string(d.For)
	}
	return s
}

func (d Wait) String() string {
	return "wait " + string(d.ID) + ": " + string(d.Why.Reason) + ": " + d.Why.String()
}

// String names the flavors and what is charged of them: "main a100 4
// nvidia.com/gpu".
func (a Assignment) String() string {
	var sets []string
	for _, ps := range a.PodSets {
		var parts []string
		for _, r := range sortedResources(ps.Usage) {
			parts = append(parts, fmt.Sprintf("%s %s of %s", FormatAmount(r, ps.Usage[r]), r, ps.Flavors[r]))
		}
		if len(parts) > 0 {
			sets = append(sets, fmt.Sprintf("%s x%d %s", ps.Name, ps.Count, strings.Join(parts, " + ")))
		}
	}
	return strings.Join(sets, "; ")
}

// String names the nodes in the order of the pods.
func (p Placement) String() string {
	var nodes []string
	for i, pod := range p.Pods {
		if i == 0 || pod.Node != p.Pods[i-1].Node {
			nodes = append(nodes, pod.Node)
		}
	}
	return strings.Join(nodes, ", ")
}
