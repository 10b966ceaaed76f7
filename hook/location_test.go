package hook

import (
	"strings"
	"testing"
)

// TestManagedPoolsAreChargedWhereverTheyPreferToBe: what they hold moves to the
// card that uses it.
func TestManagedPoolsAreChargedWhereverTheyPreferToBe(t *testing.T) {
	for _, location := range []string{"none", "device", "host", "numa"} {
		t.Run(location, func(t *testing.T) {
			n := newNode(t, 2, 80*gi, 0)
			n.share("a", 0, gi, 0)
			n.share("b", 1, gi, 0)
			p := n.start(n.container("a", []int{0, 1}, "a", "b"))
			p.want("init", "0")
			p.want("retain 1", "0")
			p.want("at managed "+location, "0")
			p.want("pool 1", "0")
			p.want("alloc pool 1025Mi 0", "2")
			p.want("alloc pool 100Mi 0", "0 #0")
			if a, b := n.usage("a"), n.usage("b"); a.Memory != 0 || b.Memory != 128*mi {
				t.Errorf("charged %d and %d MiB, want 0 and 128", a.Memory/mi, b.Memory/mi)
			}
			p.want("free 0", "0")
			p.want("sync", "0")
			p.want("info", "0 free 1024Mi+0 total 1024Mi")
			p.want("pool-destroy 0", "0")
			p.end()
		})
	}
}

// TestPinnedMemoryOfTheHostIsNotCharged, in pools and as virtual memory.
func TestPinnedMemoryOfTheHostIsNotCharged(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	p := n.start(n.container("a", []int{0}, "a"))
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("at pinned host", "0")
	p.want("pool 0", "0")
	p.want("alloc pool 2Gi 0", "0 #0")
	p.want("alloc vmm 2Gi", "0 #1")
	p.want("at pinned numa", "0")
	p.want("pool 0", "0")
	p.want("alloc pool 2Gi 1", "0 #2")
	p.want("alloc vmm 2Gi", "0 #3")
	p.want("at pinned numa-current", "0")
	p.want("alloc vmm 2Gi", "0 #4")
	if u := n.usage("a"); u.Memory != 0 {
		t.Errorf("charged %d MiB of the host's memory", u.Memory/mi)
	}
	p.want("free 0", "0")
	p.want("info", "0 free 1024Mi+0 total 1024Mi")
	p.end()
}

// TestVirtualMemoryAtAnUnknownPlaceIsTheOnlyCards: refused above the limit
// before the driver is asked. What the driver does not want leaves no charge.
func TestVirtualMemoryAtAnUnknownPlaceIsTheOnlyCards(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	p := n.start(n.container("a", []int{0}, "a"))
	p.want("init", "0")
	for _, at := range []string{"managed none", "managed host", "managed numa-current", "pinned none", "pinned later", "none host"} {
		p.want("at "+at, "0")
		p.want("alloc vmm 1026Mi", "2")
		p.want("alloc vmm 512Mi", "1")
		if u := n.usage("a"); u.Memory != 0 {
			t.Errorf("%s: %d bytes did not come back", at, u.Memory)
		}
	}
	p.end()
}

// TestMemoryThatCouldBeAnyCardsIsRefused with CUDA_ERROR_NOT_SUPPORTED, unless
// no card has a limit.
func TestMemoryThatCouldBeAnyCardsIsRefused(t *testing.T) {
	const notSupported, invalid = "801", "1"
	for _, limited := range []bool{true, false} {
		n := newNode(t, 2, 80*gi, 0)
		want, pool := invalid, "0"
		if limited {
			n.share("a", 0, gi, 0)
			want, pool = notSupported, notSupported
		} else {
			n.share("a", 0, 0, 0)
		}
		n.share("b", 1, 0, 0) // the whole card
		p := n.start(n.container("a", []int{0, 1}, "a", "b"))
		p.want("init", "0")
		p.want("at pinned later", "0")
		p.want("alloc vmm 2Mi", want)
		p.want("pool 0", invalid) // the driver does not know it either
		p.want("at managed none", "0")
		p.want("alloc vmm 2Mi", want)
		p.want("pool 0", pool)
		graph := pool
		if graph == "0" {
			graph = "0 #0"
		}
		p.want("alloc graph 2Mi 0", graph)
		p.want("retain 0", "0") // now the context says it
		p.want("alloc vmm 2Mi", invalid)
		p.want("pool 0", "0")
		if got := p.tell("alloc graph 2Mi 0"); !strings.HasPrefix(got, "0 ") {
			t.Errorf("a graph in a context: got %q", got)
		}
		p.end()
	}
}

// TestManagedMemoryOfGraphsIsChargedWhenTheyRun to the card of the context that
// they were made in.
func TestManagedMemoryOfGraphsIsChargedWhenTheyRun(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	p := n.start(n.container("a", []int{0}, "a"))
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("at managed none", "0")
	p.want("alloc graph 2Gi", "0 #0")
	p.want("alloc graph 100Mi", "0 #1")
	p.want("launch 0", "2")
	p.want("launch 1", "0")
	if u := n.usage("a"); u.Memory != 100*mi {
		t.Errorf("charged %d MiB, want 100", u.Memory/mi)
	}
	p.end()
}
