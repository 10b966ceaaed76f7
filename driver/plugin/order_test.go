package plugin

import (
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/sluice-gpu/sluice/driver/state"
)

// clock is a time that tests move.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time        { return time.Unix(0, c.at.Load()) }
func (c *clock) move(by time.Duration) { c.at.Add(int64(by)) }

// use is a share of a card.
type use struct {
	card     int
	memoryMi int64
}

// hold makes the checkpoint one of a claim with such shares.
func (n *node) hold(shares ...use) {
	n.t.Helper()
	claim := state.Claim{UID: "uid-holder", Namespace: "team", Name: "holder"}
	for _, s := range shares {
		claim.Shares = append(claim.Shares, state.Share{Pool: "n1", Device: device(s.card), MemoryMi: s.memoryMi})
	}
	n.addClaim(claim)
}

// spreading is a node whose drivers spread, and one of them that was not
// started: it looks at the cards when the test says so.
func spreading(t *testing.T, cards int) (*node, *clock, func() *Driver) {
	t.Helper()
	n := newNode(t, slices.Repeat([]gpus.Config{a100}, cards)...)
	n.config = "nodeGroups:\n- {name: all, order: spread}\n"
	n.mkdir("plugin")
	c := &clock{}
	c.move(1000 * time.Hour)
	return n, c, func() *Driver {
		cfg := n.instanceConfig()
		cfg.Now = c.now
		d := New(cfg)
		d.serving = true
		t.Cleanup(func() {
			if d.controller != nil {
				d.controller.Stop()
			}
		})
		return d
	}
}

// published looks at the node and returns the cards as handed to the API server.
func published(t *testing.T, d *Driver) string {
	t.Helper()
	if err := d.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(d.published) != 1 {
		t.Fatalf("%d slices", len(d.published))
	}
	return strings.Join(names(d.published[0].Devices), " ")
}

func order(cards ...int) string {
	var out []string
	for _, i := range cards {
		out = append(out, device(i))
	}
	return strings.Join(append(out, "monitor"), " ")
}

func TestTheOrderOfCardsChangesOnceAMinuteAtMost(t *testing.T) {
	n, clock, start := spreading(t, 3)
	d := start()
	for _, step := range []struct {
		what string
		wait time.Duration
		hold []use
		want string
	}{
		{"an empty node", 0, nil, order(0, 1, 2)},
		{"the first share, at once", 0, []use{{0, 2}}, order(1, 2, 0)},
		{"the next, within the minute", 0, []use{{0, 2}, {1, 1}}, order(1, 2, 0)},
		{"another, still within", orderInterval - time.Second, []use{{0, 2}, {1, 4}}, order(1, 2, 0)},
		{"when the minute is over", time.Second, []use{{0, 2}, {1, 4}}, order(2, 0, 1)},
		{"nothing changed for long", time.Hour, []use{{0, 2}, {1, 4}}, order(2, 0, 1)},
		{"the first after long, at once", 0, []use{{0, 2}, {2, 1}}, order(1, 2, 0)},
		{"changed and changed back within the minute", time.Second, []use{{1, 9}}, order(1, 2, 0)},
		{"as it was", orderInterval, []use{{0, 2}, {2, 1}}, order(1, 2, 0)},
	} {
		clock.move(step.wait)
		if step.hold != nil {
			n.hold(step.hold...)
		}
		for range 3 { // the next looks change nothing
			if got := published(t, d); got != step.want {
				t.Fatalf("%s: published %s, want %s", step.what, got, step.want)
			}
		}
	}
}

func TestARewriteIsDueAgainWhenTheClockWasSetBack(t *testing.T) {
	n, clock, start := spreading(t, 2)
	d := start()
	n.hold(use{0, 1})
	published(t, d)
	clock.move(-24 * time.Hour)
	n.hold(use{1, 1})
	if got := published(t, d); got != order(0, 1) {
		t.Errorf("published %s", got)
	}
}

// D17: each would undo what the other writes.
func TestTwoInstancesPublishTheSameOrder(t *testing.T) {
	n, clock, start := spreading(t, 2)
	old := start()
	n.hold(use{0, 1})
	published(t, old)
	n.hold(use{1, 1}) // and not yet due
	newer := start()
	for _, d := range []*Driver{newer, old} {
		if got := published(t, d); got != order(1, 0) {
			t.Errorf("published %s within the minute", got)
		}
	}
	clock.move(orderInterval)
	for _, d := range []*Driver{newer, old} {
		if got := published(t, d); got != order(0, 1) {
			t.Errorf("published %s after it", got)
		}
	}
}

func TestAnOrderThatCannotBeReadIsMadeAnew(t *testing.T) {
	n, _, start := spreading(t, 2)
	n.hold(use{0, 1})
	n.write("plugin/"+orderName, "{")
	if got := published(t, start()); got != order(1, 0) {
		t.Errorf("published %s", got)
	}
}

func TestNothingIsRememberedOfCardsThatArePacked(t *testing.T) {
	n, _, start := spreading(t, 2)
	n.config = ""
	n.hold(use{0, 1})
	if got := published(t, start()); got != order(0, 1) {
		t.Errorf("published %s", got)
	}
	if _, err := os.Stat(n.path("plugin", orderName)); err == nil {
		t.Error("an order was written")
	}
}

func TestAPreparedShareMovesItsCardBack(t *testing.T) {
	n, _, _ := spreading(t, 2)
	d := n.start()
	before := n.pool(func(d []resourceapi.Device) bool { return len(d) == 3 })
	c := n.claim("c", share{card: 0, memory: "1Gi"})
	d.mustPrepare(c)
	after := n.pool(func(d []resourceapi.Device) bool { return d[0].Name == device(1) })
	if want := []resourceapi.Device{before[1], before[0], before[2]}; !resourceslice.DevicesDeepEqual(after, want) {
		t.Errorf("published\n%v\nwant\n%v", after, want)
	}
}
