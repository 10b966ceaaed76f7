package monitor

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/hook/account"
)

// timed are cards that tell the use of their time, too.
type timed struct {
	*bench
	use gpu.TimeUse
}

func (c timed) TimeUse(card string, since uint64) (gpu.TimeUse, uint64, error) {
	return c.use, since + 1, nil
}

// coreBench is a card with a share of 30 and one of 70 percent.
type coreBench struct {
	*cores
	t    *testing.T
	dirs [2]string
	now  time.Time
}

func newCoreBench(t *testing.T, use gpu.TimeUse) *coreBench {
	t.Helper()
	b := newBench(t, 1<<30)
	c := &coreBench{t: t, now: time.Now()}
	card, err := account.ParseUUID(cardUUID)
	if err != nil {
		t.Fatal(err)
	}
	var shares []Share
	for i, percent := range []uint32{30, 70} {
		dir := filepath.Join(t.TempDir(), "share")
		limit := account.Limit{Card: card, Memory: 1 << 30, CorePercent: percent, CorePolicy: account.CoresBurst}
		grant := account.Grant{ContextOverhead: 300 * mi, CoreRate: percent * 10_000, Fallback: percent * 10_000, Gated: true, BusyFactor: 1_000_000}
		if err := account.Create(dir, limit, grant); err != nil {
			t.Fatal(err)
		}
		c.dirs[i] = dir
		name := string(rune('a' + i))
		shares = append(shares, Share{Name: name, Claim: types.NamespacedName{Namespace: "team", Name: name}, Device: "gpu-1", Card: cardUUID, Cores: int64(percent), Dir: dir})
	}
	cfg := b.cfg
	cfg.Cards = timed{b, use}
	cfg.Shares = func() ([]Share, error) { return shares, nil }
	m := New(cfg)
	t.Cleanup(m.unlock)
	m.last.shares = []shareSeen{{Share: shares[0], pids: []int{42}}, {Share: shares[1], pids: []int{43, 44}}}
	c.cores = newCores(m)
	return c
}

// use makes a share's account grow as if its processes had had work for so long.
func (c *coreBench) use(share int, busy time.Duration) {
	c.t.Helper()
	f, err := os.OpenFile(filepath.Join(c.dirs[share], account.AccountFile), os.O_RDWR, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	for _, off := range []int64{208, 216, 232} { // core_busy_ns, core_charged_ns, core_asked
		var b [8]byte
		if _, err := f.ReadAt(b[:], off); err != nil {
			c.t.Fatal(err)
		}
		binary.LittleEndian.PutUint64(b[:], binary.LittleEndian.Uint64(b[:])+uint64(busy))
		if _, err := f.WriteAt(b[:], off); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *coreBench) looks(n int, busy ...time.Duration) {
	for range n {
		for i, d := range busy {
			if d > 0 {
				c.use(i, d)
			}
		}
		c.now = c.now.Add(coresEvery)
		c.look(c.t.Context(), c.now)
	}
}

func (c *coreBench) grant(share int) account.Grant {
	c.t.Helper()
	g, err := account.ReadGrant(c.dirs[share])
	if err != nil {
		c.t.Fatal(err)
	}
	return g
}

func TestIdleTimeIsGrantedAndTakenBack(t *testing.T) {
	c := newCoreBench(t, nil)
	c.looks(3, 80*time.Millisecond, 0)
	if g := c.grant(0); g.CoreRate != 1_000_000 || g.Fallback != 300_000 || !g.Gated || g.ContextOverhead != 300*mi || g.Heartbeat == 0 {
		t.Errorf("alone: %+v", g)
	}
	c.looks(3, 100*time.Millisecond, 100*time.Millisecond)
	if a, b := c.grant(0).CoreRate, c.grant(1).CoreRate; a != 300_000 || b != 700_000 {
		t.Errorf("both want all: %d and %d", a, b)
	}
}

func TestTheHeartbeatOfAnUnchangedGrantIsRenewed(t *testing.T) {
	c := newCoreBench(t, nil)
	c.looks(1)
	first := c.grant(0)
	c.looks(2)
	if g := c.grant(0); g != first {
		t.Errorf("written without a need: %+v, %+v", first, g)
	}
	c.looks(5)
	if g := c.grant(0); g.Heartbeat == first.Heartbeat || g.CoreRate != first.CoreRate {
		t.Errorf("not renewed: %+v, %+v", first, g)
	}
}

func TestNVMLCorrectsWhatSharesClaim(t *testing.T) {
	c := newCoreBench(t, gpu.TimeUse{42: 0.25, 43: 0.3, 44: 0.3, 99: 1})
	c.looks(60, 50*time.Millisecond, 100*time.Millisecond)
	a, b := c.grant(0).BusyFactor, c.grant(1).BusyFactor
	if a < 480_000 || a > 520_000 || b < 580_000 || b > 620_000 {
		t.Errorf("factors %d and %d, want a half and 0.6", a, b)
	}
}

func TestCoreTimeIsInTheMetrics(t *testing.T) {
	c := newCoreBench(t, nil)
	c.looks(10, 50*time.Millisecond, 0)
	c.m.last.shares = c.m.last.shares[:1]
	b := &bench{Monitor: c.m, t: t}
	labels := map[string]string{"claim": "a", "container": "", "device": "gpu-1", "namespace": "team", "pod": "", "share": "a"}
	b.measures("sluice_share_core_seconds_total", 0.5, labels)
	b.measures("sluice_share_core_throttled_seconds_total", 0, labels)
}

func TestAnAccountThatCannotBeReadIsAnIdleShare(t *testing.T) {
	c := newCoreBench(t, nil)
	if err := os.Truncate(filepath.Join(c.dirs[1], account.AccountFile), 10); err != nil {
		t.Fatal(err)
	}
	c.looks(10, 80*time.Millisecond, 0)
	if g := c.grant(0); g.CoreRate != 1_000_000 {
		t.Errorf("its neighbour: %+v", g)
	}
	if g := c.grant(1); g.CoreRate != 700_000 {
		t.Errorf("its own grant: %+v", g)
	}
}
