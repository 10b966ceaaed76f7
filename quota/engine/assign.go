package engine

// Which flavors a workload gets: for every pod set and resource group the best
// one, in the order and by the rules of its queue (flavorFungibility).

// mode is what it takes to give a workload what it asks for, worst first.
type mode uint8

const (
	// noFit: more than there could be, or nobody may be evicted for it.
	noFit mode = iota
	// noCandidates: it may evict, but finds nobody whose eviction suffices.
	noCandidates
	// preempts: workloads of its own queue must go.
	preempts
	// reclaims: only workloads of other queues must go.
	reclaims
	// awaits: evictions in flight will free it; nobody else must go.
	awaits
	// fits: it is free.
	fits
)

func (m mode) viable() bool { return m > noCandidates }

// nomination is the outcome of a trial: how a workload could be admitted.
type nomination struct {
	w *work
	q *queue
	p *plan
	// version of the engine's state that it is true for.
	version uint64

	mode   mode
	borrow int
	picks  []pick
	counts []int32
	// charges are what it would use; contested are the cells that are not free.
	charges   []charge
	contested []*cell
	victims   []victim
	excluded  []pick
	room      *NoRoom
	// ungated tries what would be if preemption gates were open.
	ungated bool
	// place is where it stands in a lineup.
	place int
}

// pick is a choice of flavor: option of a group of a pod set.
type pick struct{ set, group, option int }

func (n *nomination) reset(q *queue, w *work, p *plan) {
	n.q, n.w, n.p = q, w, p
	n.excluded = n.excluded[:0]
	n.room, n.ungated = nil, false
	n.clear()
}

func (n *nomination) clear() {
	n.mode, n.borrow = fits, 0
	n.picks, n.charges, n.contested = n.picks[:0], n.charges[:0], n.contested[:0]
	n.victims = n.victims[:0]
}

func (n *nomination) option(p pick) *option {
	return &n.p.sets[p.set].groups[p.group].options[p.option]
}

func (n *nomination) isExcluded(p pick) bool {
	for _, x := range n.excluded {
		if x == p {
			return true
		}
	}
	return false
}

// assumed is what earlier pod sets of the same workload take of a cell.
func (n *nomination) assumed(c *cell) Amount {
	for _, ch := range n.charges {
		if ch.cell == c {
			return ch.amount
		}
	}
	return 0
}

// nominate finds out how a workload could be admitted now, with fewer pods if
// that is allowed and needed.
func (e *Engine) nominate(n *nomination, q *queue, w *work, p *plan, tr *trace) {
	n.reset(q, w, p)
	n.version = e.version
	e.renominate(n, tr)
}

// renominate tries again with what is excluded by now.
func (e *Engine) renominate(n *nomination, tr *trace) {
	n.counts = n.counts[:0]
	partial := -1
	for i := range n.p.sets {
		spec := n.p.sets[i].spec
		n.counts = append(n.counts, spec.Count)
		if spec.MinCount > 0 && spec.MinCount < spec.Count {
			partial = i
		}
	}
	e.tryCounts(n, tr)
	if n.mode.viable() || partial < 0 || n.p.refused != nil {
		return
	}
	spec := n.p.sets[partial].spec
	lo, hi := spec.MinCount, spec.Count
	found := int32(0)
	for lo < hi {
		mid := lo + (hi-lo)/2
		n.counts[partial] = mid
		e.tryCounts(n, nil)
		if n.mode.viable() {
			found, lo = mid, mid+1
		} else {
			hi = mid
		}
	}
	n.counts[partial] = spec.Count
	if found > 0 {
		n.counts[partial] = found
	}
	e.tryCounts(n, nil)
}

// tryCounts chooses flavors for the counts in n and, if needed, victims.
func (e *Engine) tryCounts(n *nomination, tr *trace) {
	n.clear()
	if n.p.refused != nil {
		n.mode = noFit
		return
	}
	for s := range n.p.sets {
		for g := range n.p.sets[s].groups {
			m, borrow, o := e.bestFlavor(n, s, g, tr)
			if m == noFit {
				n.mode = noFit
				return
			}
			n.take(pick{s, g, o})
			n.mode = min(n.mode, m)
			n.borrow = max(n.borrow, borrow)
		}
	}
	if n.mode == preempts || n.mode == reclaims {
		n.contest()
		n.victims = e.victims(n, n.victims)
		if len(n.victims) == 0 {
			n.mode = noCandidates
		}
	}
}

// take adds a choice and what it is charged.
func (n *nomination) take(p pick) {
	n.picks = append(n.picks, p)
	for _, a := range n.option(p).asks {
		if amount := a.amount(n.counts[p.set]); amount > 0 {
			n.charges = addCharge(n.charges, a.cell, amount)
		}
	}
}

// contest lists the cells in which somebody must go.
func (n *nomination) contest() {
	for _, c := range n.charges {
		if c.amount > c.cell.available(planned) {
			n.contested = append(n.contested, c.cell)
		}
	}
}

// bestFlavor goes through the flavors of a group.
func (e *Engine) bestFlavor(n *nomination, s, g int, tr *trace) (mode, int, int) {
	set := &n.p.sets[s]
	policy := n.q.spec.Fungibility
	best, bestMode, bestBorrow := -1, noFit, 0
	tr.enter(s, g)
	for o := range set.groups[g].options {
		opt := &set.groups[g].options[o]
		if opt.unfit != "" {
			tr.unfit(set, opt)
			continue
		}
		if n.isExcluded(pick{s, g, o}) {
			continue
		}
		m, borrow := fits, 0
		for _, a := range opt.asks {
			amount := a.amount(n.counts[s])
			if amount == 0 {
				continue
			}
			am, ab := e.tryCell(n, a.cell, n.assumed(a.cell).Add(amount))
			if am < fits {
				tr.short(set, opt, a.cell, n.assumed(a.cell).Add(amount), am)
			}
			m, borrow = min(m, am), max(borrow, ab)
			if m == noFit {
				break
			}
		}
		if m == noFit {
			continue
		}
		if best < 0 || policy.prefers(m, borrow, bestMode, bestBorrow) {
			best, bestMode, bestBorrow = o, m, borrow
		}
		if policy.stopsAt(m, borrow) {
			break
		}
	}
	return bestMode, bestBorrow, best
}

// prefers says that the first of two ways is better.
func (f Fungibility) prefers(m mode, borrow int, than mode, thanBorrow int) bool {
	if m.viable() != than.viable() {
		return m.viable()
	}
	if f.Preference == PreemptionOverBorrowing && f.WhenCanBorrow == TryNextFlavor && f.WhenCanPreempt != MayStopSearch {
		if borrow != thanBorrow {
			return borrow < thanBorrow
		}
		return m > than
	}
	if m != than {
		return m > than
	}
	return borrow < thanBorrow
}

// stopsAt says that no later flavor is looked at.
func (f Fungibility) stopsAt(m mode, borrow int) bool {
	if borrow > 0 && f.WhenCanBorrow == TryNextFlavor {
		return false
	}
	switch m {
	case fits:
		return true
	case preempts, reclaims, awaits:
		return f.WhenCanPreempt == MayStopSearch
	}
	return false
}

// tryCell says what it takes to get an amount of one cell, and how far it
// borrows.
func (e *Engine) tryCell(n *nomination, c *cell, amount Amount) (mode, int) {
	if amount > c.most() {
		return noFit, 0
	}
	borrow, beyond := c.distance(planned, amount)
	if amount <= c.free() {
		return fits, borrow
	}
	if n.w.gated && !n.ungated || !n.q.mayPreempt() {
		return noFit, borrow
	}
	if amount <= c.available(planned) {
		return awaits, borrow
	}
	if amount <= c.quota.Nominal || beyond || e.mayEvictWhileBorrowing(n.q) {
		return e.weighEviction(n, c, amount, borrow)
	}
	return noFit, borrow
}

// mayEvictWhileBorrowing says that a workload of the queue may evict others'
// although it borrows.
func (e *Engine) mayEvictWhileBorrowing(q *queue) bool {
	p := q.spec.Preemption
	if e.opts.fair {
		return p.Reclaim != Never && p.Reclaim != ""
	}
	return p.BorrowWithin == LowerPriority
}

// assignment writes a nomination down.
func (n *nomination) assignment() Assignment {
	a := Assignment{Queue: n.q.name, Borrow: n.borrow, PodSets: make([]PodSetAssignment, len(n.p.sets))}
	for i := range n.p.sets {
		a.PodSets[i] = PodSetAssignment{Name: n.p.sets[i].spec.Name, Count: n.counts[i], Flavors: map[Resource]FlavorName{}, Usage: Amounts{}}
	}
	for _, p := range n.picks {
		o := n.option(p)
		ps := &a.PodSets[p.set]
		for _, ask := range o.asks {
			ps.Flavors[ask.cell.Resource] = o.flavor
			ps.Usage[ask.cell.Resource] = ask.amount(n.counts[p.set])
		}
	}
	return a
}
