package reach

import "testing"

func TestEverythingThatIsReachedCountsOnce(t *testing.T) {
	type node struct {
		names map[string][]int
		next  *node
		any   any
	}
	n := &node{names: map[string][]int{"a": {1, 2}, "b": nil}}
	n.next, n.any = n, []*node{n, {names: map[string][]int{"c": nil}}}
	// Two entries with two elements, a slice of two, and one more entry.
	if got := Count(n); got != 7 {
		t.Errorf("counted %d", got)
	}
	n.names["a"] = n.names["a"][:0]
	if got := Count(n); got != 5 {
		t.Errorf("with two less: %d", got)
	}
}
