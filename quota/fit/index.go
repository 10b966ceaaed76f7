package fit

import (
	"cmp"
	"iter"
	"slices"
)

// The index answers "which nodes may have room for this" without looking at the
// others. It keeps the nodes of one flavor in three orders:
//
//   - by the hole that a request of a given size would get. The allocator takes
//     the first card, in published order, that has enough; so of a node's cards
//     only those count that have more left than all before them, and each serves
//     the sizes between the one before it and itself;
//   - by the number of cards that a request without a size would get;
//   - by all that is left.
//
// It is a filter and an order, not the answer: what it leaves out has no room
// for certain, what it lists may have none (cores, selectors, constraints).

// keys are where a node stands in the index.
type keys struct {
	name string
	// holes rise: what is left of the cards that have more than all before them.
	holes []int64
	// spare counts the cards that a request without a size would get, cores aside.
	spare int
	// free is the sum of what is left.
	free int64
}

// keysOf are the keys of a node with such cards. Tainted ones count for nothing:
// few requests can have them, and those look at all nodes.
func keysOf(n *node, cards []card) keys {
	k := keys{name: n.name}
	for i := range cards {
		c := &cards[i]
		if !c.open || c.tainted {
			continue
		}
		if c.spare() {
			k.spare++
		}
		if c.memory < 0 {
			continue
		}
		k.free += c.freeMemory
		if len(k.holes) == 0 || c.freeMemory > k.holes[len(k.holes)-1] {
			k.holes = append(k.holes, c.freeMemory)
		}
	}
	return k
}

func (k *keys) equal(o *keys) bool {
	return k.name == o.name && k.spare == o.spare && k.free == o.free && slices.Equal(k.holes, o.holes)
}

// hole is what is left, before it is taken, of the card that a request of some
// memory would get; -1 if none has enough.
func (k *keys) hole(memory int64) int64 {
	for _, h := range k.holes {
		if h >= memory {
			return h
		}
	}
	return -1
}

// index is the nodes of one flavor in order.
type index struct {
	labels map[string]string
	sizes  []int64 // of holes, rising
	holes  map[int64]order
	spare  map[int]order
	spares []int // the keys of spare, rising
	free   order
}

// order is nodes by what is left of them, the fullest first.
type order []*node

func newIndex() *index {
	return &index{holes: map[int64]order{}, spare: map[int]order{}}
}

func compareNodes(a, b *node) int {
	return cmp.Or(cmp.Compare(a.at.free, b.at.free), cmp.Compare(a.name, b.name))
}

func (o order) add(n *node) order {
	i, _ := slices.BinarySearchFunc(o, n, compareNodes)
	return slices.Insert(o, i, n)
}

func (o order) remove(n *node) order {
	if i, ok := slices.BinarySearchFunc(o, n, compareNodes); ok {
		return slices.Delete(o, i, i+1)
	}
	return o
}

// add puts a node into the index by its keys.
func (ix *index) add(n *node) {
	ix.free = ix.free.add(n)
	for _, h := range n.at.holes {
		if len(ix.holes[h]) == 0 {
			i, _ := slices.BinarySearch(ix.sizes, h)
			ix.sizes = slices.Insert(ix.sizes, i, h)
		}
		ix.holes[h] = ix.holes[h].add(n)
	}
	if k := n.at.spare; k > 0 {
		if len(ix.spare[k]) == 0 {
			i, _ := slices.BinarySearch(ix.spares, k)
			ix.spares = slices.Insert(ix.spares, i, k)
		}
		ix.spare[k] = ix.spare[k].add(n)
	}
}

// remove takes a node out. Its keys must be those by which it was added.
func (ix *index) remove(n *node) {
	ix.free = ix.free.remove(n)
	for _, h := range n.at.holes {
		if ix.holes[h] = ix.holes[h].remove(n); len(ix.holes[h]) == 0 {
			delete(ix.holes, h)
			i, _ := slices.BinarySearch(ix.sizes, h)
			ix.sizes = slices.Delete(ix.sizes, i, i+1)
		}
	}
	if k := n.at.spare; k > 0 {
		if ix.spare[k] = ix.spare[k].remove(n); len(ix.spare[k]) == 0 {
			delete(ix.spare, k)
			i, _ := slices.BinarySearch(ix.spares, k)
			ix.spares = slices.Delete(ix.spares, i, i+1)
		}
	}
}

func (ix *index) selects(n *node) bool {
	if n.object == nil {
		return false
	}
	for k, v := range ix.labels {
		if n.object.Labels[k] != v {
			return false
		}
	}
	return true
}

// reindex puts the nodes that have changed into their places.
func (s *State) reindex() {
	for _, n := range s.stale {
		n.stale = false
		if s.nodes[n.name] != n {
			continue
		}
		if n.base == nil {
			n.base = s.compute(n, &trial{})
		}
		if n.base.over() && s.compute(n, &trial{now: true}).over() {
			s.rearrange(n)
		} else if len(s.lost) > 0 {
			for _, sl := range n.slots {
				s.regain(sl)
			}
		}
		if n.base.over() {
			s.rename(n)
		}
		if n.at.equal(&n.base.keys) && s.indexed(n) {
			continue
		}
		s.unindex(n)
		n.at = n.base.keys
		for _, ix := range s.indexes {
			if ix.selects(n) {
				ix.add(n)
				n.in = append(n.in, ix)
			}
		}
	}
	s.stale = s.stale[:0]
}

// indexed says whether a node is in the indexes that select it, and in no others.
func (s *State) indexed(n *node) bool {
	for _, ix := range s.indexes {
		if ix.selects(n) != slices.Contains(n.in, ix) {
			return false
		}
	}
	return true
}

func (s *State) unindex(n *node) {
	for _, ix := range n.in {
		ix.remove(n)
	}
	n.in = n.in[:0]
}

// emptiest lists nodes by the largest hole, the largest first.
func (ix *index) emptiest() iter.Seq[*node] {
	return func(yield func(*node) bool) {
		for _, h := range slices.Backward(ix.sizes) {
			for _, n := range ix.holes[h] {
				if n.at.holes[len(n.at.holes)-1] == h && !yield(n) {
					return
				}
			}
		}
	}
}

// sizes is a multiset of the memory sizes that workloads ask for.
type sizes map[int64]int

func (s sizes) add(all []int64) {
	for _, n := range all {
		s[n]++
	}
}

func (s sizes) remove(all []int64) {
	for _, n := range all {
		if s[n]--; s[n] <= 0 {
			delete(s, n)
		}
	}
}

// least is the smallest of them, 0 if there are none.
func (s sizes) least() int64 {
	least := int64(0)
	for n := range s {
		if least == 0 || n < least {
			least = n
		}
	}
	return least
}
