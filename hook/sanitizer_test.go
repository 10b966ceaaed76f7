package hook

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gpu/sluice/hook/account"
)

// sanitized builds limiter and program with a sanitizer and returns the folder
// of the one and the path of the other.
func sanitized(t *testing.T, sanitizer string) (lib, play string) {
	t.Helper()
	flags := "-g -O1 -fno-sanitize-recover=all -Wno-error=tsan -fsanitize=" + sanitizer
	dir := t.TempDir()
	lib = filepath.Join(dir, "lib")
	if err := os.Mkdir(lib, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := sh("env", "REAL_CUDA="+theLab(t).real, "SLUICE_SHARES=shares", "EXTRA_CFLAGS="+flags, "./build.sh", dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "libsluice-cuda.so"), filepath.Join(lib, "libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	return lib, cc(t, "play", append(strings.Fields(flags), "test/play.c", "-ldl", "-lpthread")...)
}

// TestTheThreadsOfAProgramDoNotRaceInTheLimiter near the cap, by all families
// that the simulated driver can do beside this sanitizer. A race ends the
// program with a report.
func TestTheThreadsOfAProgramDoNotRaceInTheLimiter(t *testing.T) {
	lib, play := sanitized(t, "thread")
	n := newNode(t, 1, 80*gi, mi)
	n.share("a", 0, 64*mi, mi)
	cmd := n.command(n.container("a", []int{0}, "a"), play)
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+lib)
	p := n.run(cmd)
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("hammer 8 200 4", "0 served some refused some")
	p.want("context 0", "0")
	p.want("reset 0", "0")
	if said := p.end(); said != "" {
		t.Errorf("said %q", said)
	}
}

// TestTheLimiterIsCleanUnderSanitizers: program and limiter are built with the
// address and undefined-behaviour sanitizers and go through every family, with
// threads, refusals, the end of contexts, and a forked child. A finding kills
// the program.
func TestTheLimiterIsCleanUnderSanitizers(t *testing.T) {
	lib, play := sanitized(t, "address,undefined")
	n := newNode(t, 1, 80*gi, mi)
	n.share("a", 0, 200*mi, mi)
	n.share("b", 0, 56*mi, mi)
	cmd := n.command(n.container("a", []int{0}, "a", "b"), play)
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+lib, "ASAN_OPTIONS=detect_leaks=0")
	p := n.run(cmd)
	for _, c := range [][2]string{
		{"info", "3 free 0Mi+0 total 0Mi"},
		{"init", "0"}, {"retain 0", "0"}, {"pool 0", "0"},
		{"alloc linear 10Mi", "0 #0"}, {"alloc pitch 10Mi", "0 #1"}, {"alloc managed 10Mi", "0 #2"},
		{"alloc array 10Mi", "0 #3"}, {"alloc array3d 10Mi", "0 #4"}, {"alloc mipmap 10Mi", "0 #5"},
		{"alloc vmm 10Mi", "0 #6"}, {"alloc async 10Mi", "0 #7"}, {"alloc pool 10Mi 0", "0 #8"},
		{"alloc graph 10Mi", "0 #9"}, {"alloc captured 10Mi", "0 #10"},
		{"launch 9", "0"}, {"launch 10", "0"}, {"map 6", "0"}, {"export 6", "0"}, {"import 6", "0 #11"},
		{"keep 6", "0"}, {"unmap 6", "0"}, {"free 6", "0"}, {"free 11", "0"}, {"free 6", "0"},
		{"alloc linear 1Gi", "2"}, {"alloc vmm 1Gi", "2"}, {"alloc async 1Gi", "2"}, {"alloc array 1Gi", "2"},
		{"pool-destroy 0", "0"}, {"free 8", "0"}, {"free-async 7", "0"}, {"heap 10Mi", "0"},
		{"free 9", "0"}, {"free 10", "0"}, {"free 5", "0"}, {"free 3", "0"},
		{"context 0", "0"}, {"alloc linear 5Mi", "0 #12"}, {"destroy 1", "0"},
		{"use-none", "0"}, {"info-null", "201 201 201 free 0Mi total 0Mi"},
		{"use 0", "0"}, {"fill linear 1Mi", "2 after 204"},
		{"reset 0", "0"}, {"fork", "0"}, {"init", "0"}, {"retain 0", "0"}, {"alloc linear 100Mi", "0 #0"},
	} {
		p.want(c[0], c[1])
	}
	if got := p.tell("hammer 8 100"); !strings.HasPrefix(got, "0 served some") {
		t.Errorf("hammer: got %q", got)
	}
	if said := p.end(); said != "" {
		t.Errorf("said %q", said)
	}
}

// gated makes a share that is held to half of the first card, and returns its
// folder on the node.
func (n *node) gated(name string) string {
	n.t.Helper()
	uuid, err := account.ParseUUID(cardUUID(0))
	if err != nil {
		n.t.Fatal(err)
	}
	dir := filepath.Join(n.dir, "node-shares", name)
	limit := account.Limit{Card: uuid, Memory: gi, CorePercent: 50, CorePolicy: account.CoresHard}
	if err := account.Create(dir, limit, account.Grant{CoreRate: 500_000, Fallback: 500_000, BusyFactor: 1_000_000, Gated: true}); err != nil {
		n.t.Fatal(err)
	}
	return dir
}

// TestTheThreadsOfAProgramDoNotRaceInTheGate: they launch into streams of their
// own and a common one, in contexts of which some end meanwhile, and are held.
func TestTheThreadsOfAProgramDoNotRaceInTheGate(t *testing.T) {
	lib, _ := sanitized(t, "thread")
	program := cc(t, "launches", "-g", "-O1", "-fsanitize=thread", "test/launches.c", "-ldl", "-lpthread")
	n := newNode(t, 1, 80*gi, mi)
	dir := n.gated("a")
	cmd := n.command(n.container("a", []int{0}, "a"), program, "8", "400")
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+lib)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
	core, err := account.ReadCoreTime(dir)
	if err != nil || core.Throttled == 0 {
		t.Errorf("nothing was held: %+v, %v", core, err)
	}
}

// TestTheGateIsCleanUnderSanitizers: launches of every kind in a share that is
// held to a part of the card, captures among them, with program and limiter
// built with the address and undefined-behaviour sanitizers.
func TestTheGateIsCleanUnderSanitizers(t *testing.T) {
	const sanitizer = "address,undefined"
	lib, _ := sanitized(t, sanitizer)
	program := filepath.Join(t.TempDir(), "probe")
	build := []string{"-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-fno-sanitize-recover=all", "-fsanitize=" + sanitizer, "-I../e2e/fakegpu/abi", "-o", program}
	for _, source := range []string{"probe", "memory", "kernels", "work", "resolve"} {
		build = append(build, "../e2e/fakegpu/probe/"+source+".c")
	}
	if err := sh("gcc", append(build, "-ldl")...); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, 1, 80*gi, mi)
	dir := n.gated("a")
	box := n.container("a", []int{0}, "a")
	for _, way := range [][]string{nil, {"--per-thread"}, {"--via", "procaddress"}} {
		steps := append(slices.Clone(way), "launch:2ms*40=SUCCESS", "launchex:1ms*40=SUCCESS", "coop:1ms*40=SUCCESS", "graph:1ms*40=SUCCESS",
			"capturing:global*50=SUCCESS", "capturing:relaxed*50=SUCCESS")
		cmd := n.command(box, program, steps...)
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+lib, "ASAN_OPTIONS=detect_leaks=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", way, err, out)
		}
	}
	core, err := account.ReadCoreTime(dir)
	if err != nil || core.Throttled == 0 {
		t.Errorf("nothing was held: %+v, %v", core, err)
	}
}
