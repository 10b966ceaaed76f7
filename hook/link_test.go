package hook

import (
	"os"
	"path/filepath"
	"testing"
)

// TestWhatIsBuiltInAContainerLinksWithTheLimiter: Triton compiles its launchers
// as shared objects and links them with libcuda by its versioned name; a program
// of its own is linked with the toolkit's stub, as on a machine without a driver.
// Both are limited.
func TestWhatIsBuiltInAContainerLinksWithTheLimiter(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	box := n.container("a", []int{0}, "a")
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{
		// cuDeviceGetCount is the driver's alone, cuMemAlloc_v2 the limiter's.
		"launcher.c": `int cuInit(unsigned); int cuDeviceGetCount(int *); int cuDevicePrimaryCtxRetain(void **, int);
			int cuCtxSetCurrent(void *); int cuMemAlloc_v2(unsigned long long *, unsigned long);
			int launcher(void) {
				void *c; int n = 0; unsigned long long p;
				if (cuInit(0) || cuDeviceGetCount(&n) || n != 1 || cuDevicePrimaryCtxRetain(&c, 0) || cuCtxSetCurrent(c)) return 1;
				if (cuMemAlloc_v2(&p, 1ul << 29)) return 2;
				return cuMemAlloc_v2(&p, 1ul << 30) == 2 ? 0 : 3;
			}`,
		"loads.c": `#include <dlfcn.h>
			int main(int n, char **a) { void *l = dlopen(a[n - 1], RTLD_NOW); int (*f)(void) = l ? (int (*)(void))dlsym(l, "launcher") : 0; return f ? f() : 9; }`,
		"main.c": `int launcher(void); int main(void) { return launcher(); }`,
		"stub.c": `int cuInit(unsigned f) { return (int)f; } int cuDeviceGetCount(int *n) { return *n; }
			int cuDevicePrimaryCtxRetain(void **c, int d) { return d + !c; } int cuCtxSetCurrent(void *c) { return !c; }
			int cuMemAlloc_v2(unsigned long long *p, unsigned long n) { return (int)(*p + n); }`,
	} {
		if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-o", in("launcher.so"), in("launcher.c"), "-L" + n.lab.lib, "-l:libcuda.so.1"},
		{"-o", in("loads"), in("loads.c"), "-ldl"},
		{"-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", in("libcuda.so"), in("stub.c")},
		{"-o", in("stubbed"), in("main.c"), in("launcher.c"), "-L" + dir, "-lcuda"},
	} {
		if err := sh("gcc", args...); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{in("loads"), in("launcher.so")}, {in("stubbed")}} {
		cmd := n.command(box, args[0], args[1:]...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", filepath.Base(args[0]), err, out)
		}
	}
}
