package hook

import (
	"os/exec"
	"syscall"
	"testing"
)

func TestTwoContainersOfOneShareHoldOneLimit(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	p, q := n.start(n.container("one", []int{0}, "a")), n.start(n.container("two", []int{0}, "a"))
	for _, c := range []*program{p, q} {
		c.want("init", "0")
		c.want("retain 0", "0")
	}
	p.want("alloc linear 700Mi", "0 #0")
	q.want("info", "0 free 324Mi+0 total 1024Mi")
	q.want("alloc linear 400Mi", "2")
	q.want("alloc linear 324Mi", "0 #0")
	p.want("alloc linear 1", "2")
	p.want("free 0", "0")
	q.want("alloc linear 700Mi", "0 #1")
	if u := n.usage("a"); u.Memory != gi || len(u.Processes) != 2 {
		t.Errorf("%+v", u)
	}
	p.end()
	q.end()
}

// TestTwoSharesOfOneCardAddUp also for one allocation that neither could hold.
func TestTwoSharesOfOneCardAddUp(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	n.share("b", 0, 2*gi, 0)
	n.share("c", 0, gi, 0) // somebody else's
	p := n.start(n.container("both", []int{0}, "a", "b"))
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("info", "0 free 3072Mi+0 total 3072Mi")
	p.want("total 0", "0 total 3072Mi")
	p.want("alloc linear 2500Mi", "0 #0")
	p.want("alloc linear 573Mi", "2")
	p.want("alloc linear 572Mi", "0 #1")
	p.want("alloc linear 1", "2")
	if a, b := n.usage("a"), n.usage("b"); a.Memory != gi || b.Memory != 2*gi {
		t.Errorf("charged %d and %d MiB, want 1024 and 2048", a.Memory/mi, b.Memory/mi)
	}
	q := n.start(n.container("other", []int{0}, "c"))
	q.want("init", "0")
	q.want("retain 0", "0")
	q.want("alloc linear 1024Mi", "0 #0")
	p.want("free 0", "0")
	p.want("free 1", "0")
	if a, b, c := n.usage("a"), n.usage("b"), n.usage("c"); a.Memory != 0 || b.Memory != 0 || c.Memory != gi {
		t.Errorf("left %d and %d, the other's %d", a.Memory, b.Memory, c.Memory)
	}
	p.end()
	q.end()
}

// TestEachCardHasItsOwnLimit, whatever order the program sees the cards in.
func TestEachCardHasItsOwnLimit(t *testing.T) {
	n := newNode(t, 3, 80*gi, 0)
	n.share("a", 0, gi, 0)
	n.share("c", 2, 3*gi, 0)
	p := n.start(n.container("box", []int{0, 2}, "a", "c"))
	p.want("init", "0")
	p.want("total 0", "0 total 1024Mi")
	p.want("total 1", "0 total 3072Mi")
	p.want("retain 0", "0")
	p.want("retain 1", "0")
	p.want("alloc linear 2Gi", "0 #0")
	p.want("info", "0 free 1024Mi+0 total 3072Mi")
	p.want("use 0", "0")
	p.want("alloc linear 2Gi", "2")
	p.want("alloc async 512Mi", "0 #1")
	p.want("use 1", "0")
	p.want("free 1", "0") // with the other card's context current
	p.want("free 0", "0")
	p.want("use 0", "0")
	p.want("sync", "0")
	p.want("info", "0 free 1024Mi+0 total 1024Mi")
	p.end()
}

// TestAWholeCardBesideASliceIsNotLimited and costs nothing in the account.
func TestAWholeCardBesideASliceIsNotLimited(t *testing.T) {
	n := newNode(t, 2, 80*gi, 0)
	n.share("slice", 0, gi, 0)
	n.share("whole", 1, 0, 0)
	p := n.start(n.container("box", []int{0, 1}, "slice", "whole"))
	p.want("init", "0")
	p.want("retain 1", "0")
	p.want("alloc linear 70Gi", "0 #0")
	p.want("alloc vmm 1Gi 1", "0 #1")
	p.want("alloc async 1Gi", "0 #2")
	p.want("pool 1", "0")
	p.want("alloc pool 1Gi 0", "0 #3")
	p.want("free 3", "0")
	p.want("pool-trim 0", "0")
	p.want("pool-destroy 0", "0")
	p.want("total 1", "0 total 81920Mi")
	if u := n.usage("slice"); u.Memory != 0 {
		t.Errorf("what is on the whole card is charged to the slice: %d", u.Memory)
	}
	p.want("retain 0", "0")
	p.want("alloc linear 2Gi", "2")
	p.want("alloc linear 1Gi", "0 #4")
	p.end()
}

// TestWhatAKilledProcessHeldComesBack before anything is refused, in reports
// within 100 ms, and for the node at once.
func TestWhatAKilledProcessHeldComesBack(t *testing.T) {
	n := newNode(t, 1, 80*gi, 100*mi)
	n.share("a", 0, gi, 100*mi)
	box := n.container("a", []int{0}, "a")
	q := n.start(box)
	q.want("init", "0")
	q.want("retain 0", "0")
	for range 20 {
		p := n.start(box)
		p.want("init", "0")
		p.want("retain 0", "0")
		p.want("alloc linear 500Mi", "0 #0")
		p.want("alloc vmm 200Mi", "0 #1")
		q.want("alloc linear 200Mi", "2")
		p.kill()
		if u := n.usage("a"); u.Memory != 100*mi || u.Dead != 800*mi || len(u.Processes) != 1 {
			t.Fatalf("the node sees %+v", u)
		}
		q.want("alloc linear 924Mi", "0 #0")
		q.want("free 0", "0")
		q.tell("reset 0") // numbers things anew by a new program
		q.kill()
		q = n.start(box)
		q.want("init", "0")
		q.want("retain 0", "0")
	}
	p := n.start(box)
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("alloc linear 500Mi", "0 #0")
	q.want("info", "0 free 324Mi+0 total 1024Mi")
	p.kill()
	within(t, 100, func() bool { return q.tell("info") == "0 free 924Mi+0 total 1024Mi" })
	q.end()
}

// TestAContainerThatIsStartedAgainFindsItsShareEmpty: same files, new process,
// the old one killed in the middle.
func TestAContainerThatIsStartedAgainFindsItsShareEmpty(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	box := n.container("a", []int{0}, "a")
	for range 5 {
		p := n.start(box)
		p.want("init", "0")
		p.want("retain 0", "0")
		p.want("alloc linear 1Gi", "0 #0")
		p.kill()
	}
	if u := n.usage("a"); u.Memory != 0 || len(u.Processes) != 0 {
		t.Errorf("%+v", u)
	}
}

// TestAForkedChildCountsOnItsOwn and does not keep its parent's slot.
func TestAForkedChildCountsOnItsOwn(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	box := n.container("a", []int{0}, "a")

	// Forked before CUDA, as servers do with their workers.
	p := n.start(box)
	p.want("fork", "0")
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("alloc linear 600Mi", "0 #0")

	// Forked with CUDA alive: the child has nothing of it, but can start anew,
	// also when it was made past the C library and its fork handlers.
	for _, how := range []string{"fork", "clone"} {
		q := n.start(box)
		q.want("init", "0")
		q.want("retain 0", "0")
		q.want("alloc linear 300Mi", "0 #0")
		q.want(how, "0")
		q.want("init", "0")
		q.want("retain 0", "0")
		q.want("info", "0 free 124Mi+0 total 1024Mi")
		q.want("alloc linear 125Mi", "2")
		q.want("alloc linear 124Mi", "0 #0")
		if u := n.usage("a"); u.Memory != gi || len(u.Processes) != 3 {
			t.Errorf("%s: %+v", how, u)
		}
		q.end()
	}
	p.end()
	if u := n.usage("a"); u.Memory != 0 || len(u.Processes) != 0 {
		t.Errorf("after the end: %+v", u)
	}
}

// TestASlotEndsWithItsProcess though children and descriptors of it live on.
func TestASlotEndsWithItsProcess(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	box := n.container("a", []int{0}, "a")
	for _, child := range []string{"fork-idle", "clone-idle", "spawn-idle"} {
		p := n.start(box)
		p.want("init", "0")
		p.want("retain 0", "0")
		p.want("alloc linear 900Mi", "0 #0")
		pid := p.tell(child)
		t.Cleanup(func() { exec.Command("kill", "-9", pid).Run() })
		if u := n.usage("a"); len(u.Processes) != 1 || u.Memory != 900*mi {
			t.Errorf("%s: alive: %+v", child, u)
		}
		p.kill()
		if err := exec.Command("kill", "-0", pid).Run(); err != nil {
			t.Errorf("%s: the child %s died with its parent: nothing was tested", child, pid)
		}
		if u := n.usage("a"); len(u.Processes) != 0 || u.Memory != 0 || u.Dead != 900*mi {
			t.Errorf("%s: killed: %+v", child, u)
		}
	}
}

// TestADaemonThatClosesEveryDescriptorKeepsItsSlot.
func TestADaemonThatClosesEveryDescriptorKeepsItsSlot(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	p := n.start(n.container("a", []int{0}, "a"))
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("alloc linear 900Mi", "0 #0")
	p.want("close-all", "0")
	if u := n.usage("a"); len(u.Processes) != 1 || u.Memory != 900*mi {
		t.Errorf("%+v", u)
	}
	p.kill()
}

// TestManyProcessesStartAtOnce: each gets a slot of its own.
func TestManyProcessesStartAtOnce(t *testing.T) {
	n := newNode(t, 1, 80*gi, mi)
	n.share("a", 0, gi, mi)
	box := n.container("a", []int{0}, "a")
	var all []*program
	for range 64 {
		all = append(all, n.start(box))
	}
	for _, p := range all {
		if _, err := p.in.Write([]byte("init\nretain 0\n")); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range all {
		for range 2 {
			if !p.out.Scan() || p.out.Text() != "0" {
				t.Fatalf("got %q, %s", p.out.Text(), p.stderr)
			}
		}
	}
	u := n.usage("a")
	if len(u.Processes) != 64 || u.Memory != 64*mi {
		t.Errorf("%d processes hold %d MiB, want 64 and 64", len(u.Processes), u.Memory/mi)
	}
	for _, p := range all {
		p.end()
	}
}

// TestAnyUserOfTheContainerMayUseTheShare: the program is nobody, with nothing
// writable but the account.
func TestAnyUserOfTheContainerMayUseTheShare(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	cmd := n.command(n.container("a", []int{0}, "a"), n.lab.play)
	if syscall.Getuid() == 0 {
		n.openToAll()
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	p := n.run(cmd)
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("alloc linear 1Gi", "0 #0")
	p.want("alloc linear 1", "2")
	p.end()
}
