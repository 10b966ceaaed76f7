package fakegpu

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The behaviours are told in C, where programs have them (testdata/api/api.c).
func TestDriverKeepsItsPromises(t *testing.T) {
	in := install(t, oneCard("T4"))
	program := filepath.Join(t.TempDir(), "api")
	cc := exec.Command("gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-Iabi", "-o", program,
		"testdata/api/api.c", "-L"+in.LibDir(), "-lcuda", "-lpthread")
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := func(args ...string) ([]byte, error) {
		cmd := exec.Command(program, args...)
		cmd.Env = in.Env()
		return cmd.CombinedOutput()
	}
	names, err := run()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(string(names)) {
		t.Run(name, func(t *testing.T) {
			if out, err := run(name); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			if u := usage(t, in)[0]; u.Used != 0 || len(u.Processes) != 0 {
				t.Errorf("it left %d bytes of %d processes", u.Used, len(u.Processes))
			}
		})
	}
}
