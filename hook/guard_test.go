package hook

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// aCompatFolder puts a driver of its own into a container, as images with
// CUDA's "compat" packages have it.
func aCompatFolder(t *testing.T, l *lab, box string) string {
	t.Helper()
	dir := filepath.Join(box, "compat")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := sh("cp", l.real, filepath.Join(dir, "libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestALibcudaOfTheImageIsTurnedIntoTheLimiter, whether it is opened by its
// path, found earlier by the loader, or the real one at its private path. The
// same without the guard shows that there is something to guard against.
func TestALibcudaOfTheImageIsTurnedIntoTheLimiter(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	for _, c := range []struct{ name, open, path string }{
		{"path", "COMPAT/libcuda.so.1", ""},
		{"other-name", "COMPAT/../compat/libcuda.so.1", ""},
		{"earlier", "libcuda.so.1", "COMPAT:"},
		{"private", n.lab.real, ""},
	} {
		for _, how := range []string{"open", "deep", "space"} {
			for _, guarded := range []bool{true, false} {
				name := c.name + how
				if !guarded {
					name += "-bare"
				}
				n.share(name, 0, gi, 0)
				box := n.container(name, []int{0}, name)
				compat := aCompatFolder(t, n.lab, box)
				cmd := n.command(box, n.lab.play, how, strings.ReplaceAll(c.open, "COMPAT", compat))
				cmd.Env[0] = "LD_LIBRARY_PATH=" + strings.ReplaceAll(c.path, "COMPAT", compat) + n.lab.lib
				want := "0 #0"
				if guarded {
					cmd.Env = append(cmd.Env, "LD_PRELOAD="+n.lab.guard)
					want = "2"
				}
				p := n.run(cmd)
				p.want("init", "0")
				p.want("retain 0", "0")
				if got := p.tell("alloc linear 2Gi"); got != want {
					t.Errorf("%s: got %q, want %q", name, got, want)
				}
				p.kill()
			}
		}
	}
}

// TestTheGuardLeavesOtherLibrariesAlone: a library's own search path is still
// asked, which shows that the caller of dlopen is still seen as the caller.
func TestTheGuardLeavesOtherLibrariesAlone(t *testing.T) {
	l := theLab(t)
	dir := t.TempDir()
	private := filepath.Join(dir, "private")
	if err := os.Mkdir(private, 0o755); err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{
		"inner.c":  "int inner(void); int inner(void) { return 42; }",
		"plugin.c": "#include <dlfcn.h>\nint plugin(void); int plugin(void) { return dlopen(\"libinner.so\", RTLD_NOW) != 0; }",
		"main.c": `#include <dlfcn.h>
			#include <string.h>
			int plugin(void);
			int main(void) {
				void *malloc1 = dlsym(RTLD_NEXT, "malloc"), *malloc2 = dlsym(RTLD_NEXT, "malloc");
				if (dlopen("libinner.so", RTLD_NOW)) return 1;             /* not on our path */
				if (!plugin()) return 2;                                  /* on the plugin's */
				if (dlopen("/no/such/file.so", RTLD_NOW)) return 3;
				if (!strstr(dlerror(), "/no/such/file.so")) return 4;
				if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)) return 5; /* not loaded yet */
				if (!dlopen(0, RTLD_NOW)) return 6;
				return malloc1 != malloc2 || !malloc1;
			}`,
	}
	for name, text := range sources {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#define _GNU_SOURCE\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-o", filepath.Join(private, "libinner.so"), in("inner.c")},
		{"-shared", "-fPIC", "-Wl,-rpath," + private, "-o", in("libplugin.so"), in("plugin.c"), "-ldl"},
		{"-o", in("main"), in("main.c"), in("libplugin.so"), "-ldl"},
	} {
		if err := sh("gcc", args...); err != nil {
			t.Fatal(err)
		}
	}
	for _, preload := range []string{"", l.guard} {
		cmd := exec.Command(in("main"))
		cmd.Env = []string{"LD_PRELOAD=" + preload, "LD_LIBRARY_PATH=" + l.lib}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("with %q: %v\n%s", preload, err, out)
		}
	}
}

// TestTheGuardIsInNobodysWay: it needs libc alone, runs nothing at start, and
// where there is no limiter the names mean what they always did.
func TestTheGuardIsInNobodysWay(t *testing.T) {
	l := theLab(t)
	f, err := elf.Open(l.guard)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if needed, err := f.ImportedLibraries(); err != nil || !slices.Equal(needed, []string{"libc.so.6"}) {
		t.Errorf("needs %q, %v", needed, err)
	}
	var exported []string
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			exported = append(exported, s.Name)
		}
		if s.Version != "" && s.Version != "GLIBC_2.2.5" && s.Version != "GLIBC_2.17" {
			t.Errorf("%s has version %s", s.Name, s.Version)
		}
	}
	slices.Sort(exported)
	if !slices.Equal(exported, []string{"dlmopen", "dlopen"}) {
		t.Errorf("exports %q", exported)
	}
	dir := t.TempDir()
	if err := sh("env", "SLUICE_DRIVER="+filepath.Join(dir, "none"), "./build.sh", dir); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, 1, 80*gi, 0)
	cmd := n.command(n.container("a", []int{0}), l.play, "open", l.real)
	cmd.Env = append(cmd.Env, "LD_PRELOAD="+filepath.Join(dir, "guard.so"))
	p := n.run(cmd)
	p.want("init", "0") // the real driver, no limiter, no share
	p.end()
	out, err := exec.Command("env", "LD_PRELOAD="+l.guard, "/bin/echo", "hello").CombinedOutput()
	if err != nil || string(out) != "hello\n" {
		t.Errorf("%q, %v", out, err)
	}
}
