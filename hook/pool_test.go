package hook

import "testing"

// TestAProgramsOwnPoolGivesBackWhatItKeeps also where it is the only one: to a
// report after its work was waited for, and before anything is refused.
func TestAProgramsOwnPoolGivesBackWhatItKeeps(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	p := n.start(n.container("a", []int{0}, "a"))
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("pool 0", "0")
	p.want("alloc pool 900Mi 0", "0 #0")
	p.want("free-async 0", "0")
	p.want("alloc linear 1024Mi", "0 #1")
	p.want("free 1", "0")
	p.want("alloc pool 900Mi 0", "0 #2")
	p.want("free-async 2", "0")
	p.want("sync", "0")
	p.want("info", "0 free 1024Mi+0 total 1024Mi")
	p.end()
}

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
