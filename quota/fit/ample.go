package fit

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
)

// Orders grow beyond measure with the pods on their way: 21 of three kinds can
// come in 400 million. So where there is room in any case that is seen without
// trying one, what was reached before in another order is not tried again, and
// there is a bound: beyond it a line counts as unsafe, and who is to join it waits
// until some of those on their way have arrived.

// mostDealt and mostAnswered bound how often a dealer serves somebody to judge one
// line: in plain numbers, and by the allocator.
const (
	mostDealt    = 20000
	mostAnswered = 2000
)

// limited is a dealer that serves nobody any more after so many.
type limited struct {
	dealer
	left int
}

func (b *limited) deal(sl *slot) ([]piece, bool) {
	if b.left--; b.left < 0 {
		return nil, false
	}
	return b.dealer.deal(sl)
}

// lot is so many pieces that one request after the other asks of the cards.
type lot struct {
	*demand
	pieces int
}

// ample says that each of all gets what he asks for, in whatever order they are
// served. False says nothing.
//
// It looks at each request by itself: of the cards that it could have, how many can
// the others make useless to it? If that is fewer than all, the request is served,
// whenever it comes, and that for every request means that nobody is ever refused.
// Any division of the others into large and small gives a bound:
//
//   - a large piece makes one card useless at the most, the one on which it lies;
//   - where only small ones lie, first fit fills card by card. A small piece goes to
//     the last of those cards when none before it has room for it. So all of them
//     but one hold more than leaves room for the largest of the small.
//
// Whole cards beside slices of many sizes are the common case: the slices, however
// many, are packed on few cards.
func (c *counting) ample(all []*slot) bool {
	if len(c.counters) > 0 {
		// Cards shut each other.
		return false
	}
	var lots []lot
	for _, sl := range all {
		mine := *c.kinds[sl.kind]
		for i := range mine {
			at := slices.IndexFunc(lots, func(l lot) bool { return l.demand == &mine[i] })
			if at < 0 {
				at, lots = len(lots), append(lots, lot{demand: &mine[i]})
			}
			lots[at].pieces += mine[i].count
		}
	}
	for i := range lots {
		lots[i].pieces--
		served := c.always(lots[i].portions, lots)
		if lots[i].pieces++; !served {
			return false
		}
	}
	return true
}

// always says that others cannot make every card useless that a request could have.
func (c *counting) always(asks portions, others []lot) bool {
	var shared, alone []int
	for i := range c.cards {
		switch {
		case !c.has(i, asks[i]):
		case c.cards[i].shareable:
			shared = append(shared, i)
		default:
			alone = append(alone, i)
		}
	}
	// Whoever has a device alone is one piece.
	if len(alone) > pieces(others, func(l lot) bool { return l.onAny(alone) }) {
		return true
	}
	// Those who cannot have any of the cards are in nobody's way there.
	there := make([]lot, 0, len(others))
	for _, l := range others {
		if l.pieces > 0 && l.onAny(shared) {
			there = append(there, l)
		}
	}
	// Whoever has several cards passes over those that he has.
	slices.SortStableFunc(there, func(a, b lot) int {
		return cmp.Or(cmp.Compare(boolInt(a.count > 1), boolInt(b.count > 1)), cmp.Compare(a.most().memory, b.most().memory))
	})
	for small := 0; small <= len(there); small++ {
		if small > 0 && there[small-1].count > 1 {
			break
		}
		large := pieces(there[small:], func(lot) bool { return true })
		if large < len(shared) && large+c.filled(asks, shared, there[:small], others) < len(shared) {
			return true
		}
	}
	return false
}

func pieces(all []lot, which func(lot) bool) int {
	n := 0
	for _, l := range all {
		if which(l) {
			n += l.pieces
		}
	}
	return n
}

// onAny says that a request could have one of some cards, as far as it is the
// request that decides.
func (p portions) onAny(cards []int) bool {
	return slices.ContainsFunc(cards, func(i int) bool { return p[i].ok })
}

// most is the most that a request may take of one card.
func (p portions) most() sum {
	var m sum
	for i := range p {
		if p[i].ok {
			m.memory, m.cores = max(m.memory, p[i].memory), max(m.cores, p[i].cores)
		}
	}
	return m
}

// least is the least that it takes of one of some cards.
func (p portions) least(cards []int) sum {
	m := sum{math.MaxInt64, math.MaxInt64}
	for _, i := range cards {
		if p[i].ok {
			m.memory, m.cores = min(m.memory, p[i].memory), min(m.cores, p[i].cores)
		}
	}
	return m
}

// sum is memory and cores of one card or of several.
type sum struct{ memory, cores int64 }

// filled bounds how many of some cards become useless to a request by small pieces
// alone. All are those and the large ones.
func (c *counting) filled(asks portions, cards []int, small, all []lot) int {
	if len(small) == 0 {
		return 0
	}
	var total sum
	count, least := 0, sum{math.MaxInt64, math.MaxInt64}
	for _, l := range small {
		m, n := l.most(), int64(l.pieces)
		total.memory, total.cores, count = total.memory+n*m.memory, total.cores+n*m.cores, count+l.pieces
		m = l.least(cards)
		least.memory, least.cores = min(least.memory, m.memory), min(least.cores, m.cores)
	}
	// So much has to be taken of a card before there is too little for the request,
	// and so much before there is too little for one of the small ones.
	var useless, full [2][]int64
	for _, i := range cards {
		r := &c.cards[i]
		mine := sum{r.memory - asks[i].memory + 1, r.cores - asks[i].cores + 1}
		useless[0], useless[1] = append(useless[0], mine.memory), append(useless[1], mine.cores)
		if its, ok := c.full(i, small); ok && its.memory > mine.memory {
			mine = its
		}
		full[0], full[1] = append(full[0], mine.memory), append(full[1], mine.cores)
	}
	// The piece on the last card lies on no other, and before any comes that far the
	// cards before all of these are full too.
	rest := sum{total.memory - least.memory - c.before(cards[0], small, all, total), total.cores - least.cores}
	if rest.memory < 0 {
		return 0
	}
	return min(count,
		meets(useless[0], total.memory)+meets(useless[1], total.cores),
		1+meets(full[0], rest.memory)+meets(full[1], rest.cores))
}

// full is what has to be taken of a card before there is too little for one of
// several lots; false where one of them cannot have it at all.
func (c *counting) full(card int, small []lot) (sum, bool) {
	r := &c.cards[card]
	need := sum{math.MaxInt64, math.MaxInt64}
	for _, l := range small {
		p := l.portions[card]
		if !p.ok {
			return need, false
		}
		need.memory, need.cores = min(need.memory, r.memory-p.memory+1), min(need.cores, r.cores-p.cores+1)
	}
	return need, r.open && need.memory > 0 && need.cores > 0
}

// before is how much memory small pieces take at least of the cards before one,
// once one of them lies there or behind. Cards that others or cores may fill count
// for nothing.
func (c *counting) before(first int, small, all []lot, total sum) int64 {
	much := int64(0)
	for i := range first {
		need, ok := c.full(i, small)
		if !ok || !c.cards[i].shareable || total.cores >= need.cores {
			continue
		}
		if slices.ContainsFunc(all, func(l lot) bool {
			return l.pieces > 0 && c.has(i, l.portions[i]) && !slices.ContainsFunc(small, func(s lot) bool { return s.demand == l.demand })
		}) {
			continue
		}
		much += need.memory
	}
	return much
}

// meets is how many of the needs so much meets at the most.
func meets(needs []int64, much int64) int {
	slices.Sort(needs)
	for i, n := range needs {
		if much -= n; much < 0 {
			return i
		}
	}
	return len(needs)
}

// mark stands for what is left of the cards.
func (c *counting) mark(to []byte) []byte {
	for i := range c.cards {
		r := &c.cards[i]
		to = binary.AppendVarint(binary.AppendVarint(append(to, byte(boolInt(r.touched || r.shares > 0))), r.memory), r.cores)
	}
	return to
}

// mark is nothing: what the allocator gave before is not compared.
func (*asking) mark([]byte) []byte { return nil }
