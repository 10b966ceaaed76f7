package engine

import (
	"fmt"
	"strings"
)

// Fit answers whether a workload that the budget admits has room on real
// cards. The caller gives one to [Engine.Decide]; a nil Fit means that room is
// never the question. It is called only inside Decide, on the same goroutine,
// and must answer from state that does not change meanwhile except by Take and
// Drop.
type Fit interface {
	// Place looks for room for all pods of an assignment at once, as if the
	// workloads in without held nothing. It must count as taken whatever other
	// workloads hold or were given by Take, and must not count what w itself was
	// given by Take. It changes nothing. w and flavors are the engine's and must
	// not be kept or changed.
	Place(w *Workload, flavors Assignment, without []WorkloadID) (Placement, *NoRoom)

	// Take reserves a placement for a workload: it was admitted, or its victims
	// are being evicted, or it waited so long for a hole that one is kept for
	// it. It replaces an earlier one. The place may still be occupied; nobody
	// else may be placed there meanwhile.
	Take(id WorkloadID, p Placement)

	// Drop gives up what Take reserved for a workload that was not admitted.
	Drop(id WorkloadID)
}

// Placement is where the pods of a workload go. The engine only carries it.
type Placement struct {
	// Pods has one entry for each pod.
	Pods []PlacedPod
	// Detail is the caller's own and comes back untouched.
	Detail any
	// Displaces, where Place was asked to leave workloads out of account, are
	// those of them that have anything where these pods go: the others may stay.
	// Nil means that it cannot be told.
	Displaces []WorkloadID
}

// PlacedPod is the node of one pod.
type PlacedPod struct {
	PodSet string
	// Index counts the pods of the set from 0.
	Index int32
	Node  string
}

// NoRoom is why a workload has no place although its budget allows it.
type NoRoom struct {
	// Reason is a phrase: "no card has 20Gi free".
	Reason string
	// Holes are the largest free pieces, largest first.
	Holes []Hole
	// Never says that not even empty cards could hold it.
	Never bool
	// Flavors are those of the assignment that lack room; empty means that it
	// cannot be told. Another flavor is tried in their place.
	Flavors []FlavorName
	// Keep, if not nil, finds the place best kept free for the workload, or for
	// another that asks alike and waits with it, should it wait too long (see
	// [HoleReserveAfter]); false if there is none. It is called inside Decide alone,
	// maybe in a later one, and answers by what is known then. Called for a workload
	// that has a place kept, it gives the same one while that will do. What the
	// workloads in without have does not count.
	Keep func(id WorkloadID, without ...WorkloadID) (Placement, bool)
}

// Hole is a free piece of a card.
type Hole struct {
	// Where is the node and card: "node-2/gpu-5c2f1a90".
	Where    string
	Resource Resource
	Size     Amount
}

func (n *NoRoom) String() string {
	var b strings.Builder
	if n.Reason == "" {
		b.WriteString("no room on any card")
	} else {
		b.WriteString(n.Reason)
	}
	const shown = 3
	for i, h := range n.Holes {
		if i == shown {
			fmt.Fprintf(&b, " and %d more", len(n.Holes)-shown)
			break
		}
		if i == 0 {
			b.WriteString("; largest holes ")
		} else {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s on %s", FormatAmount(h.Resource, h.Size), h.Where)
	}
	return b.String()
}
