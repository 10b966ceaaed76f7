package engine

// No eviction in circles. Priority within a queue, what is due within quota, and
// shares between queues are three orders, and together they need not be one: a
// may evict b by priority, b may evict c since it is due to it, and c may evict a
// to make shares even. So a tree remembers who was evicted for whom since there
// was last anything new in it, and nobody may evict a workload for which he was
// evicted, directly or through others.
//
// Anything new (a workload that comes, changes or ends, a quota that changes)
// makes the tree forget. Admissions and releases are not new: they only follow.

// evictions are the victims of each workload since there was last anything new.
type evictions map[*work][]*work

// remember notes an eviction, or a promise that was taken over.
func (t *tree) remember(preemptor, victim *work) {
	if t.evictions == nil {
		t.evictions = evictions{}
	}
	t.evictions[preemptor] = append(t.evictions[preemptor], victim)
}

// owes says whether a workload was, directly or through others, evicted for
// another.
func (e evictions) owes(victim, preemptor *work) bool {
	if len(e[preemptor]) == 0 {
		return false
	}
	seen := map[*work]bool{}
	next := []*work{preemptor}
	for len(next) > 0 {
		p := next[len(next)-1]
		next = next[:len(next)-1]
		for _, v := range e[p] {
			if v == victim {
				return true
			}
			if !seen[v] {
				seen[v] = true
				next = append(next, v)
			}
		}
	}
	return false
}

// circular says whether evicting a workload for another would close a circle.
func (t *tree) circular(preemptor, victim *work) bool {
	return len(t.evictions) > 0 && t.evictions.owes(preemptor, victim)
}

// news makes a tree forget who was evicted for whom, and has those tried again
// who may have been kept from evicting by that.
func (e *Engine) news(q *queue) {
	if q == nil {
		return
	}
	t := q.tree()
	if t == nil || len(t.evictions) == 0 {
		return
	}
	t.evictions = nil
	held := t.heldBack
	t.heldBack = nil
	for _, w := range held {
		if !w.void() {
			e.unpark(w.class)
		}
	}
}
