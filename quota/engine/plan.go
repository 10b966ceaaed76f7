package engine

import "sort"

// plan is a shape laid over the quotas of a queue: for each pod set and each
// resource group that it touches, the flavors in order, and for each of them
// the cells to ask. It is made once for a class of workloads, so that a trial
// walks it without looking anything up.
type plan struct {
	sets []planSet
	// refused is why the queue can never take the shape, nil if it may.
	refused *refusal
	// refs counts the classes that use it.
	refs int
}

type planSet struct {
	spec   *PodSet
	groups []planGroup
}

type planGroup struct {
	options []option
}

// option is one flavor for one group of a pod set.
type option struct {
	flavor  FlavorName
	elastic bool
	// unfit is why the pods cannot run there, "" if they can.
	unfit string
	asks  []ask
}

// ask is what is asked of one cell.
type ask struct {
	cell *cell
	// each is for one pod, once for the set.
	each, once Amount
}

func (a ask) amount(count int32) Amount { return a.each.Times(int64(count)).Add(a.once) }

// planOf returns the shared plan of a shape in a queue.
func (e *Engine) planOf(q *queue, s *shape) *plan {
	p, ok := q.plans[s]
	if !ok {
		p = e.planFor(q, s)
		q.plans[s] = p
	}
	p.refs++
	return p
}

func (q *queue) dropPlan(s *shape) {
	if p := q.plans[s]; p != nil {
		if p.refs--; p.refs == 0 {
			delete(q.plans, s)
		}
	}
}

// planFor lays a shape over a queue.
func (e *Engine) planFor(q *queue, s *shape) *plan {
	p := &plan{sets: make([]planSet, len(s.sets))}
	for i := range s.sets {
		p.sets[i].spec = &s.sets[i]
		if refused := e.planSet(q, &p.sets[i]); refused != nil && p.refused == nil {
			p.refused = refused
		}
	}
	return p
}

func (e *Engine) planSet(q *queue, ps *planSet) *refusal {
	asked := make([]Resource, 0, len(ps.spec.Requests)+1)
	for _, a := range []Amounts{ps.spec.Requests, ps.spec.Once} {
		for r := range a {
			asked = append(asked, r)
		}
	}
	for _, a := range ps.spec.ByFlavor {
		for r := range a {
			asked = append(asked, r)
		}
	}
	if _, covered := q.groupOf[Pods]; covered {
		asked = append(asked, Pods)
	}
	sort.Slice(asked, func(i, j int) bool { return asked[i] < asked[j] })

	var refused *refusal
	byGroup := map[int][]Resource{}
	var groups []int
	for i, r := range asked {
		if i > 0 && asked[i-1] == r {
			continue
		}
		g, covered := q.groupOf[r]
		if !covered {
			if !e.mayIgnore(q, ps.spec, r) && refused == nil {
				refused = &refusal{reason: NotCovered, never: true, set: ps.spec.Name, resource: r}
			}
			continue
		}
		if _, seen := byGroup[g]; !seen {
			groups = append(groups, g)
		}
		byGroup[g] = append(byGroup[g], r)
	}
	sort.Ints(groups)
	ps.groups = make([]planGroup, len(groups))
	for i, g := range groups {
		ps.groups[i] = e.planGroup(q, ps.spec, &q.spec.Groups[g], byGroup[g])
	}
	return refused
}

// mayIgnore says whether a resource without quota may pass: see
// [IgnoreUndeclared].
func (e *Engine) mayIgnore(q *queue, ps *PodSet, r Resource) bool {
	if r == Pods {
		return true
	}
	if !asksFor(ps, r) {
		return true
	}
	if e.opts.devices[r] {
		return q.coversDevices
	}
	return e.opts.ignoreUndeclared
}

func asksFor(ps *PodSet, r Resource) bool {
	if ps.Requests[r] != 0 || ps.Once[r] != 0 {
		return true
	}
	for _, a := range ps.ByFlavor {
		if a[r] != 0 {
			return true
		}
	}
	return false
}

func (e *Engine) planGroup(q *queue, ps *PodSet, g *ResourceGroup, rs []Resource) planGroup {
	options := make([]option, 0, len(g.Flavors))
	for _, f := range g.Flavors {
		o := option{flavor: f.Flavor, unfit: ps.Unfit[f.Flavor]}
		if spec, ok := e.flavors[f.Flavor]; ok {
			o.elastic = spec.Elastic
		}
		o.asks = make([]ask, 0, len(rs))
		for _, r := range rs {
			o.asks = append(o.asks, ask{
				cell: q.node.cell(FlavorResource{f.Flavor, r}),
				each: requestOn(ps, f.Flavor, r),
				once: ps.Once[r],
			})
		}
		options = append(options, o)
	}
	return planGroup{options: options}
}

// requestOn is what one pod asks for on a flavor.
func requestOn(ps *PodSet, f FlavorName, r Resource) Amount {
	if r == Pods {
		return 1
	}
	if a, ok := ps.ByFlavor[f][r]; ok {
		return a
	}
	return ps.Requests[r]
}
