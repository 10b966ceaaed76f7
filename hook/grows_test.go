package hook

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sluice-gpu/sluice/hook/account"
)

// TestFreeMemoryNeverGrowsByItself: frameworks that profile a start-up abort
// when there is more free memory than a moment ago. Whatever the node finds out
// about contexts meanwhile, and however it changes its mind, a program that
// frees nothing is told of no more than before.
func TestFreeMemoryNeverGrowsByItself(t *testing.T) {
	n := newNode(t, 1, 80*gi, 300*mi)
	dir := n.share("a", 0, 40*gi, 100*mi)
	p := n.start(n.container("a", []int{0}, "a"))
	dice := rand.New(rand.NewPCG(1, 2))
	last, shrank := uint64(40*gi), 0
	look := func(after string) {
		t.Helper()
		var r int
		var free, rest, total uint64
		if _, err := fmt.Sscanf(p.tell("info"), "%d free %dMi+%d total %dMi", &r, &free, &rest, &total); err != nil || r != 0 {
			t.Fatalf("info after %s: %d, %v", after, r, err)
		}
		if now := free*mi + rest; now > last {
			t.Errorf("after %s %d bytes are free, %d before", after, now, last)
		} else if now < last {
			last, shrank = now, shrank+1
		}
	}
	p.want("init", "0")
	p.want("retain 0", "0")
	look("the first context")
	for range 200 {
		switch dice.IntN(6) {
		case 0:
			if len(p.tell("context 0")) > 0 {
				p.want("use 0", "0")
			}
			look("a further context")
		case 1:
			p.tell("alloc linear 10Mi")
			look("an allocation")
		default: // the grant, up and down
			if err := account.UpdateGrant(dir, account.Grant{ContextOverhead: uint64(dice.IntN(500)) * mi}); err != nil {
				t.Fatal(err)
			}
			look("a grant")
		}
	}
	if shrank < 20 {
		t.Errorf("free memory shrank %d times: nothing was tried", shrank)
	}
}
