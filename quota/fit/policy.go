package fit

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"k8s.io/dynamic-resource-allocation/structured"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/sluice-gpu/sluice/quota/pricing"
)

// Policy chooses among nodes that have room.
type Policy string

const (
	// BinPack takes the node on which least is left that nothing asked for fits
	// into; of equals the one with the smallest hole that will do, then the
	// fullest. So large holes stay whole. It is the default ("").
	BinPack Policy = "binpack"
	// Spread takes the node with most left.
	Spread Policy = "spread"
	// NVLink is BinPack, but a pod with several cards prefers nodes on which the
	// scheduler will give it cards of one NVLink domain.
	NVLink Policy = "nvlink"
	// None leaves the choice to the scheduler: that there is room is asked, but no
	// node is nominated.
	None Policy = "none"
)

// Policies are all of them.
var Policies = []Policy{BinPack, Spread, NVLink, None}

// ParsePolicy reads a policy's name; "" is none of its own.
func ParsePolicy(name string) (Policy, error) {
	if name == "" || slices.Contains(Policies, Policy(name)) {
		return Policy(name), nil
	}
	return "", fmt.Errorf("placement is %q, use binpack, spread, nvlink or none", name)
}

// rank is a node's place in line; the least goes first.
type rank struct {
	leaves int
	group  int
	size   int64
	free   int64
}

func (r rank) compare(o rank) int {
	return cmp.Or(cmp.Compare(r.leaves, o.leaves), cmp.Compare(r.group, o.group), cmp.Compare(r.size, o.size), cmp.Compare(r.free, o.free))
}

// rank places a node that a trial sees otherwise than the index. It must agree
// with inOrder.
func (q *query) rank(k *keys, least int64) (rank, bool) {
	switch {
	case q.policy == Spread:
		return rank{free: -k.free}, true
	case q.wants.blind || q.wants.loose || !q.wants.sized:
		return rank{free: k.free}, true
	case q.wants.memory < 0:
		return rank{size: int64(k.spare), free: k.free}, k.spare > 0
	}
	h := k.hole(q.wants.memory)
	if h < 0 {
		return rank{}, false
	}
	return rank{group: group(h-q.wants.memory, least), size: h, free: k.free}, true
}

// group sorts holes by what they leave: nothing, something useful, or less than
// anything that is asked for.
func group(rest, least int64) int {
	switch {
	case rest == 0:
		return 0
	case rest >= least:
		return 1
	}
	return 2
}

// inOrder lists the nodes of the index that may have room, in order of rank.
func (q *query) inOrder(least int64) iter.Seq2[rank, *node] {
	ix, memory := q.index, q.wants.memory
	switch {
	case q.policy == Spread:
		return func(yield func(rank, *node) bool) {
			// The fullest come first in the index; of equals the first by name.
			for end := len(ix.free); end > 0; {
				begin := end - 1
				for begin > 0 && ix.free[begin-1].at.free == ix.free[end-1].at.free {
					begin--
				}
				for _, n := range ix.free[begin:end] {
					if !yield(rank{free: -n.at.free}, n) {
						return
					}
				}
				end = begin
			}
		}
	case q.wants.blind || q.wants.loose || !q.wants.sized:
		return func(yield func(rank, *node) bool) {
			for _, n := range ix.free {
				if !yield(rank{free: n.at.free}, n) {
					return
				}
			}
		}
	case memory < 0:
		return func(yield func(rank, *node) bool) {
			for _, k := range ix.spares {
				for _, n := range ix.spare[k] {
					if !yield(rank{size: int64(k), free: n.at.free}, n) {
						return
					}
				}
			}
		}
	}
	return func(yield func(rank, *node) bool) {
		from := func(size int64) int {
			i, _ := slices.BinarySearch(ix.sizes, size)
			return i
		}
		exact, useful := from(memory), from(memory+max(1, least))
		wasteful := exact
		if wasteful < len(ix.sizes) && ix.sizes[wasteful] == memory {
			wasteful++
		}
		for _, part := range [][2]int{{exact, wasteful}, {useful, len(ix.sizes)}, {wasteful, useful}} {
			for _, h := range ix.sizes[part[0]:max(part[0], part[1])] {
				for _, n := range ix.holes[h] {
					if n.at.hole(memory) != h {
						continue // it would take another card there
					}
					if !yield(rank{group: group(h-memory, least), size: h, free: n.at.free}, n) {
						return
					}
				}
			}
		}
	}
}

// candidates lists the nodes that may have room in a trial, best first. In a
// trial without some workloads, nodes that need the fewest of them gone are
// best.
func (s *State) candidates(q *query, t *trial) iter.Seq[*node] {
	type place struct {
		rank
		*node
	}
	if q.fixed != "" {
		return func(yield func(*node) bool) {
			if n := s.nodes[q.fixed]; n != nil && n.object != nil {
				yield(n)
			}
		}
	}
	least := s.asked.least()
	var apart []place
	for n := range t.views {
		if !q.index.selects(n) {
			continue
		}
		v := s.view(n, t)
		if r, ok := q.rank(&v.keys, least); ok && v.mayHold(q.wants) {
			r.leaves = len(s.displaced(n, t))
			apart = append(apart, place{r, n})
		}
	}
	slices.SortFunc(apart, func(a, b place) int { return cmp.Or(a.compare(b.rank), cmp.Compare(a.name, b.name)) })
	return func(yield func(*node) bool) {
		i := 0
		for r, n := range q.inOrder(least) {
			if _, differs := t.views[n]; differs {
				continue
			}
			for i < len(apart) && cmp.Or(apart[i].compare(r), cmp.Compare(apart[i].name, n.name)) < 0 {
				if !yield(apart[i].node) {
					return
				}
				i++
			}
			if n.base.mayHold(q.wants) && !yield(n) {
				return
			}
		}
		for ; i < len(apart); i++ {
			if !yield(apart[i].node) {
				return
			}
		}
	}
}

// attributeNVLink is the driver's attribute that is equal on cards which reach
// each other by NVLink.
const attributeNVLink = "nvlinkDomain"

// linked says whether all cards of an allocation are of one NVLink domain, as far
// as they are our driver's.
func (s *State) linked(n *node, results []device) bool {
	domain := ""
	for i, d := range results {
		if d.key.driver != pricing.DriverName {
			continue
		}
		its := nvlinkDomain(n, d.id)
		if its == "" || i > 0 && domain != "" && its != domain {
			return false
		}
		domain = its
	}
	return true
}

func nvlinkDomain(n *node, id structured.DeviceID) string {
	for i := range n.cards {
		if n.cards[i].id != id {
			continue
		}
		for _, name := range []resourceapi.QualifiedName{attributeNVLink, pricing.DriverName + "/" + attributeNVLink} {
			if a, ok := n.cards[i].device.Attributes[name]; ok && a.StringValue != nil {
				return *a.StringValue
			}
		}
	}
	return ""
}
