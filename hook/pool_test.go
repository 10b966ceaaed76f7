package hook

import "testing"

// TestAPoolIsNotTakenForOneThatIsGone: the driver gives handles out again, also
// for pools that no wrapper sees made.
func TestAPoolIsNotTakenForOneThatIsGone(t *testing.T) {
	n := newNode(t, 2, 80*gi, 0)
	n.share("a", 0, gi, 0)
	n.share("b", 1, 0, 0) // the whole card
	p := n.start(n.container("a", []int{0, 1}, "a", "b"))
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("pool 1", "0") // on the card that has no limit
	p.want("pool-destroy 0", "0")
	p.want("pool-default 0", "0") // the same handle
	p.want("alloc pool 1025Mi 1", "2")
	p.want("alloc pool 100Mi 1", "0 #0")
	if u := n.usage("a"); u.Memory != 128*mi {
		t.Errorf("charged %d MiB for a pool that holds 128", u.Memory/mi)
	}
	p.want("free 0", "0")
	p.want("sync", "0")
	p.want("info", "0 free 1024Mi+0 total 1024Mi")
	p.end()
}
