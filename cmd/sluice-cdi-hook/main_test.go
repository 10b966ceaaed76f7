package main

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// bundle makes the folder of a container as a runtime has it.
func bundle(t *testing.T, config string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTheContainerIsFoundThroughItsState(t *testing.T) {
	dir := bundle(t, `{"root":{"path":"rootfs"},"process":{"env":["LD_LIBRARY_PATH=/opt"]}}`)
	root, env, err := container(strings.NewReader(fmt.Sprintf(`{"id":"c","bundle":%q}`, dir)))
	if err != nil || root != filepath.Join(dir, "rootfs") || len(env) != 1 {
		t.Errorf("got %s, %q, %v", root, env, err)
	}
	dir = bundle(t, `{"root":{"path":"/elsewhere"}}`)
	if root, _, err := container(strings.NewReader(fmt.Sprintf(`{"bundle":%q}`, dir))); err != nil || root != "/elsewhere" {
		t.Errorf("got %s, %v", root, err)
	}
}

func TestWhatCannotBeUnderstoodKeepsTheContainerFromStarting(t *testing.T) {
	rootless := fmt.Sprintf(`{"id":"c","bundle":%q}`, bundle(t, `{}`))
	for _, c := range []struct {
		args        []string
		state, want string
	}{
		{nil, "{}", "LIBRARY=STAND-IN"},
		{[]string{"cover"}, "{}", "LIBRARY=STAND-IN"},
		{[]string{"uncover", "libcuda.so=/x"}, "{}", "uncover"},
		{[]string{"cover", "libcuda.so"}, "{}", `"libcuda.so"`},
		{[]string{"cover", "libcuda.so=x"}, "{}", "absolute"},
		{[]string{"cover", "libcuda.so=/x"}, "no state", "standard input"},
		{[]string{"cover", "libcuda.so=/x"}, `{"bundle":"/no/such/bundle"}`, "/no/such/bundle"},
		{[]string{"cover", "libcuda.so=/x"}, rootless, "no root folder"},
	} {
		if err := run(c.args, strings.NewReader(c.state)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q with %q: %v, want %q", c.args, c.state, err, c.want)
		}
	}
}

// TestTheHookNeedsNothingOfTheHost: no loader, no library.
func TestTheHookNeedsNothingOfTheHost(t *testing.T) {
	out := filepath.Join(t.TempDir(), "hook")
	if b, err := exec.Command("go", "build", "-o", out, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	f, err := elf.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("is linked dynamically: %s", p.Type)
		}
	}
}
