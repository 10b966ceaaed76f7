package engine

import "container/heap"

// Orders. All are total, since no two workloads have the same ID.

// goesBefore is the order of a queue: higher priority, then earlier, then ID.
func goesBefore(a, b *work) bool {
	if a.priority != b.priority {
		return a.priority > b.priority
	}
	return cameBefore(a, b)
}

// cameBefore is goesBefore among equals in priority.
func cameBefore(a, b *work) bool {
	if a.queuedAt != b.queuedAt {
		return a.queuedAt < b.queuedAt
	}
	return a.id < b.id
}

// leavesBefore is the order in which the holders of a queue are evicted: lower
// priority, then the latest to get its quota, then ID.
func leavesBefore(a, b *work) bool {
	if a.priority != b.priority {
		return a.priority < b.priority
	}
	if a.hold.at != b.hold.at {
		return a.hold.at > b.hold.at
	}
	return a.id < b.id
}

// classHeap has the class whose head goes first on top.
type classHeap []*class

func (h classHeap) Len() int           { return len(h) }
func (h classHeap) Less(i, j int) bool { return goesBefore(h[i].first(), h[j].first()) }
func (h classHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}
func (h *classHeap) Push(x any) {
	c := x.(*class)
	c.place = len(*h)
	*h = append(*h, c)
}
func (h *classHeap) Pop() any {
	old := *h
	c := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	c.place = -1
	return c
}

// timerHeap has the earliest end of a back-off on top.
type timerHeap []*work

func (h timerHeap) Len() int { return len(h) }
func (h timerHeap) Less(i, j int) bool {
	if h[i].notBefore != h[j].notBefore {
		return h[i].notBefore < h[j].notBefore
	}
	return h[i].id < h[j].id
}
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timer, h[j].timer = i, j
}
func (h *timerHeap) Push(x any) {
	w := x.(*work)
	w.timer = len(*h)
	*h = append(*h, w)
}
func (h *timerHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	w.timer = -1
	return w
}

func (e *Engine) startTimer(w *work) {
	if w.timer >= 0 {
		heap.Fix(&e.timers, w.timer)
		return
	}
	heap.Push(&e.timers, w)
}

func (e *Engine) stopTimer(w *work) {
	if w.timer >= 0 {
		heap.Remove(&e.timers, w.timer)
	}
}
