package fit

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

// The scheduler knows nothing of promises. It serves the pods that are past their
// gates in whatever order it likes, and gives each the first cards of the node
// that have enough: 40Gi then 20Gi may fit where 20Gi then 40Gi does not. So
// nothing may be promised beside pods on their way to a node, and no further pod
// be sent there, unless
//
//   - those on their way get their devices in every order,
//   - and whatever they get, all that is promised to others there fits still.

// line is those who ask for the cards of one node.
type line struct {
	// flight are pods past their gates, promised the places of pods that come
	// later and one by one, awaited those that others still have, where nothing
	// new may come.
	flight, promised, awaited []*slot
	// evicting are those of the awaited that others were asked to leave, later what is
	// left of the node when those have left and nobody else has.
	evicting []*slot
	later    *view
}

// lineOf lists who counts on a node in a trial.
func (s *State) lineOf(n *node, t *trial) line {
	var l line
	for i, list := range [][]*slot{n.slots, t.slots} {
		for _, sl := range list {
			switch {
			case sl.node != n.name || len(sl.claims) == 0 || i == 0 && !t.counts(sl):
			case sl.pod != "":
				l.flight = append(l.flight, sl)
			case sl.awaited:
				l.awaited = append(l.awaited, sl)
			default:
				l.promised = append(l.promised, sl)
			}
		}
	}
	return l
}

// mostKinds bounds how many unlike claims may be on their way to one node, and
// mostAsked how many there may be in a line, where only the allocator can tell what
// each gets, because every order of them is tried.
const (
	mostKinds = 5
	mostAsked = 12
)

// kind is so many pods on their way that ask alike.
type kind struct {
	like *slot
	left int
}

func kindsOf(slots []*slot, alike func(a, b *slot) bool) []kind {
	var all []kind
	for _, sl := range slots {
		i := slices.IndexFunc(all, func(k kind) bool { return alike(k.like, sl) })
		if i < 0 {
			i, all = len(all), append(all, kind{like: sl})
		}
		all[i].left++
	}
	return all
}

// safe says that all in a line get what they were promised, in whatever order the
// pods on their way are served. What the workloads in without have does not count.
func (s *State) safe(n *node, l line, without map[engine.WorkloadID]bool) bool {
	all := slices.Concat(l.flight, l.promised, l.awaited)
	if len(l.flight) == 0 || len(all) == 1 {
		return true
	}
	if len(l.awaited) == 0 && simple(all[0].claims) && !slices.ContainsFunc(all, func(sl *slot) bool { return sl.kind != all[0].kind }) {
		// Whoever comes first, what is taken is the same, and it was found to fit.
		return true
	}
	var v *view
	if len(without) == 0 {
		v = s.held(n)
	} else {
		v = s.bare(n, without)
	}
	s.foresee(n, &l, without)
	if l.later != nil && !s.safeIn(n, line{flight: l.flight, promised: slices.Concat(l.promised, l.evicting)}, l.later) {
		// Those who were asked to leave may have left before the scheduler looks.
		return false
	}
	return s.safeIn(n, l, v)
}

// safeIn is safe with so much left of the node.
func (s *State) safeIn(n *node, l line, v *view) bool {
	all := slices.Concat(l.flight, l.promised, l.awaited)
	if d := s.counting(n, v, all); d != nil {
		return len(l.awaited) == 0 && d.ample(all) || l.everyOrder(&limited{d, mostDealt}, v, kindsOf(l.flight, d.alike))
	}
	kinds := kindsOf(l.flight, func(a, b *slot) bool { return a.kind == b.kind })
	if len(kinds) > mostKinds || len(all) > mostAsked {
		return false
	}
	v = v.clone()
	return l.everyOrder(&limited{&asking{s: s, n: n, v: v}, mostAnswered}, v, kinds)
}

// simple says that claims ask for one device, so that like ones are served as
// many times in one order as in another.
func simple(claims []*resourceapi.ResourceClaim) bool {
	if len(claims) != 1 {
		return false
	}
	d := &claims[0].Spec.Devices
	return len(d.Constraints) == 0 && len(d.Requests) == 1 && d.Requests[0].Exactly != nil && d.Requests[0].Exactly.Count <= 1 &&
		d.Requests[0].Exactly.AllocationMode == resourceapi.DeviceAllocationModeExactCount
}

// dealer serves one after the other from what is left of the cards of a node, as
// the scheduler would.
type dealer interface {
	// deal gives a slot its devices and says what that takes of which cards; false
	// if there are none.
	deal(sl *slot) ([]piece, bool)
	// back takes back what was dealt last.
	back()
	// mark appends what stands for all that is left, nil if nothing does.
	mark(to []byte) []byte
}

// piece is what is taken of one card of a view.
type piece struct {
	card          int
	memory, cores int64
	whole         bool
}

// everyOrder serves those on their way in every order, the promised after them.
// Of those that ask alike it does not matter who is first, nor by which order so
// much was left. It ends with the first that is not served.
func (l *line) everyOrder(d dealer, v *view, kinds []kind) bool {
	var took []piece
	been := map[string]bool{}
	var next func() bool
	next = func() bool {
		var at []byte
		for _, k := range kinds {
			at = binary.AppendUvarint(at, uint64(k.left))
		}
		if at = d.mark(at); at != nil {
			if been[string(at)] {
				return true
			}
			been[string(at)] = true
		}
		last := true
		for i := range kinds {
			if kinds[i].left == 0 {
				continue
			}
			last = false
			got, ok := d.deal(kinds[i].like)
			if !ok {
				return false
			}
			kinds[i].left--
			took = append(took, got...)
			ok = next()
			took = took[:len(took)-len(got)]
			kinds[i].left++
			if d.back(); !ok {
				return false
			}
		}
		return !last || l.kept(d, v, took)
	}
	return next()
}

// kept says that all that is promised can be had once those on their way took so
// much.
func (l *line) kept(d dealer, v *view, took []piece) bool {
	if len(l.awaited) > 0 {
		if inOrder(d, v, slices.Concat(l.promised, l.awaited)) != nil {
			// Those who had their places are gone.
			return true
		}
		// A place that is kept is had when everybody has left it, one that others were
		// asked to leave while the rest stays.
		if v.disturbs(took, l.awaited, nil) || l.later != nil && v.disturbs(took, l.evicting, l.later) {
			return false
		}
	}
	return len(l.promised) == 0 || inOrder(d, v, l.promised) != nil
}

// foresee finds what is left for those for whom others were asked to leave.
func (s *State) foresee(n *node, l *line, without map[engine.WorkloadID]bool) {
	gone := maps.Clone(without)
	for _, sl := range l.awaited {
		if sl.gone == nil {
			continue
		}
		l.evicting = append(l.evicting, sl)
		if gone == nil {
			gone = map[engine.WorkloadID]bool{}
		}
		maps.Copy(gone, sl.gone)
	}
	if len(l.evicting) > 0 {
		l.later = s.bare(n, gone)
	}
}

// mostTries bounds how much is dealt to find an order.
const mostTries = 100

// inOrder puts slots into an order in which all can be served, nil if there is
// none. That of the cards that they name does where each asks for one card, else
// the largest come first, and else every order is tried.
func inOrder(d dealer, v *view, all []*slot) []*slot {
	byCard := slices.SortedStableFunc(slices.Values(all), func(a, b *slot) int { return cmp.Compare(v.first(a), v.first(b)) })
	if dealAll(d, byCard) {
		return byCard
	}
	bySize := slices.SortedStableFunc(slices.Values(all), func(a, b *slot) int { return cmp.Compare(v.largest(b), v.largest(a)) })
	if dealAll(d, bySize) {
		return bySize
	}
	tries, order := mostTries, make([]*slot, 0, len(all))
	if someOrder(d, all, &order, &tries) {
		return order
	}
	return nil
}

// dealAll says whether all can be served one after the other.
func dealAll(d dealer, all []*slot) bool {
	dealt := 0
	for _, sl := range all {
		if _, ok := d.deal(sl); !ok {
			break
		}
		dealt++
	}
	for range dealt {
		d.back()
	}
	return dealt == len(all)
}

// someOrder tries every order, those that ask alike in that in which they are.
func someOrder(d dealer, all []*slot, order *[]*slot, tries *int) bool {
	if len(*order) == len(all) {
		return true
	}
	for i, sl := range all {
		like := func(o *slot) bool { return o.kind == sl.kind && !slices.Contains(*order, o) }
		if slices.Contains(*order, sl) || slices.ContainsFunc(all[:i], like) {
			continue
		}
		if *tries--; *tries < 0 {
			return false
		}
		if _, ok := d.deal(sl); !ok {
			continue
		}
		*order = append(*order, sl)
		ok := someOrder(d, all, order, tries)
		if d.back(); ok {
			return true
		}
		*order = (*order)[:len(*order)-1]
	}
	return false
}

// first is the place in line of the first card that a slot names.
func (v *view) first(sl *slot) int {
	least := len(v.cards)
	for _, p := range v.pieces(sl.devices) {
		least = min(least, p.card)
	}
	return least
}

// pieces are what devices take of the cards of a view.
func (v *view) pieces(devices []device) []piece {
	var all []piece
	for _, d := range devices {
		if d.AdminAccess != nil && *d.AdminAccess {
			continue
		}
		for i := range v.cards {
			if v.cards[i].id == d.id {
				memory, cores := d.ConsumedCapacity[pricing.CapacityMemory], d.ConsumedCapacity[pricing.CapacityCores]
				all = append(all, piece{i, memory.Value(), cores.Value(), d.ShareID == nil})
			}
		}
	}
	return all
}

// largest is the most that a slot takes of one card.
func (v *view) largest(sl *slot) int64 {
	most := int64(0)
	for _, p := range v.pieces(sl.devices) {
		if p.whole {
			p.memory = v.cards[p.card].memory
		}
		most = max(most, p.memory)
	}
	return most
}

// disturbs says that what is taken lies on cards where somebody waits for what
// others have, or draws from the counters of such a card, so that there would not be
// enough for him when those are gone: of empty cards, or of what later leaves of them.
func (v *view) disturbs(took []piece, awaited []*slot, later *view) bool {
	type sum struct {
		memory, cores  int64
		whole, awaited bool
	}
	all, left := map[int]sum{}, slices.Clone(v.counters)
	rest := func(card int) (memory, cores int64) { return max(0, v.cards[card].memory), max(0, v.cards[card].cores) }
	if later != nil {
		left = tally{all: v.counters}.left(later.cards)
		rest = func(card int) (memory, cores int64) { return later.cards[card].freeMemory, later.cards[card].freeCores }
	}
	// add says whether a piece is too much.
	add := func(p piece, awaited bool) bool {
		was, known := all[p.card]
		is := sum{was.memory + p.memory, was.cores + p.cores, was.whole || p.whole, was.awaited || awaited}
		all[p.card] = is
		memory, cores := rest(p.card)
		if is.awaited && known && (is.whole || is.memory > memory || is.cores > cores) {
			return true
		}
		short := false
		for _, d := range v.cards[p.card].draws {
			if !known && (later == nil || !later.cards[p.card].touched) {
				left[d.counter] -= d.much
				short = short || left[d.counter] < 0
			}
		}
		return short
	}
	for _, sl := range awaited {
		for _, p := range v.pieces(sl.devices) {
			add(p, true)
		}
	}
	return slices.ContainsFunc(took, func(p piece) bool { return add(p, false) })
}

// asking has the allocator say what each gets.
type asking struct {
	s     *State
	n     *node
	v     *view
	dealt [][]device
}

func (a *asking) deal(sl *slot) ([]piece, bool) {
	results, err := a.s.allocate(sl.workload, a.n, a.v.state, sl.claims)
	if err != nil || results == nil {
		return nil, false
	}
	got := devicesOfAll(results)
	for _, d := range got {
		a.v.take(d)
	}
	a.dealt = append(a.dealt, got)
	return a.v.pieces(got), true
}

func (a *asking) back() {
	last := len(a.dealt) - 1
	for _, d := range a.dealt[last] {
		a.v.giveBack(d)
	}
	a.dealt = a.dealt[:last]
}
