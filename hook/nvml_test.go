package hook

import (
	"fmt"
	"strings"
	"testing"
)

// TestNVMLShowsTheSlice and its own processes, in every form of the question;
// the card's own numbers where the container has the whole card.
func TestNVMLShowsTheSlice(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	n.share("b", 0, 2*gi, 0)
	smi := cc(t, "smi", "test/smi.c", "-ldl")
	a, b := n.container("a", []int{0}, "a"), n.container("b", []int{0}, "b")
	show := func(box string) string {
		t.Helper()
		out, err := n.command(box, smi).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	slice := func(total, used, processes int, list string) string {
		line := fmt.Sprintf("total %d free %d used %d\n", total, total-used, used)
		full := 0
		if processes > 0 {
			full = 7 // NVML_ERROR_INSUFFICIENT_SIZE
		}
		return line + line + fmt.Sprintf("processes 0:%d 0:%d 0:%d, asked for the number %d:%d, others 0:0 0:0\n%s",
			processes, processes, processes, full, processes, list)
	}
	if got, want := show(a), slice(1024, 0, 0, ""); got != want {
		t.Errorf("idle:\n%swant\n%s", got, want)
	}
	p, q := n.start(a), n.start(b)
	for _, r := range []*program{p, q} {
		r.want("init", "0")
		r.want("retain 0", "0")
		r.want("alloc linear 300Mi", "0 #0")
	}
	if got, want := show(a), slice(1024, 300, 1, fmt.Sprintf("pid %d used 300\n", p.cmd.Process.Pid)); got != want {
		t.Errorf("busy:\n%swant\n%s", got, want)
	}
	if got, want := show(b), slice(2048, 300, 1, fmt.Sprintf("pid %d used 300\n", q.cmd.Process.Pid)); got != want {
		t.Errorf("the other:\n%swant\n%s", got, want)
	}
	p.kill()
	if got, want := show(a), slice(1024, 0, 0, ""); got != want {
		t.Errorf("after a kill:\n%swant\n%s", got, want)
	}
	n.share("whole", 0, 0, 0)
	if got := show(n.container("whole", []int{0}, "whole")); !strings.HasPrefix(got, "total 81920 ") {
		t.Errorf("a whole card:\n%s", got)
	}
}
