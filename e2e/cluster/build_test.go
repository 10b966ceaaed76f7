package cluster

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPinnedVersionIsReadFromGoMod(t *testing.T) {
	tests := map[string]struct{ goMod, want string }{
		"alone":        {"module x\n\nrequire k8s.io/kubernetes v1.37.2\n", "v1.37.2"},
		"in a block":   {"module x\n\nrequire (\n\tk8s.io/kubernetes-x v9.9.9\n\tk8s.io/kubernetes v1.37.2 // indirect\n)\n", "v1.37.2"},
		"not required": {"module x\n", ""},
		"replaced":     {"module x\n\nreplace k8s.io/kubernetes => k8s.io/kubernetes v1.0.0\n", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "go.mod")
			if err := os.WriteFile(file, []byte(test.goMod), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := pinnedVersion(file, "k8s.io/kubernetes")
			if got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("version %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

// tinyModule is a module with one program, and the folder that it is built into.
func tinyModule(t *testing.T) (m module, source, bin string) {
	t.Helper()
	source, bin = t.TempDir(), t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(source, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.com/tiny\n\ngo 1.26\n\nrequire example.com/pinned v1.2.3\n\nreplace example.com/pinned => ./pinned\n")
	write("go.sum", "")
	write("main.go", "package main\n\nfunc main() {}\n")
	if err := os.Mkdir(filepath.Join(source, "pinned"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("pinned/go.mod", "module example.com/pinned\n\ngo 1.26\n")
	return module{folder: "tiny", requires: "example.com/pinned", commands: []string{"example.com/tiny"}, ldflags: strip}, source, bin
}

func TestModuleIsBuiltOnceUntilItsPinsChange(t *testing.T) {
	m, source, bin := tinyModule(t)
	build := func(goVersion string) (log string) {
		t.Helper()
		var out bytes.Buffer
		if err := m.build(t.Context(), source, bin, goVersion, "", &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if log := build("go1"); !strings.Contains(log, "tiny v1.2.3: building") {
		t.Errorf("first: %s", log)
	}
	if log := build("go1"); log != "tiny v1.2.3: built already\n" {
		t.Errorf("again: %s", log)
	}
	if log := build("go2"); !strings.Contains(log, "building") {
		t.Errorf("with another Go: %s", log)
	}
	if err := os.WriteFile(filepath.Join(source, "go.sum"), []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if log := build("go2"); !strings.Contains(log, "building") {
		t.Errorf("with another go.sum: %s", log)
	}
	if err := os.Remove(filepath.Join(bin, "tiny")); err != nil {
		t.Fatal(err)
	}
	if log := build("go2"); !strings.Contains(log, "building") {
		t.Errorf("with the program gone: %s", log)
	}
}

func TestFailedBuildShowsTheCompilersMessagesAndIsNotTakenAsBuilt(t *testing.T) {
	m, source, bin := tinyModule(t)
	if err := os.WriteFile(filepath.Join(source, "main.go"), []byte("package main\n\nfunc main() { undefinedThing() }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var log bytes.Buffer
		err := m.build(t.Context(), source, bin, "go1", "", &log)
		if err == nil || !strings.Contains(err.Error(), "undefined: undefinedThing") {
			t.Errorf("error %v; log %s", err, log.String())
		}
	}
	if left, err := filepath.Glob(filepath.Join(bin, "*")); err != nil || len(left) > 0 {
		t.Errorf("left in the cache: %v, %v", left, err)
	}
}

func TestKubernetesProgramsAreToldTheirVersion(t *testing.T) {
	got := kubernetesFlags("v1.37.2")
	for _, want := range []string{"version.gitVersion=v1.37.2", "version.gitMajor=1", "version.gitMinor=37"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
}

func TestSourceOfTheProgramsIsFoundFromBelow(t *testing.T) {
	source, err := FindSource()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range modules {
		if _, err := pinnedVersion(filepath.Join(source, m.folder, "go.mod"), m.requires); err != nil {
			t.Error(err)
		}
	}
	t.Chdir(t.TempDir())
	if _, err := FindSource(); err == nil {
		t.Error("found outside the tree")
	}
}

func TestPreflightNamesEverythingThatIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := preflight(t.TempDir(), t.TempDir(), 0)
	if err == nil {
		t.Fatal("nothing is missing")
	}
	if strings.Contains(err.Error(), "mpi-operator") {
		t.Errorf("a cluster does not need what only tests run: %v", err)
	}
	for _, want := range []string{"runc (Debian: apt-get install runc)", "ip (Debian: apt-get install iproute2)", "kube-apiserver", "`cluster build`"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
}

func TestAClusterIsRefusedThatLacksInotifyInstances(t *testing.T) {
	granted := func(most int) func(int) int { return func(want int) int { return min(want, most) } }
	if err := enoughInotify(3, granted(24)); err != nil {
		t.Error(err)
	}
	err := enoughInotify(3, granted(23))
	if err == nil || !strings.Contains(err.Error(), "3 nodes take about 24 inotify instances and this user may have 23 more") || !strings.Contains(err.Error(), "sysctl fs.inotify.max_user_instances=") {
		t.Errorf("got %v", err)
	}
}

func TestLogTailIsTheLastLines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat(strings.Repeat("x", 99)+"\n", 1000) + "one\ntwo\nthree\n"
	if err := os.WriteFile(file, []byte(long), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := logTail(file, 2); got != "two\nthree" {
		t.Errorf("got %q", got)
	}
	if err := os.WriteFile(file, []byte("only\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := logTail(file, 2); got != "only" {
		t.Errorf("got %q", got)
	}
}
