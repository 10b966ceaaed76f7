package fakegpu

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

const gib = 1 << 30

func TestEveryWayToTheDriverReachesTheCard(t *testing.T) {
	in := install(t, oneCard("A100-SXM4-80GB"))
	for _, via := range []string{"link", "dlopen", "noload", "abspath", "procaddress", "dlvsym", "deepbind", "dlmopen", "elfwalk"} {
		t.Run(via, func(t *testing.T) {
			args := []string{"--via", via, "--clear-env", "info", "alloc:20Gi=SUCCESS", "alloc:60Gi=OUT_OF_MEMORY", "launch:1us=SUCCESS"}
			if via == "abspath" {
				args = append([]string{"--via", via, "--lib", in.LibDir() + "/libcuda.so.1"}, args[2:]...)
			}
			steps := probe(t, in, args...)
			if want := uint64(81920-768) << 20; steps[0].DeviceTotal != want || steps[1].Free != want-20*gib {
				t.Errorf("device has %d bytes, %d free after 20Gi; want %d in all", steps[0].DeviceTotal, steps[1].Free, want)
			}
		})
	}
}

func TestMemoryRunsOutAcrossProcesses(t *testing.T) {
	in := install(t, oneCard("T4"))
	usable := uint64(15360-265) << 20
	first := hold(t, probeCommand(in, "alloc:10Gi"))
	// To the byte: what is left fits, 512 bytes more do not.
	left := usable - 10*gib
	probe(t, in, fmt.Sprintf("alloc:%d=SUCCESS", left), "alloc:1=OUT_OF_MEMORY", "free:all=SUCCESS",
		fmt.Sprintf("alloc:%d=OUT_OF_MEMORY", left+1))
	first.kill()
	probe(t, in, fmt.Sprintf("alloc:%d=SUCCESS", usable))
}

func TestEveryFamilyTakesItsBytesAndReturnsThem(t *testing.T) {
	in := install(t, oneCard("T4"))
	usable := uint64(15360-265) << 20
	for _, family := range []string{"alloc", "alloc32", "pitch", "managed", "async", "pool", "vmm", "array", "mipmap", "graphmem", "table"} {
		t.Run(family, func(t *testing.T) {
			// The 32-bit calls reach only 4 GiB of addresses: others fill the card.
			steps := probe(t, in, family+":1Gi*3=SUCCESS", "free:all=SUCCESS", "alloc:1Gi*12=SUCCESS", family+":1Gi*2=SUCCESS",
				family+":1Gi=OUT_OF_MEMORY", "free:all=SUCCESS")
			if got := usable - steps[0].Free; got != 3*gib {
				t.Errorf("3 x 1Gi took %d bytes", got)
			}
			if steps[1].Free != usable || steps[5].Free != usable {
				t.Errorf("freed all, %d and %d of %d bytes are free", steps[1].Free, steps[5].Free, usable)
			}
		})
	}
}

func TestHostMemoryCostsTheCardNothing(t *testing.T) {
	in := install(t, oneCard("T4"))
	steps := probe(t, in, "host:1Gi=SUCCESS")
	if steps[0].Free != steps[0].Total {
		t.Errorf("%d of %d bytes free after an allocation of host memory", steps[0].Free, steps[0].Total)
	}
}

func TestContextsAndModulesCostWhatTheNodeSays(t *testing.T) {
	n := oneCard("T4")
	n.ContextMiB, n.ModuleKiB = 300, 512
	in := install(t, n)
	steps := probe(t, in, "meminfo", "ctx*2=SUCCESS", "reset=SUCCESS")
	if got := steps[0].Total - steps[0].Free; got != 300<<20 {
		t.Errorf("the first context took %d bytes", got)
	}
	if got := steps[1].Total - steps[1].Free; got != 900<<20 {
		t.Errorf("three contexts took %d bytes", got)
	}
	steps = probe(t, in, "launch:1us=SUCCESS")
	if got := steps[0].Total - steps[0].Free; got != 300<<20+512<<10 {
		t.Errorf("a context with a module took %d bytes", got)
	}
}

func TestEndOfAContextReturnsAllThatWasItsOwn(t *testing.T) {
	in := install(t, oneCard("T4"))
	for _, end := range []string{"release", "reset"} {
		h := hold(t, probeCommand(in, "alloc:1Gi*3", "array:1Gi", "pitch:1Gi", "launch:1us", end+"=SUCCESS"))
		u := usage(t, in)[0]
		if u.Used != 0 {
			t.Errorf("%d bytes are in use after the context's %s", u.Used, end)
		}
		h.kill()
	}
}

func TestChildAfterForkBeginsAnew(t *testing.T) {
	in := install(t, oneCard("T4"))
	h := hold(t, probeCommand(in, "alloc:1Gi", "fork=SUCCESS", "alloc:1Gi=SUCCESS"))
	if u := usage(t, in)[0]; u.Used != 2*gib || len(u.Processes) != 1 {
		t.Errorf("after the child's end %d bytes of %d processes are in use", u.Used, len(u.Processes))
	}
	h.kill()
}

// Processes that allocate, free and launch as fast as they can are killed at random moments. All
// must be given back at once, every time, and the survivors must not be disturbed.
func TestSIGKILLAtAnyMomentReturnsAll(t *testing.T) {
	in := install(t, Node{Name: "node-1", Cards: []Card{{Model: "A100-SXM4-80GB", Count: 2}}})
	keeper := hold(t, probeCommand(in, "alloc:1Gi"))
	kills, parallel := 160, 4
	if testing.Short() {
		kills = 40
	}
	for round := range kills / parallel {
		var victims []*exec.Cmd
		for range parallel {
			cmd := probeCommand(in, "--device", fmt.Sprint(round%2), "churn:60s")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			victims = append(victims, cmd)
		}
		for _, v := range victims {
			time.Sleep(time.Duration(rand.IntN(8000)) * time.Microsecond)
			v.Process.Signal(syscall.SIGKILL)
			v.Wait()
		}
		for _, u := range usage(t, in) {
			if want := uint64(1-u.Card) * gib; u.Used != want {
				t.Fatalf("round %d: card %d has %d bytes in use, want %d: %+v", round, u.Card, u.Used, want, u.Processes)
			}
		}
	}
	keeper.kill()
	probe(t, in, "launch:1us=SUCCESS", fmt.Sprintf("alloc:%d=SUCCESS", uint64(81920-768)<<20))
}

func TestReplacedImageOfAProcessHoldsNothing(t *testing.T) {
	in := install(t, oneCard("T4"))
	h := hold(t, probeCommand(in, "alloc:1Gi", "exec"))
	eventually(t, "a process that has become another program holds nothing", func() bool { return usage(t, in)[0].Used == 0 })
	h.kill()
}

func TestVisibleDevices(t *testing.T) {
	in := install(t, Node{Name: "node-1", Cards: []Card{{Model: "A100-SXM4-80GB"}, {Model: "T4"}, {Model: "L4"}}})
	cards, _ := in.Node.CardInfos()
	for _, tc := range []struct {
		visible string
		devices int
		first   string
	}{
		{"0,1,2", 3, "NVIDIA A100-SXM4-80GB"},
		{"2,0", 2, "NVIDIA L4"},
		{"1,7,0", 1, "Tesla T4"},
		{cards[1].UUID, 1, "Tesla T4"},
		{cards[2].UUID[:9], 1, "NVIDIA L4"},
		{"", 0, ""},
		{"-1", 0, ""},
		{"1,1", 0, ""},
	} {
		t.Run(tc.visible, func(t *testing.T) {
			cmd := probeCommand(in, "info")
			cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+tc.visible)
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			s := parseSteps(t, out)[0]
			if s.Devices != tc.devices || s.Name != tc.first {
				t.Errorf("got %d devices, the first %q", s.Devices, s.Name)
			}
			if tc.devices == 0 && s.Result != "CUDA_ERROR_NO_DEVICE" {
				t.Errorf("got %s", s.Result)
			}
		})
	}
}
