package fit

import (
	"maps"
	"slices"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// What places name is made to follow what the scheduler has given to others.

// rearrange moves promises on a node to other cards of it. A promise names the
// cards that the allocator would have given at the time, and the scheduler may
// have given those to somebody else, for whom there was as much on another card.
// Promises that find no place are lost: they keep what they name, so that the node
// counts as full to those who come anew. Those whose place others have still stay as
// they are, if all have theirs beside them: the scheduler knows nothing of them. Of
// such the kept ones yield first.
func (s *State) rearrange(n *node) {
	l := s.lineOf(n, &trial{})
	stays := func(sl *slot) bool { return sl.awaited || s.roams(sl) }
	var stay []*slot
	for _, sl := range n.slots {
		if stays(sl) || len(sl.claims) == 0 {
			stay = append(stay, sl)
		}
	}
	l.flight, l.promised = slices.DeleteFunc(l.flight, stays), slices.DeleteFunc(l.promised, stays)
	given := s.rearranged(n, l, stay)
	for _, yields := range []func(*slot) bool{func(sl *slot) bool { return sl.kept > 0 }, func(sl *slot) bool { return sl.awaited }} {
		firm := slices.DeleteFunc(slices.Clone(stay), yields)
		if len(given) == len(l.flight)+len(l.promised) || len(firm) == len(stay) {
			continue
		}
		if all := s.rearranged(n, l, firm); len(all) == len(l.flight)+len(l.promised) {
			given = all
		}
	}
	for _, sl := range slices.Concat(l.flight, l.promised) {
		if devices, ok := given[sl]; ok {
			sl.devices = devices
			s.regain(sl)
		} else {
			s.lose(sl)
		}
	}
	n.base = s.compute(n, &trial{})
}

// rearranged is what those in a line would get beside those who stay.
func (s *State) rearranged(n *node, l line, stay []*slot) map[*slot][]device {
	d := &asking{s: s, n: n, v: s.with(n, s.bare(n, nil), stay)}
	given := make(map[*slot][]device, len(l.flight)+len(l.promised))
	place := func(all []*slot) {
		for _, sl := range all {
			if _, ok := d.deal(sl); ok {
				given[sl] = d.dealt[len(d.dealt)-1]
			}
		}
	}
	place(l.flight)
	if order := inOrder(d, d.v, l.promised); order != nil {
		l.promised = order
	}
	place(l.promised)
	return given
}

// rename has places that others were asked to leave be other cards of the node, where
// somebody who stays was given a part of those that they name.
func (s *State) rename(n *node) {
	for _, sl := range n.slots {
		if sl.gone == nil || s.roams(sl) {
			continue
		}
		var others []*slot
		for _, o := range n.slots {
			if o != sl && o.kept == 0 && !sl.gone[o.workload] {
				others = append(others, o)
			}
		}
		v := s.with(n, s.bare(n, sl.gone), others)
		if !s.with(n, v.clone(), []*slot{sl}).over() {
			continue
		}
		d := &asking{s: s, n: n, v: v}
		if _, ok := d.deal(sl); !ok {
			if s.renameAll(n) {
				return
			}
			continue
		}
		sl.devices = d.dealt[0]
		n.base = s.compute(n, &trial{})
	}
}

// renameAll has all places of a node that others were asked to leave be other cards of
// it: one may be in the way of another. False means that there is no way.
func (s *State) renameAll(n *node) bool {
	gone := map[engine.WorkloadID]bool{}
	for _, sl := range n.slots {
		maps.Copy(gone, sl.gone)
	}
	var moving, others []*slot
	for _, sl := range n.slots {
		switch {
		case gone[sl.workload] || sl.kept > 0:
		case sl.gone != nil && !s.roams(sl):
			moving = append(moving, sl)
		default:
			others = append(others, sl)
		}
	}
	d := &asking{s: s, n: n, v: s.with(n, s.bare(n, gone), others)}
	order := inOrder(d, d.v, moving)
	for i, sl := range order {
		if _, ok := d.deal(sl); ok {
			sl.devices = d.dealt[i]
		}
	}
	n.base = s.compute(n, &trial{})
	return order != nil
}

func (s *State) lose(sl *slot) {
	if !sl.lost {
		sl.lost, s.freed = true, true
		s.lost[sl] = struct{}{}
	}
}

func (s *State) regain(sl *slot) {
	sl.lost = false
	delete(s.lost, sl)
}
