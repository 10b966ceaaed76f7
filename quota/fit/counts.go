package fit

import (
	"maps"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// Cause is the kind of reason for which a workload found no room.
type Cause string

const (
	// CauseCards: no card, or not enough cards, have what is asked.
	CauseCards Cause = "cards"
	// CauseResources: nodes with such cards lack CPU, memory or another resource.
	CauseResources Cause = "resources"
	// CauseNode: nodes with such cards are cordoned, tainted or not selected, or a
	// device plugin serves the cards.
	CauseNode Cause = "node"
	// CauseSearch: too many combinations of devices to try.
	CauseSearch Cause = "search"
	// CauseClaim: the claim itself: a selector fails, or one that the pods share is
	// elsewhere.
	CauseClaim Cause = "claim"
	// CauseUnknown: what the pods need is not known yet.
	CauseUnknown Cause = "unknown"
)

// Causes are all of them.
var Causes = []Cause{CauseCards, CauseResources, CauseNode, CauseSearch, CauseClaim, CauseUnknown}

// Counts is what happened since the start.
type Counts struct {
	// Refusals are the times that a workload found no room.
	Refusals map[Cause]uint64
	// Hits are pods that the scheduler put where their place was, Misses those
	// that it put elsewhere.
	Hits, Misses uint64
	// Moved are places that were given anew because the node would not do any
	// more.
	Moved uint64
}

// Counts are the counts so far.
func (s *State) Counts() Counts {
	c := s.counts
	c.Refusals = maps.Clone(c.Refusals)
	return c
}

// Holes is what is left of the cards of a flavor, what was promised counting as
// taken.
type Holes struct {
	// Nodes are those of the flavor, Free is all that is left of their cards, in
	// bytes, Largest the largest piece on one card.
	Nodes         int
	Free, Largest int64
}

// Holes of every flavor.
func (s *State) Holes() map[engine.FlavorName]Holes {
	s.reindex()
	all := map[engine.FlavorName]Holes{}
	for name, ix := range s.indexes {
		if name == "" {
			continue
		}
		h := Holes{Nodes: len(ix.free)}
		for _, n := range ix.free {
			h.Free += n.at.free
		}
		if len(ix.sizes) > 0 {
			h.Largest = ix.sizes[len(ix.sizes)-1]
		}
		all[name] = h
	}
	return all
}
