package hook

import (
	"testing"

	"github.com/sluice-gpu/sluice/hook/account"
)

// TestTheAccountTellsWhichGrantAProcessHasFollowed, so that the node can tell
// what it found already from what is new.
func TestTheAccountTellsWhichGrantAProcessHasFollowed(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	dir := n.share("a", 0, 2*gi, 100*mi)
	p := n.start(n.container("a", []int{0}, "a"))
	p.want("init", "0")
	p.want("retain 0", "0")
	charged := func(when string, want uint64) {
		t.Helper()
		u := n.usage("a")
		if len(u.Processes) != 1 || u.Processes[0].ContextOverhead != want || u.Processes[0].Contexts != 1 {
			t.Errorf("%s: want one process with one context of %d bytes, got %+v", when, want, u.Processes)
		}
	}
	charged("at the start", 100*mi)
	if err := account.UpdateGrant(dir, account.Grant{ContextOverhead: 300 * mi}); err != nil {
		t.Fatal(err)
	}
	charged("before it has followed", 100*mi)
	p.want("use 0", "0")
	p.want("info", "0 free 1748Mi+0 total 2048Mi")
	charged("after it has followed", 300*mi)
	p.end()
}
