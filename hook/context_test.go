package hook

import (
	"fmt"
	"testing"

	"github.com/sluice-gpu/sluice/hook/account"
)

// TestAContextThatNoWrapperSawIsChargedWithItsFirstAllocation, and ends like
// any other.
func TestAContextThatNoWrapperSawIsChargedWithItsFirstAllocation(t *testing.T) {
	n := newNode(t, 1, 80*gi, 100*mi)
	n.share("a", 0, gi, 100*mi)
	p := n.start(n.container("a", []int{0}, "a"))
	p.want("init", "0")
	p.want("retain-behind "+n.lab.real+" 0", "0")
	p.want("alloc linear 925Mi", "2")
	p.want("alloc linear 924Mi", "0 #0")
	p.want("alloc linear 1", "2")
	p.want("reset 0", "0")
	if u := n.usage("a"); u.Memory != 0 {
		t.Errorf("%d bytes did not come back", u.Memory)
	}
	p.end()
}

// TestWhatTheNodeFindsOutAboutContextsIsChargedAndNeverLowered while they live.
func TestWhatTheNodeFindsOutAboutContextsIsChargedAndNeverLowered(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	dir := n.share("a", 0, 2*gi, 100*mi)
	p := n.start(n.container("a", []int{0}, "a"))
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("context 0", "0")
	p.want("use 0", "0")
	p.want("info", "0 free 1848Mi+0 total 2048Mi")
	grant := func(overhead uint64) {
		t.Helper()
		if err := account.UpdateGrant(dir, account.Grant{ContextOverhead: overhead}); err != nil {
			t.Fatal(err)
		}
	}
	grant(300 * mi)
	p.want("info", "0 free 1448Mi+0 total 2048Mi")
	grant(400 * mi)
	p.want("alloc linear 1248Mi", "0 #0") // what would be free with 400 MiB each
	p.want("alloc linear 1", "2")
	grant(50 * mi)
	p.want("info", "0 free 0Mi+0 total 2048Mi")
	p.want("destroy 1", "0")
	p.want("context 0", "0") // a new one is charged what is true now
	p.want("use 0", "0")
	p.want("free 0", "0")
	p.want("info", "0 free 1598Mi+0 total 2048Mi")
	grant(1500 * mi) // more than there is: charged all the same
	p.want("info", "0 free 0Mi+0 total 2048Mi")
	p.want("reset 0", "0")
	p.end()
}

// TestTheEndOfAContextReturnsAllThatLivesInIt: by destruction, by reset, by the
// last release; once, and no sooner.
func TestTheEndOfAContextReturnsAllThatLivesInIt(t *testing.T) {
	n := newNode(t, 1, 80*gi, 100*mi)
	n.share("a", 0, 4*gi, 100*mi)
	p := n.start(n.container("a", []int{0}, "a"))
	memory := func(want uint64) {
		t.Helper()
		if u := n.usage("a"); u.Memory != want*mi {
			t.Errorf("charged %d MiB, want %d", u.Memory/mi, want)
		}
	}
	p.want("init", "0")
	p.want("context 0", "0")
	p.want("use 0", "0")
	p.want("alloc linear 500Mi", "0 #0")
	p.want("alloc managed 200Mi", "0 #1")
	p.want("retain 0", "0")
	p.want("alloc linear 1000Mi", "0 #2")
	memory(1900)
	p.want("destroy 0", "0")
	memory(1100)
	p.want("retain 0", "0")
	p.want("release 0", "0")
	memory(1100)
	p.want("release 0", "0")
	memory(0)
	p.want("retain 0", "0")
	p.want("alloc linear 10Mi", "0 #3")
	memory(110)
	p.want("reset 0", "0")
	memory(0)
	p.end()
}

// TestTheDevicesHeapIsCharged as large as it is set, once, until its context
// ends.
func TestTheDevicesHeapIsCharged(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	p := n.start(n.container("a", []int{0}, "a"), "proc", "13000", "0")
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("heap 2Gi", "2")
	p.want("heap 700Mi", "0")
	p.want("heap 800Mi", "0")
	p.want("info", "0 free 224Mi+0 total 1024Mi")
	p.want("heap 1025Mi", "2")
	p.want("info", "0 free 224Mi+0 total 1024Mi")
	p.want("heap 100Mi", "0")
	p.want("info", "0 free 924Mi+0 total 1024Mi")
	p.want("reset 0", "0")
	if u := n.usage("a"); u.Memory != 0 {
		t.Errorf("%d bytes did not come back", u.Memory)
	}
	p.end()
}

// TestTheDevicesHeapIsChargedOnceWhateverWasFreedBefore: what the limiter knew
// of memory that is gone says nothing about the heap.
func TestTheDevicesHeapIsChargedOnceWhateverWasFreedBefore(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	p := n.start(n.container("a", []int{0}, "a"))
	p.want("init", "0")
	p.want("retain 0", "0")
	for i := range 150 {
		p.want("alloc linear 1Mi", fmt.Sprintf("0 #%d", i))
	}
	for i := range 150 {
		p.want(fmt.Sprintf("free %d", i), "0")
	}
	for range 3 {
		p.want("heap 100Mi", "0")
		if u := n.usage("a"); u.Memory != 100*mi {
			t.Errorf("charged %d MiB for a heap of 100", u.Memory/mi)
		}
	}
	p.want("reset 0", "0")
	if u := n.usage("a"); u.Memory != 0 {
		t.Errorf("%d bytes did not come back", u.Memory)
	}
	p.end()
}

// TestAHeapThatTheDriverRefusesChangesNoCharge: the share would have room.
func TestAHeapThatTheDriverRefusesChangesNoCharge(t *testing.T) {
	n := newNode(t, 1, gi, 0)
	n.share("a", 0, 4*gi, 0)
	p := n.start(n.container("a", []int{0}, "a"))
	p.want("init", "0")
	p.want("retain 0", "0")
	for _, had := range []uint64{0, 100 * mi} {
		p.want("heap 2Gi", "2")
		if u := n.usage("a"); u.Memory != had {
			t.Errorf("charged %d MiB, want %d", u.Memory/mi, had/mi)
		}
		p.want("heap 100Mi", "0")
	}
	p.end()
}

func TestAContextThatDoesNotFitIsRefused(t *testing.T) {
	n := newNode(t, 1, 80*gi, 300*mi)
	n.share("a", 0, 500*mi, 300*mi)
	p := n.start(n.container("a", []int{0}, "a"))
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("context 0", "2")
	p.want("info", "0 free 200Mi+0 total 500Mi")
	p.want("retain 0", "0") // the same context once more
	p.want("info", "0 free 200Mi+0 total 500Mi")
	p.end()
}
