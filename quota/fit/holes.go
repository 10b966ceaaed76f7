package fit

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

// namedHoles is how many of the largest holes a reason to wait names.
const namedHoles = 3

// noRoom explains that no node takes one more pod: by the cards of the nodes
// that would accept it, or by why none would.
func (s *State) noRoom(q *query, why *refusals, t *trial) *noRoom {
	no := &noRoom{cause: CauseCards}
	if q.fixed != "" {
		defer func() { no.Reason += fmt.Sprintf("; a claim that the pod shares is on node %s", q.fixed) }()
	}
	switch {
	case len(s.indexes[""].free) == 0:
		no.cause, no.Reason = CauseNode, "there are no nodes"
		return no
	case len(q.index.free) == 0:
		no.cause, no.Reason = CauseNode, fmt.Sprintf("no node accepts a pod of set %q (not selected by the flavor's node labels)", q.set.Name)
		return no
	case why.hard > 0:
		no.cause, no.Reason = CauseSearch, fmt.Sprintf("%s (%d of %d nodes were not searched to the end)", errTooMany, why.hard, why.tried)
		return no
	case why.tried == 0 && len(why.reasons) > 0:
		no.cause, no.Reason = why.cause(), fmt.Sprintf("no node accepts a pod of set %q (%s)", q.set.Name, why)
		if q.wants.sized && !q.wants.blind {
			no.Reason = fmt.Sprintf("no node with %s free accepts a pod of set %q (%s)", need(q.claims), q.set.Name, why)
		}
		return no
	}
	no.Reason = fmt.Sprintf("no card has %s free", need(q.claims))
	if len(why.reasons) > 0 {
		no.Reason += fmt.Sprintf(" (%s)", why)
	}
	if len(t.without) == 0 {
		no.Holes = s.largestHoles(q, t)
	}
	return no
}

// largestHoles lists the largest pieces that are left of cards on nodes that the
// pods could run on.
func (s *State) largestHoles(q *query, t *trial) []engine.Hole {
	var nodes []*node
	for n := range q.index.emptiest() {
		if _, differs := t.views[n]; differs || q.welcome(n) != nil {
			continue
		}
		// The largest holes are on the nodes that have the largest.
		if nodes = append(nodes, n); len(nodes) == namedHoles {
			break
		}
	}
	for n := range t.views {
		if q.index.selects(n) && q.welcome(n) == nil {
			nodes = append(nodes, n)
		}
	}
	var holes []engine.Hole
	for _, n := range nodes {
		v := s.view(n, t)
		for i := range v.cards {
			if c := &v.cards[i]; c.open && c.freeMemory > 0 && !c.tainted {
				holes = append(holes, engine.Hole{Where: n.name + "/" + c.device.Name, Resource: pricing.ResourceMemory, Size: engine.Amount(c.freeMemory)})
			}
		}
	}
	slices.SortFunc(holes, func(a, b engine.Hole) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Where, b.Where))
	})
	return holes[:min(len(holes), namedHoles)]
}

// need describes what the claims of one pod ask for.
func need(claims []*resourceapi.ResourceClaim) string {
	text := ""
	for _, c := range claims {
		for i := range c.Spec.Devices.Requests {
			r := &c.Spec.Devices.Requests[i]
			if text != "" {
				text += " and "
			}
			text += describe(r)
		}
	}
	if text == "" {
		return "what the pod asks for"
	}
	return text
}

func describe(r *resourceapi.DeviceRequest) string {
	if r.Exactly == nil {
		return fmt.Sprintf("one of %d alternatives of request %q", len(r.FirstAvailable), r.Name)
	}
	text := ""
	if r.Exactly.Capacity != nil {
		if m, ok := r.Exactly.Capacity.Requests[pricing.CapacityMemory]; ok {
			text = m.String()
		}
		if c, ok := r.Exactly.Capacity.Requests[pricing.CapacityCores]; ok {
			if text != "" {
				text += " with "
			}
			text += c.String() + "% cores"
		}
	}
	if text == "" {
		text = "a share of " + r.Exactly.DeviceClassName
	}
	if n := r.Exactly.Count; n > 1 {
		text = fmt.Sprintf("%d times %s", n, text)
	}
	return text
}
