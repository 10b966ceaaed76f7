package hook

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEntryPointsAreTheVariantsThatTheDriverWouldGive for every function that
// the limiter wraps, by version, default stream and form of the question.
func TestEntryPointsAreTheVariantsThatTheDriverWouldGive(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	def, err := os.ReadFile("src/cuda.def")
	if err != nil {
		t.Fatal(err)
	}
	var names strings.Builder
	for _, m := range regexp.MustCompile(`(?m)^WRAP\((\w+), (\w+),`).FindAllStringSubmatch(string(def), -1) {
		fmt.Fprintln(&names, m[1], m[2])
	}
	list := filepath.Join(t.TempDir(), "names")
	if err := os.WriteFile(list, []byte(names.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := n.command(n.container("a", []int{0}, "a"), cc(t, "procs", "test/procs.c", "-ldl"), n.lab.real, list)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v", err)
	}
	t.Logf("%s", out)
}

// TestAFunctionThatTheDriverLacksIsNotOffered by cuGetProcAddress, and fails
// where it is called by its name. What the driver hands out is limited also
// where that is not the function that it exports.
func TestAFunctionThatTheDriverLacksIsNotOffered(t *testing.T) {
	l := theLab(t)
	dir := t.TempDir()
	driver := filepath.Join(dir, "driver", "real-cuda.so")
	for _, d := range []string{filepath.Dir(driver), filepath.Join(dir, "lib")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := sh("gcc", "-std=c11", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1", "-Iinclude",
		"-o", driver, "test/old_driver.c"); err != nil {
		t.Fatal(err)
	}
	if err := sh("env", "REAL_CUDA="+driver, "SLUICE_SHARES=shares", "./build.sh", dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "libsluice-cuda.so"), filepath.Join(dir, "lib", "libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	for _, way := range [][]string{{"proc", "10020", "0"}, {"open", "libcuda.so.1"}} {
		cmd := n.command(n.container("a"+way[0], []int{0}, "a"), l.play, way...)
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+filepath.Join(dir, "lib"))
		p := n.run(cmd)
		p.want("init", "0")
		p.want("retain 0", "0")
		p.want("alloc linear 1Mi", "0 #0")
		p.want("info", "0 free 1023Mi+0 total 1024Mi")
		p.want("alloc linear 1Gi", "2")
		// 9999 is what the program says of a pointer that it was not given,
		// 801 what the limiter says of a function that is not there.
		absent := map[string]string{"proc": "9999", "open": "801"}[way[0]]
		p.want("alloc async 1Mi", absent)
		p.want("alloc vmm 2Mi", absent)
		p.want("free 0", "0")
		p.end()
	}

	// A variant that came after the limiter is not handed out: it would be
	// unlimited, and an older one's arguments would be wrong.
	cmd := n.command(n.container("later", []int{0}, "a"), l.play, "proc", "20000", "0")
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+filepath.Join(dir, "lib"))
	p := n.run(cmd)
	p.want("init", "0")
	p.want("retain 0", "0")
	p.want("alloc linear 1Mi", "9999")
	p.want("info", "0 free 1024Mi+0 total 1024Mi")
	p.end()
}
