package hook

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-gpu/sluice/hook/account"
)

const (
	mi = 1 << 20
	gi = 1 << 30
)

// waysIn are the ways by which programs come to the driver's functions.
var waysIn = [][]string{
	{"link"},
	{"open", "libcuda.so.1"},
	{"open", "libcuda.so." + driverVersion},
	{"deep", "libcuda.so.1"},
	{"space", "libcuda.so.1"},
	{"proc", "11020", "0"},
	{"proc", "12000", "1"},
	{"proc", "13000", "0"},
	{"proc", "13000", "2"},
}

// family is a way to take memory: how it is asked for, and what is charged for
// 100 MiB.
type family struct {
	name    string
	charged uint64
	free    string // command that gives it back
	arg     string
}

var families = []family{
	{name: "linear", charged: 100 * mi},
	{name: "managed", charged: 100 * mi},
	{name: "pitch", charged: 100 * mi / 1000 * 1024}, // rows of 1000 bytes take 1024
	{name: "vmm", charged: 100 * mi},
	{name: "array", charged: 100 * mi},
	{name: "array3d", charged: 100 * mi},
	{name: "mipmap", charged: 100 * mi},
	{name: "async", charged: 128 * mi}, // the driver's pool grows in steps of 32 MiB
	{name: "async", charged: 128 * mi, free: "free-async"},
	{name: "pool", charged: 128 * mi, arg: " 0"},
	{name: "pool", charged: 128 * mi, arg: " 0", free: "free-async"},
}

// TestEveryFamilyIsChargedOnceAndReturnedOnce also shows that what is above
// the cap is refused with CUDA_ERROR_OUT_OF_MEMORY and charges nothing.
func TestEveryFamilyIsChargedOnceAndReturnedOnce(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	for _, way := range waysIn {
		t.Run(strings.Join(way, " "), func(t *testing.T) {
			n := *n
			n.t = t
			name := strings.Join(way, "-")
			n.share(name, 0, gi, 0)
			p := n.start(n.container(name, []int{0}, name), way...)
			p.want("init", "0")
			p.want("retain 0", "0")
			p.want("pool 0", "0")
			for i, f := range families {
				p.want("alloc "+f.name+" 1025Mi"+f.arg, "2")
				if u := n.usage(name); u.Memory != 0 {
					t.Errorf("%s: a refused allocation left a charge of %d", f.name, u.Memory)
				}
				p.want("alloc "+f.name+" 100Mi"+f.arg, fmt.Sprintf("0 #%d", i))
				if u := n.usage(name); u.Memory-f.charged >= account.Unit {
					t.Errorf("%s: charged %d, want %d", f.name, u.Memory, f.charged)
				}
				free := f.free
				if free == "" {
					free = "free"
				}
				p.want(fmt.Sprintf("%s %d", free, i), "0")
				p.want("sync", "0")
				p.want("info", "0 free 1024Mi+0 total 1024Mi")
				if u := n.usage(name); u.Memory != 0 {
					t.Errorf("%s: %d bytes did not come back", f.name, u.Memory)
				}
			}
			p.end()
		})
	}
}

// TestTheFirstByteAboveTheLimitIsRefused in one run without overhead and in
// one where each context takes 300 MiB.
func TestTheFirstByteAboveTheLimitIsRefused(t *testing.T) {
	for _, overhead := range []uint64{0, 300 * mi} {
		n := newNode(t, 1, 80*gi, overhead)
		n.share("a", 0, 20*gi, overhead)
		p := n.start(n.container("a", []int{0}, "a"), "proc", "13000", "0")
		p.want("init", "0")
		p.want("retain 0", "0")
		left := 20*gi - overhead
		p.want("info", fmt.Sprintf("0 free %dMi+0 total 20480Mi", left/mi))
		p.want(fmt.Sprintf("alloc linear %d", left-512), "0 #0")
		p.want("alloc linear 513", "2")
		p.want("alloc linear 512", "0 #1")
		p.want("alloc linear 1", "2")
		p.want("info", "0 free 0Mi+0 total 20480Mi")
		p.want("free 1", "0")
		p.want("alloc linear 1", "0 #2")
		if u := n.usage("a"); u.Memory != 20*gi || u.Peak != 20*gi || u.Refused != 2 {
			t.Errorf("overhead %d: %+v", overhead, u)
		}
		p.end()
	}
}

// TestAPoolGivesBackWhatItKeepsBeforeAnythingIsRefused: what was freed to a
// pool is no reason for an out-of-memory error.
func TestAPoolGivesBackWhatItKeepsBeforeAnythingIsRefused(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	p := n.start(n.container("a", []int{0}, "a"))
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("alloc async 900Mi", "0 #0")
	p.want("alloc linear 200Mi", "2")
	p.want("alloc async 200Mi", "2")
	p.want("free-async 0", "0")
	p.want("alloc linear 900Mi", "0 #1") // trimmed, no synchronisation by the program
	p.want("free 1", "0")
	p.want("info", "0 free 1024Mi+0 total 1024Mi")

	// A pool that is destroyed while something of it lives.
	p.want("pool 0", "0")
	p.want("alloc pool 300Mi 0", "0 #2")
	p.want("pool-destroy 0", "0")
	if u := n.usage("a"); u.Memory < 300*mi {
		t.Errorf("charged %d MiB of a living allocation of 300", u.Memory/mi)
	}
	p.want("free 2", "0")
	p.want("info", "0 free 1024Mi+0 total 1024Mi")
	p.end()
}

// TestThreadsAndProcessesNearTheCapLoseNoByte: by every family at once, as fast
// as they can.
func TestThreadsAndProcessesNearTheCapLoseNoByte(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, 192*mi, 0)
	box := n.container("a", []int{0}, "a")
	var all []*program
	for range 4 {
		p := n.start(box)
		p.want("init", "0")
		p.want("retain 0", "0")
		all = append(all, p)
	}
	for _, p := range all {
		if _, err := p.in.Write([]byte("hammer 8 200\npool-default-trim\n")); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range all {
		for _, want := range []string{"0 served some refused some", "0"} {
			if !p.out.Scan() || p.out.Text() != want {
				t.Errorf("got %q, want %q", p.out.Text(), want)
			}
		}
	}
	// A pool may have grown past the cap by one of its steps for a moment.
	const step = 32 * mi
	if u := n.usage("a"); u.Memory != 0 || u.Peak > 192*mi+4*step {
		t.Errorf("%d bytes are left, at most %d MiB were charged", u.Memory, u.Peak/mi)
	}
	for _, p := range all {
		p.want("alloc linear 192Mi", "0 #0")
		p.want("free 0", "0")
		p.end()
	}
}

// TestMemoryOfGraphsIsChargedWhenTheyRun: built by hand or captured; refused
// when it does not fit, kept for the next launch, given back by a trim.
func TestMemoryOfGraphsIsChargedWhenTheyRun(t *testing.T) {
	for _, kind := range []string{"graph", "captured"} {
		n := newNode(t, 1, 80*gi, 0)
		n.share("a", 0, gi, 0)
		p := n.start(n.container("a", []int{0}, "a"), "proc", "13000", "0")
		memory := func(want uint64) {
			t.Helper()
			if u := n.usage("a"); u.Memory != want*mi {
				t.Errorf("%s: charged %d MiB, want %d", kind, u.Memory/mi, want)
			}
		}
		p.want("init", "0")
		p.want("retain 0", "0")
		p.want("alloc "+kind+" 2Gi", "0 #0") // a plan takes nothing
		p.want("alloc "+kind+" 100Mi", "0 #1")
		memory(0)
		p.want("launch 0", "2")
		memory(0)
		for range 3 {
			p.want("launch 1", "0")
			memory(100) // the driver keeps it
		}
		p.want("alloc linear 924Mi", "0 #2")
		p.want("launch 1", "0")
		p.want("free 2", "0")
		p.want("alloc linear 1Gi", "0 #3") // what the graph leaves idle is taken back first
		memory(1024)
		p.want("launch 1", "2")
		p.want("free 3", "0")
		p.want("launch 1", "0")
		p.want("graph-trim 0", "0")
		memory(0)
		p.want("free 1", "0")
		p.want("free 0", "0")
		p.end()
	}
}

// TestArraysWithoutMemoryAreNotCharged: what is mapped into them is, where it
// is made.
func TestArraysWithoutMemoryAreNotCharged(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	p := n.start(n.container("a", []int{0}, "a"))
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("alloc sparse 4Gi", "0 #0")
	p.want("info", "0 free 1024Mi+0 total 1024Mi")
	p.want("free 0", "0")
	p.end()
}
