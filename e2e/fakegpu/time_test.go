package fakegpu

import (
	"fmt"
	"math"
	"os/exec"
	"testing"
	"time"
)

// contend runs one process for each kernel length and returns their shares of the card's time in
// the second after all of them began, in the order of the lengths.
func contend(t *testing.T, in *Installed, kernels ...string) []float64 {
	t.Helper()
	var cmds []*exec.Cmd
	for _, k := range kernels {
		cmd := probeCommand(in, "busy:"+k+":60s")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		cmds = append(cmds, cmd)
	}
	eventually(t, "all processes have run", func() bool {
		ran := 0
		for _, p := range usage(t, in)[0].Processes {
			if p.BusyNs > 0 {
				ran++
			}
		}
		return ran == len(cmds)
	})
	time.Sleep(1400 * time.Millisecond)
	usage(t, in) // brings the log up to date
	shares := share(t, in, 300*time.Millisecond, 1300*time.Millisecond)
	var out []float64
	for _, cmd := range cmds {
		out = append(out, shares[cmd.Process.Pid])
	}
	return out
}

func TestTimeSlicesAreFairToProcessesNotToKernels(t *testing.T) {
	in := install(t, oneCard("T4"))
	got := contend(t, in, "20ms", "200us")
	if math.Abs(got[0]-50) > 3 {
		t.Errorf("20 ms kernels got %.1f, 0.2 ms kernels %.1f per cent", got[0], got[1])
	}
}

func TestFIFOFavoursLongKernels(t *testing.T) {
	n := oneCard("T4")
	n.Arbitration = FIFO
	in := install(t, n)
	got := contend(t, in, "20ms", "200us")
	if got[0] < 90 {
		t.Errorf("20 ms kernels got %.1f, 0.2 ms kernels %.1f per cent", got[0], got[1])
	}
}

func TestLaunchWaitsWhenTheQueueIsFull(t *testing.T) {
	in := install(t, oneCard("T4"))
	s := probe(t, in, "launch:1ms*1200=SUCCESS")[0]
	// 1,024 fit at once; the other 176 wait for a place each.
	if s.QueuedMs < 170 || s.QueuedMs > 1100 {
		t.Errorf("1,200 kernels of 1 ms were queued within %.1f ms", s.QueuedMs)
	}
	if s.Ms < 1200 {
		t.Errorf("they took %.1f ms", s.Ms)
	}
}

func TestEveryLaunchOccupiesTheCardForItsTime(t *testing.T) {
	in := install(t, oneCard("T4"))
	before := usage(t, in)[0].BusyNs
	for _, how := range []string{"launch", "launchex", "coop", "graph"} {
		for _, flags := range [][]string{nil, {"--per-thread"}, {"--via", "procaddress", "--per-thread"}} {
			probe(t, in, append(flags, how+":2ms*10=SUCCESS")...)
			after := usage(t, in)[0].BusyNs
			if after-before != 20e6 {
				t.Errorf("%s %s: 10 kernels of 2 ms kept the card busy for %d ns", how, flags, after-before)
			}
			before = after
		}
	}
}

func TestEventsTellTheTimeOfTheCard(t *testing.T) {
	in := install(t, oneCard("T4"))
	s := probe(t, in, "event:7ms=SUCCESS")[0]
	if s.EventMs < 7 || s.EventMs > 1000 {
		t.Errorf("the events around a kernel of 7 ms are %.3f ms apart", s.EventMs)
	}
}

func TestKilledProcessLeavesTheCardToOthers(t *testing.T) {
	in := install(t, oneCard("T4"))
	flood := probeCommand(in, "launch:1s*100")
	if err := flood.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	flood.Process.Kill()
	flood.Wait()
	if s := probe(t, in, "launch:1ms=SUCCESS")[0]; s.Ms > 900 {
		t.Errorf("a kernel of 1 ms took %.1f ms behind the queue of a dead process", s.Ms)
	}
}

func TestCaptureIsSpoiltByUnsafeCallsUnlessRelaxed(t *testing.T) {
	in := install(t, oneCard("T4"))
	for mode, want := range map[string]step{
		"global":  {During: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", Result: "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
		"local":   {During: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", Result: "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
		"relaxed": {During: "CUDA_SUCCESS", Result: "CUDA_SUCCESS", Graph: true},
	} {
		s := probe(t, in, "capture:"+mode)[0]
		if s.During != want.During || s.Result != want.Result || s.Graph != want.Graph {
			t.Errorf("%s: %s during the capture, then %s, graph %v", mode, s.During, s.Result, s.Graph)
		}
	}
}

func TestProcAddressGivesTheFormOfTheVersion(t *testing.T) {
	in := install(t, oneCard("T4"))
	const (
		found = iota
		unknown
		tooOld
	)
	for _, tc := range []struct {
		name      string
		version   int
		perThread bool
		symbol    string
		status    int
	}{
		{"cuMemAlloc", 2000, false, "cuMemAlloc", found},
		{"cuMemAlloc", 3010, false, "cuMemAlloc", found},
		{"cuMemAlloc", 3020, false, "cuMemAlloc_v2", found},
		{"cuMemAlloc", 13000, true, "cuMemAlloc_v2", found},
		{"cuCtxCreate", 11030, false, "cuCtxCreate_v2", found},
		{"cuCtxCreate", 11040, false, "cuCtxCreate_v3", found},
		{"cuCtxCreate", 13000, false, "cuCtxCreate_v4", found},
		{"cuGetProcAddress", 11030, false, "cuGetProcAddress", found},
		{"cuGetProcAddress", 12000, false, "cuGetProcAddress_v2", found},
		{"cuLaunchKernel", 13000, false, "cuLaunchKernel", found},
		{"cuLaunchKernel", 13000, true, "cuLaunchKernel_ptsz", found},
		{"cuLaunchKernel", 5000, true, "cuLaunchKernel", found},
		{"cuMemAllocAsync", 11020, true, "cuMemAllocAsync_ptsz", found},
		{"cuMemAllocAsync", 11010, true, "", tooOld},
		{"cuLibraryLoadData", 11080, false, "", tooOld},
		{"cuMemAlloc_v2", 13000, false, "", unknown},
		{"cuNoSuchThing", 13000, false, "", unknown},
	} {
		t.Run(fmt.Sprintf("%s/%d/%v", tc.name, tc.version, tc.perThread), func(t *testing.T) {
			args := []string{fmt.Sprintf("proc:%s:%d=SUCCESS", tc.name, tc.version)}
			if tc.perThread {
				args = append([]string{"--per-thread"}, args...)
			}
			if s := probe(t, in, args...)[0]; s.Symbol != tc.symbol || s.Status != tc.status {
				t.Errorf("got %q, status %d", s.Symbol, s.Status)
			}
		})
	}
	probe(t, in, "proc:cuInit:14000=INVALID_VALUE")
}
