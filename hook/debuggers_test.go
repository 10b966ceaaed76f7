package hook

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// script is a CUDA program's whole life, and what it answers.
const (
	script  = "init\nretain 0\nalloc linear 100Mi\nalloc linear 1Gi\nfork\ninit\nretain 0\nalloc vmm 200Mi\nfree 0\nreset 0\n"
	answers = "0\n0\n0 #0\n2\n0\n0\n0\n0 #0\n0\n0\n"
)

// TestProgramsRunUnderTheToolsOfDevelopers: debuggers, checkers and auditors of
// a program see it run as it does without them, and limited.
func TestProgramsRunUnderTheToolsOfDevelopers(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi-mi, 0)
	box := n.container("a", []int{0}, "a")
	dir := t.TempDir()
	audit := filepath.Join(dir, "audit.so")
	if err := os.WriteFile(filepath.Join(dir, "audit.c"), []byte("unsigned la_version(unsigned v);\nunsigned la_version(unsigned v) { return v; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := sh("gcc", "-shared", "-fPIC", "-o", audit, filepath.Join(dir, "audit.c")); err != nil {
		t.Fatal(err)
	}
	checked := cc(t, "play", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "test/play.c", "-ldl", "-lpthread")
	for _, c := range []struct {
		name, env string
		args      []string
	}{
		{"alone", "", []string{n.lab.play}},
		{"valgrind", "", []string{"valgrind", "-q", "--error-exitcode=9", "--trace-children=yes", n.lab.play}},
		{"gdb", "", []string{"gdb", "-q", "-batch", "-nx", "-iex", "set debuginfod enabled off", "-ex", "set print inferior-events off", "-ex", "set breakpoint pending on",
			"-ex", "break cuMemAlloc_v2", "-ex", "run", "-ex", "delete", "-ex", "continue", "--args", n.lab.play}},
		{"audited", "LD_AUDIT=" + audit, []string{n.lab.play}},
		{"address and undefined behaviour sanitizer", "ASAN_OPTIONS=detect_leaks=0", []string{checked}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, err := exec.LookPath(c.args[0])
			if err != nil {
				t.Fatal(err)
			}
			cmd := n.command(box, path, c.args[1:]...)
			cmd.Env = append(cmd.Env, c.env, "HOME="+dir, "PATH="+os.Getenv("PATH"))
			cmd.Stdin = strings.NewReader(script)
			var said strings.Builder
			cmd.Stderr = &said
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s%s", err, out, &said)
			}
			var got []string
			for line := range strings.Lines(string(out)) { // gdb speaks too, in words
				if line[0] >= '0' && line[0] <= '9' && !strings.Contains(line, "\t") {
					got = append(got, line)
				}
			}
			if strings.Join(got, "") != answers {
				t.Errorf("answers %q, want %q\n%s%s", strings.Join(got, ""), answers, out, &said)
			}
		})
	}
}
