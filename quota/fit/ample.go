package fit

import (
	"encoding/binary"
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

// ample says that each of all gets what he asks for, wherever the others are
// served and in whatever order: they have not enough among them to fill every card
// that he could have. False says nothing.
func (c *counting) ample(all []*slot) bool {
	var total sum
	for _, sl := range all {
		for _, asks := range c.kinds[sl.kind] {
			total.add(asks.most(c.cards), 1)
		}
	}
	for _, kind := range c.kinds {
		for _, asks := range kind {
			others := total
			others.add(asks.most(c.cards), -1)
			if !c.always(asks, others) {
				return false
			}
		}
	}
	return true
}

// sum is what several requests take at the most: whole counts those that may take
// a card as a whole.
type sum struct{ memory, cores, whole int64 }

func (s *sum) add(o sum, times int64) {
	s.memory += times * o.memory
	s.cores += times * o.cores
	s.whole += times * o.whole
}

// most is the most that a request may take.
func (p portions) most(cards []rest) sum {
	var m sum
	for i := range p {
		switch {
		case !p[i].ok:
		case cards[i].shareable:
			m.memory, m.cores = max(m.memory, p[i].memory), max(m.cores, p[i].cores)
		default:
			m.whole = 1
		}
	}
	return m
}

// always says that others cannot fill every card that a request could have.
func (c *counting) always(asks portions, others sum) bool {
	var memory, cores []int64
	whole := int64(0)
	for i := range c.cards {
		r, p := &c.cards[i], asks[i]
		switch {
		case !p.ok || !r.has(p):
		case r.shareable:
			// So much has to be taken before there is too little.
			memory, cores = append(memory, r.memory-p.memory+1), append(cores, r.cores-p.cores+1)
		default:
			whole++
		}
	}
	return whole > others.whole || len(memory) > filled(memory, others.memory)+filled(cores, others.cores)
}

// filled is how many of the needs so much meets at the most.
func filled(needs []int64, much int64) int {
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
		to = binary.AppendVarint(binary.AppendVarint(append(to, byte(boolInt(r.touched))), r.memory), r.cores)
	}
	return to
}

// mark is nothing: what the allocator gave before is not compared.
func (*asking) mark([]byte) []byte { return nil }
