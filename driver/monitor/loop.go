package monitor

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/hook/account"
)

// Cards tells what happens on the node's cards.
type Cards interface {
	Use() ([]gpu.Use, error)
}

// Config is what a Monitor is made of. All fields without a remark are
// required.
type Config struct {
	NodeName   string
	KubeClient kubernetes.Interface
	Cards      Cards
	// Shares are all prepared shares of the node that count against a card.
	Shares func() ([]Share, error)
	// Proc is where procfs is mounted, of the PID namespace that NVML speaks
	// of. Default /proc.
	Proc string
	// MemoryFile keeps what contexts took over restarts.
	MemoryFile string
	// LockFile is held while grants are written: a grant has one writer, and
	// during a rolling update there are two monitors.
	LockFile string
	// Kill tells for how long a share may be above its limit before its processes
	// are ended, one after another; 0: for ever. Nil: for ever.
	Kill func() time.Duration
	// Interval is the time between two looks. Default 250 ms.
	Interval time.Duration
}

const (
	// heartbeat is the most time between two writes of a grant.
	heartbeat = time.Second
	// settled is how many looks in a row must find contexts above their
	// grant when programs allocate during each of them; the least counts.
	settled = 4
	// sure is for how long a share must be above its limit to be reported.
	sure = time.Second
	// strange is for how long a process must use no share of its card before
	// the card counts as somebody else's: the pods of a claim are asked for.
	strange = 5 * time.Second
)

// Monitor is the loop. Start answers before it runs, too.
type Monitor struct {
	cfg   Config
	users *users
	owner owners

	mu     sync.Mutex
	memory memory
	last   look
	times  map[string]account.CoreTime // by share

	granting sync.Mutex // grants have two loops, this one and that of cores
	lock     *os.File
	grants   map[string]*granted

	// The rest belongs to the loop.
	previous map[string]*shareSeen // the last look, by share
	unsteady map[string][]uint64   // by share: what was found in looks that were not steady
	above    map[string]*excess
	foreign  map[string]time.Time // by card: since when
	slowAt   time.Time
	slow     bool
	quiet    string
}

// granted is what a share's grant says.
type granted struct {
	account.Grant
	written time.Time
}

type excess struct {
	since    time.Time
	reported bool
	killed   time.Time // when the last process was
}

// look is what one look found; it is never changed afterwards.
type look struct {
	cards  []cardSeen
	shares []shareSeen
	above  uint64 // reports so far
	killed uint64 // processes
}

type cardSeen struct {
	gpu.Use
	allocated, cores uint64
	foreign          []Process
	occupied         bool // by foreign processes, for long enough to be sure
}

type shareSeen struct {
	Share
	pods       []Pod
	containers []string
	pids       []int
	usage      account.Usage
	read       bool // the account could be read
	nvml       uint64
	overhead   uint64
	above      uint64 // bytes above the limit, of its group
}

// New returns a monitor. A memory that cannot be read is begun anew.
func New(cfg Config) *Monitor {
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	if cfg.Interval <= 0 {
		cfg.Interval = 250 * time.Millisecond
	}
	m := &Monitor{
		cfg: cfg, users: newUsers(cfg.KubeClient), owner: owners{proc: cfg.Proc},
		grants: map[string]*granted{}, unsteady: map[string][]uint64{}, above: map[string]*excess{}, foreign: map[string]time.Time{},
	}
	var err error
	if m.memory, err = loadMemory(cfg.MemoryFile); err != nil {
		klog.Background().Info("What contexts took is not remembered", "file", cfg.MemoryFile, "err", err)
	}
	return m
}

// Start is what a share of the card is to be charged for a context until its
// own contexts were seen. Bytes.
func (m *Monitor) Start(card string) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.memory.start(card)
}

// Foreign tells whether processes run on the card that use no share of it.
func (m *Monitor) Foreign(card string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.last.cards, func(c cardSeen) bool { return c.UUID == card })
	return i >= 0 && m.last.cards[i].occupied
}

// Run looks at the cards until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { m.users.run(ctx) })
	wg.Go(func() { newCores(m).run(ctx) })
	defer m.unlock()
	defer wg.Wait()
	tick := time.NewTicker(m.cfg.Interval)
	defer tick.Stop()
	for {
		if err := m.look(ctx); err != nil {
			if err.Error() != m.quiet && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "The cards' use is not known; trying again", "every", m.cfg.Interval)
			}
			m.quiet = err.Error()
		} else {
			m.quiet = ""
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look is one look at everything.
func (m *Monitor) look(ctx context.Context) error {
	now := time.Now()
	shares, err := m.cfg.Shares()
	if err != nil {
		return err
	}
	m.slow = now.Sub(m.slowAt) >= heartbeat
	if m.slow {
		m.slowAt = now
	}
	// Accounts are read before and after NVML: only what stood still between
	// the two can be compared.
	before := map[string]account.Usage{}
	for _, s := range shares {
		if m.active(s) {
			if u, err := account.Read(s.Dir); err == nil {
				before[s.Name] = u
			}
		}
	}
	use, err := m.cfg.Cards.Use()
	if err != nil {
		return err
	}
	var pids []int
	for _, c := range use {
		for _, p := range c.Processes {
			pids = append(pids, p.PID)
		}
	}
	owner := m.owner.of(pids)
	users := m.users.of(shares)
	m.learnModels(ctx, use)

	var next look
	writing := m.writer()
	found := map[string]*shareSeen{}
	for _, s := range shares {
		seen := &shareSeen{Share: s, pods: users[s.ClaimUID], usage: before[s.Name]}
		_, seen.read = before[s.Name]
		if last := m.previous[s.Name]; last != nil {
			// A share keeps the names of its containers while they rest.
			seen.containers = slices.Clone(last.containers)
			if !seen.read {
				seen.usage, seen.read = last.usage, last.read
			}
		}
		found[s.Name] = seen
	}
	for _, c := range use {
		var here []Share
		card := cardSeen{Use: c}
		for _, s := range shares {
			if s.Card == c.UUID {
				here = append(here, s)
				card.allocated += s.Limit
				card.cores += uint64(s.Cores)
			}
		}
		var processes []Process
		for _, p := range c.Processes {
			if o, ok := owner[p.PID]; ok && !o.Server {
				processes = append(processes, Process{PID: p.PID, Memory: p.Memory, Owner: o})
			}
		}
		groups, foreign := assign(here, users, processes)
		card.foreign = foreign
		if len(foreign) == 0 {
			delete(m.foreign, c.UUID)
		} else if m.foreign[c.UUID].IsZero() {
			m.foreign[c.UUID] = now
		}
		card.occupied = len(foreign) > 0 && now.Sub(m.foreign[c.UUID]) >= strange
		m.stranger(here, users, processes)
		for _, g := range groups {
			m.judge(ctx, g, before, found, writing, now)
		}
		m.rest(ctx, here, groups, found, now)
		next.cards = append(next.cards, card)
	}
	for _, s := range shares {
		seen := found[s.Name]
		if writing && s.Dir != "" {
			m.grant(ctx, seen, now)
		}
		if !s.Admin {
			next.shares = append(next.shares, *seen)
		}
	}
	m.forget(found)
	m.previous = found
	m.mu.Lock()
	next.above, next.killed = m.last.above, m.last.killed
	m.last = next
	m.mu.Unlock()
	return nil
}

// active tells whether the share's account is worth reading now: it has
// processes, or it is time to look at all.
func (m *Monitor) active(s Share) bool {
	if s.Dir == "" {
		return false
	}
	if m.slow {
		return true
	}
	seen := m.previous[s.Name]
	return seen == nil || !seen.read || len(seen.usage.Processes) > 0 || seen.nvml > 0
}

// stranger asks anew for the pods of claims when a process's pod is in none.
func (m *Monitor) stranger(here []Share, users map[types.UID][]Pod, processes []Process) {
	for _, p := range processes {
		known := p.Pod == "" || slices.ContainsFunc(here, func(s Share) bool {
			return slices.ContainsFunc(users[s.ClaimUID], func(u Pod) bool { return u.UID == p.Pod })
		})
		if known {
			continue
		}
		var claims []types.UID
		for _, s := range here {
			claims = append(claims, s.ClaimUID)
		}
		m.users.stranger(claims)
		return
	}
}

// judge compares what a group holds with what it was charged and what it may
// hold.
func (m *Monitor) judge(ctx context.Context, g group, before map[string]account.Usage, found map[string]*shareSeen, writing bool, now time.Time) {
	memory := g.memory()
	parts := split(memory, g.shares)
	steady := true
	var usages []account.Usage
	var charged uint64
	for i, s := range g.shares {
		seen := found[s.Name]
		seen.nvml = parts[i]
		seen.pids = pids(g.processes)
		for _, p := range g.processes {
			if p.Container != "" && !slices.Contains(seen.containers, p.Container) {
				seen.containers = append(seen.containers, p.Container)
			}
		}
		slices.Sort(seen.containers)
		if s.Dir == "" {
			continue
		}
		after, err := account.Read(s.Dir)
		first, ok := before[s.Name]
		steady = steady && err == nil && ok && reflect.DeepEqual(after, first)
		if err == nil {
			seen.usage, seen.read = after, true
			usages = append(usages, after)
			charged += after.Memory
		}
	}
	m.excess(ctx, g, found, memory, charged, now)
	first := g.shares[0]
	each, ok := contextOverhead(memory, usages)
	if !ok || !writing || len(usages) != len(g.shares) {
		delete(m.unsteady, first.Name)
		return
	}
	if !steady {
		window := append(m.unsteady[first.Name], each)
		m.unsteady[first.Name] = window
		if len(window) < settled {
			return
		}
		each = slices.Min(window)
	}
	delete(m.unsteady, first.Name)
	if steady {
		m.learn(ctx, first, each)
	}
	m.granting.Lock()
	defer m.granting.Unlock()
	for _, s := range g.shares {
		if g := m.grants[s.Name]; g != nil && each > g.ContextOverhead {
			klog.FromContext(ctx).V(2).Info("Contexts take more of the card than they were charged", "share", s.Name, "claim", s.Claim,
				"bytes", each, "before", g.ContextOverhead)
			g.ContextOverhead, g.written = each, time.Time{}
		}
	}
}

// grant writes a share's grant when it changed or its heartbeat is due. While
// contexts live it is never lowered: what they were charged stays. Without any
// it says what the next one will probably take.
func (m *Monitor) grant(ctx context.Context, seen *shareSeen, now time.Time) {
	m.granting.Lock()
	defer m.granting.Unlock()
	g := m.grantOf(ctx, seen.Share)
	if g == nil {
		return
	}
	if m.slow && seen.read && len(seen.usage.Processes) == 0 {
		if start := m.Start(seen.Card); start != g.ContextOverhead && start != 0 {
			g.ContextOverhead, g.written = start, time.Time{}
		}
	}
	seen.overhead = g.ContextOverhead
	if now.Sub(g.written) < heartbeat {
		return
	}
	m.writeGrant(ctx, seen.Share, g, now)
}

// grantOf is what a share's grant says, nil if that cannot be read; the caller
// holds granting.
func (m *Monitor) grantOf(ctx context.Context, s Share) *granted {
	if g := m.grants[s.Name]; g != nil {
		return g
	}
	read, err := account.ReadGrant(s.Dir)
	if err != nil {
		klog.FromContext(ctx).V(4).Info("A grant cannot be read", "share", s.Name, "err", err)
		return nil
	}
	g := &granted{Grant: read}
	m.grants[s.Name] = g
	return g
}

// rest ends the excess of shares whose programs have all ended: the next ones
// are not to blame for it.
func (m *Monitor) rest(ctx context.Context, here []Share, groups []group, found map[string]*shareSeen, now time.Time) {
	for _, s := range here {
		runs := slices.ContainsFunc(groups, func(g group) bool {
			return slices.ContainsFunc(g.shares, func(o Share) bool { return o.Name == s.Name })
		})
		if !runs && m.above[s.Name] != nil {
			m.excess(ctx, group{shares: []Share{s}}, found, 0, 0, now)
		}
	}
}

// excess reports a group that holds more than its shares are, once until it is
// back below.
func (m *Monitor) excess(ctx context.Context, g group, found map[string]*shareSeen, memory, charged uint64, now time.Time) {
	first := g.shares[0]
	limit := g.limit()
	if memory <= limit {
		if e := m.above[first.Name]; e != nil && e.reported {
			m.tell(ctx, first, true, fmt.Sprintf("its programs hold %d bytes of the card, within its share of %d", memory, limit), now)
		}
		delete(m.above, first.Name)
		return
	}
	found[first.Name].above = memory - limit
	e := m.above[first.Name]
	if e == nil {
		e = &excess{since: now}
		m.above[first.Name] = e
	}
	if e.reported {
		m.end(ctx, g, found, e, now)
		return
	}
	if now.Sub(e.since) < sure {
		return
	}
	e.reported = true
	m.mu.Lock()
	m.last.above++
	m.mu.Unlock()
	text := fmt.Sprintf("holds %d bytes of card %s, %d more than its share of %d; its programs account for %d. The rest was taken past the limiter, or by contexts before it was known what they take.",
		memory, first.Device, memory-limit, limit, charged)
	klog.FromContext(ctx).Info("A share is above its limit", "claim", first.Claim, "device", first.Device,
		"limit", limit, "nvml", memory, "account", charged, "pids", pids(g.processes))
	for _, p := range podsOf(g, found) {
		m.event(ctx, first.Claim.Namespace, p, reasonAbove, text, now)
	}
	m.tell(ctx, first, false, "its programs hold"+strings.TrimPrefix(text, "holds"), now)
}

// podsOf are the pods whose processes are in the group.
func podsOf(g group, found map[string]*shareSeen) []Pod {
	var out []Pod
	for _, s := range g.shares {
		for _, pod := range found[s.Name].pods {
			if !slices.Contains(out, pod) && slices.ContainsFunc(g.processes, func(p Process) bool { return p.Pod == pod.UID }) {
				out = append(out, pod)
			}
		}
	}
	return out
}

func pids(processes []Process) []int {
	var out []int
	for _, p := range processes {
		out = append(out, p.PID)
	}
	return out
}

// forget drops what is kept of shares that are gone.
func (m *Monitor) forget(found map[string]*shareSeen) {
	m.granting.Lock()
	defer m.granting.Unlock()
	for name := range m.grants {
		if found[name] == nil {
			delete(m.grants, name)
		}
	}
	for name := range m.above {
		if found[name] == nil {
			delete(m.above, name)
		}
	}
	for name := range m.unsteady {
		if found[name] == nil {
			delete(m.unsteady, name)
		}
	}
}

func (m *Monitor) learnModels(ctx context.Context, use []gpu.Use) {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := false
	for _, c := range use {
		changed = m.memory.card(c.UUID, c.Model) || changed
	}
	m.save(ctx, changed)
}

func (m *Monitor) learn(ctx context.Context, s Share, overhead uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.save(ctx, m.memory.learn(s.Card, s.Name, overhead))
}

// save keeps the memory; the caller holds mu.
func (m *Monitor) save(ctx context.Context, changed bool) {
	if !changed || m.cfg.MemoryFile == "" {
		return
	}
	if err := saveMemory(m.cfg.MemoryFile, m.memory); err != nil {
		klog.FromContext(ctx).V(2).Info("What contexts took is not kept", "file", m.cfg.MemoryFile, "err", err)
	}
}

// writer tells whether this monitor is the one that writes grants.
func (m *Monitor) writer() bool {
	m.granting.Lock()
	defer m.granting.Unlock()
	return m.writes()
}

// writes is writer for who holds granting.
func (m *Monitor) writes() bool {
	if m.lock != nil {
		return true
	}
	f, err := os.OpenFile(m.cfg.LockFile, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return false
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return false
	}
	m.lock = f
	return true
}

func (m *Monitor) unlock() {
	m.granting.Lock()
	defer m.granting.Unlock()
	if m.lock != nil {
		_ = m.lock.Close()
		m.lock = nil
	}
}
