package engine

// trace records what stood in the way of a trial, for [Engine.Why]. A nil trace
// records nothing.
type trace struct {
	// set and group are what is being tried.
	set, group int
	shorts     []shortfall
	unfits     []FlavorWhy
}

// shortfall is a cell with too little of what is asked.
type shortfall struct {
	at     pick
	set    string
	flavor FlavorName
	cell   *cell
	asked  Amount
	mode   mode
}

func (t *trace) enter(set, group int) {
	if t != nil {
		t.set, t.group = set, group
		t.unfits = t.unfits[:0]
	}
}

func (t *trace) unfit(set *planSet, o *option) {
	if t != nil {
		t.unfits = append(t.unfits, FlavorWhy{PodSet: set.spec.Name, Flavor: o.flavor, Phrase: o.unfit})
	}
}

func (t *trace) short(set *planSet, o *option, c *cell, asked Amount, m mode) {
	if t != nil {
		t.shorts = append(t.shorts, shortfall{pick{set: t.set, group: t.group}, set.spec.Name, o.flavor, c, asked, m})
	}
}

// refusal is why a queue can never take a shape.
type refusal struct {
	reason   Reason
	never    bool
	set      string
	resource Resource
}
