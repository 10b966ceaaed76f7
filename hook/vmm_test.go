package hook

import (
	"testing"
)

// TestVirtualMemoryIsChargedUntilHandlesAndMappingsAreGone, in whichever order
// they go.
func TestVirtualMemoryIsChargedUntilHandlesAndMappingsAreGone(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	p := n.start(n.container("a", []int{0}, "a"))
	for _, step := range []struct {
		command, answer string
		charged         uint64
	}{
		{"init", "0", 0},
		{"alloc vmm 512Mi", "0 #0", 512}, // without any context
		{"retain 0", "0", 512},
		{"map 0", "0", 512},
		{"free 0", "0", 512}, // the mapping keeps it
		{"alloc vmm 514Mi", "2", 512},
		{"keep 0", "0", 512}, // a handle again, from the address
		{"unmap 0", "0", 512},
		{"free 0", "0", 0},
		{"alloc vmm 1024Mi", "0 #1", 1024},
		{"free 1", "0", 0},
		{"free 1", "1", 0}, // not twice
	} {
		if got := p.tell(step.command); got != step.answer {
			t.Errorf("%s: got %q, want %q", step.command, got, step.answer)
		}
		if u := n.usage("a"); u.Memory != step.charged*mi {
			t.Errorf("%s: charged %d MiB, want %d", step.command, u.Memory/mi, step.charged)
		}
	}
	p.end()
}

// TestExportedMemoryIsChargedOnceAndToTheLastHandle: taken in again by the
// process that exported it, and by another one of the share.
func TestExportedMemoryIsChargedOnceAndToTheLastHandle(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	box := n.container("a", []int{0}, "a")
	p := n.start(box)
	memory := func(want uint64) {
		t.Helper()
		if u := n.usage("a"); u.Memory != want*mi {
			t.Errorf("charged %d MiB, want %d", u.Memory/mi, want)
		}
	}
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("alloc vmm 600Mi", "0 #0")
	p.want("export 0", "0")
	p.want("import 0", "0 #1")
	memory(600) // not twice
	p.want("free 0", "0")
	memory(600) // it lives on
	p.want("alloc vmm 600Mi", "2")
	p.want("map 1", "0")
	p.want("free 1", "0")
	memory(600)
	p.want("unmap 1", "0")
	memory(0)
	p.want("alloc vmm 600Mi", "0 #2")
	p.want("free 2", "0")
	memory(0)
	p.end()
}

// TestVirtualMemoryIsChargedToTheCardThatItNames, not to the current one.
func TestVirtualMemoryIsChargedToTheCardThatItNames(t *testing.T) {
	n := newNode(t, 2, 80*gi, 0)
	n.share("a", 0, gi, 0)
	n.share("b", 1, gi, 0)
	p := n.start(n.container("a", []int{0, 1}, "a", "b"))
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("alloc vmm 600Mi 1", "0 #0")
	p.want("alloc vmm 600Mi 1", "2")
	p.want("alloc vmm 600Mi 0", "0 #1")
	if a, b := n.usage("a"), n.usage("b"); a.Memory != 600*mi || b.Memory != 600*mi {
		t.Errorf("charged %d and %d MiB, want 600 each", a.Memory/mi, b.Memory/mi)
	}
	p.end()
}
