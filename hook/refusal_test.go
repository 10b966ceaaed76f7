package hook

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-gpu/sluice/hook/account"
)

const notPermitted = "800"

// refusals are ways in which a container can be without its limit. The
// function is given the share's folder in the container and ruins it.
var refusals = []struct {
	name string
	ruin func(share string) error
	says string // part of the line on stderr
}{
	{"no shares folder", func(s string) error { return os.RemoveAll(filepath.Dir(s)) }, "no share of a card"},
	{"empty shares folder", os.RemoveAll, "no share of a card"},
	{"no limit", func(s string) error { return os.Remove(filepath.Join(s, account.LimitFile)) }, "limit: No such file"},
	{"empty limit", func(s string) error { return rewrite(s, account.LimitFile, nil) }, "wrong size"},
	{"garbage limit", func(s string) error {
		return rewrite(s, account.LimitFile, []byte(strings.Repeat("garbage!", 16)))
	}, "no limit file"},
	{"long limit", func(s string) error {
		return change(s, account.LimitFile, func(b []byte) []byte { return append(b, 0) })
	}, "wrong size"},
	{"other version", func(s string) error {
		return change(s, account.LimitFile, func(b []byte) []byte { b[8]++; return b })
	}, "another version"},
	{"larger limit", func(s string) error {
		return change(s, account.LimitFile, func(b []byte) []byte { b[37]++; return b })
	}, "damaged"},
	{"limit is a link", func(s string) error {
		name := filepath.Join(s, account.LimitFile)
		if err := os.Rename(name, name+"2"); err != nil {
			return err
		}
		return os.Symlink("limit2", name)
	}, "limit"},
	{"limit is a folder", func(s string) error {
		name := filepath.Join(s, account.LimitFile)
		if err := os.Remove(name); err != nil {
			return err
		}
		return os.Mkdir(name, 0o755)
	}, "limit"},
	{"limit not readable", func(s string) error { return os.Chmod(filepath.Join(s, account.LimitFile), 0) }, "Permission denied"},
	{"no grant", func(s string) error { return os.Remove(filepath.Join(s, account.GrantFile)) }, "grant: No such file"},
	{"short grant", func(s string) error { return rewrite(s, account.GrantFile, []byte("short")) }, "grant: it has the wrong size"},
	{"torn grant", func(s string) error {
		return change(s, account.GrantFile, func(b []byte) []byte { b[33]++; return b })
	}, "grant: it is damaged"},
	{"no account", func(s string) error { return os.Remove(filepath.Join(s, account.AccountFile)) }, "account: No such file"},
	{"account not writable", func(s string) error { return os.Chmod(filepath.Join(s, account.AccountFile), 0o444) }, "writable"},
	{"empty account", func(s string) error { return rewrite(s, account.AccountFile, nil) }, "account: it is damaged"},
	{"garbage account", func(s string) error {
		return rewrite(s, account.AccountFile, make([]byte, 65536))
	}, "account: it is damaged"},
	{"account is a pipe", func(s string) error {
		name := filepath.Join(s, account.AccountFile)
		if err := os.Remove(name); err != nil {
			return err
		}
		return syscall.Mkfifo(name, 0o666)
	}, "account"},
}

// rewrite puts other bytes into a file of a container, in place.
func rewrite(share, name string, b []byte) error {
	return os.WriteFile(filepath.Join(share, name), b, 0o644)
}

func change(share, name string, f func([]byte) []byte) error {
	b, err := os.ReadFile(filepath.Join(share, name))
	if err != nil {
		return err
	}
	return rewrite(share, name, f(b))
}

// TestCUDAIsRefusedWhereTheLimitIsMissing: with CUDA_ERROR_NOT_PERMITTED and
// one line on stderr that names the file; the program goes on.
func TestCUDAIsRefusedWhereTheLimitIsMissing(t *testing.T) {
	for _, r := range refusals {
		t.Run(r.name, func(t *testing.T) {
			n := newNode(t, 1, 80*gi, 0)
			n.share("a", 0, gi, 0)
			box := n.container("a", []int{0}, "a")
			if err := r.ruin(filepath.Join(box, "shares", "a")); err != nil {
				t.Fatal(err)
			}
			cmd := n.command(box, n.lab.play)
			if syscall.Getuid() == 0 { // root reads and writes whatever the mode says
				n.openToAll()
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			}
			p := n.run(cmd)
			p.want("init", notPermitted)
			p.want("init", notPermitted)
			for _, c := range []string{"retain 0", "context 0", "alloc linear 1Mi", "alloc vmm 2Mi", "alloc async 1Mi"} {
				if answer := p.tell(c); answer == "0" || strings.HasPrefix(answer, "0 ") {
					t.Errorf("%s: succeeded after a refused cuInit", c)
				}
			}
			said := p.end()
			if strings.Count(said, "\n") != 1 || !strings.HasPrefix(said, "sluice: CUDA refused: ") || !strings.Contains(said, r.says) {
				t.Errorf("said %q, want one line with %q", said, r.says)
			}
		})
	}
}

// TestACardWithoutAShareIsRefused: seen, but in no share's limit.
func TestACardWithoutAShareIsRefused(t *testing.T) {
	n := newNode(t, 2, 80*gi, 0)
	n.share("a", 0, gi, 0)
	p := n.start(n.container("a", []int{0, 1}, "a"))
	p.want("init", notPermitted)
	p.want("retain 1", notPermitted) // though the driver is up by now
	p.want("alloc linear 1Mi", notPermitted)
	p.want("alloc vmm 2Mi 1", notPermitted)
	if said := p.end(); !strings.Contains(said, "CUDA device 1") || strings.Count(said, "\n") != 1 {
		t.Errorf("said %q", said)
	}
}

// TestASecondDriverIsRefused: a libcuda of the image beside ours.
func TestASecondDriverIsRefused(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	box := n.container("a", []int{0}, "a")
	compat := filepath.Join(box, "compat", "libcuda.so.999")
	if err := os.MkdirAll(filepath.Dir(compat), 0o755); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(n.lab.real)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(compat, b, 0o755); err != nil {
		t.Fatal(err)
	}
	p := n.start(box, "beside", compat)
	p.want("init", notPermitted)
	if said := p.end(); !strings.Contains(said, "second libcuda.so.1") {
		t.Errorf("said %q", said)
	}
}

// TestAProgramThatUsesNoCUDANoticesNothing, though it is linked with it and has
// no share at all.
func TestAProgramThatUsesNoCUDANoticesNothing(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	box := n.container("a", nil)
	if said := n.start(box, "link").end(); said != "" {
		t.Errorf("said %q", said)
	}
	out, err := exec.Command("env", "LD_PRELOAD="+n.lab.limiter, "/bin/echo", "hello").CombinedOutput()
	if err != nil || string(out) != "hello\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// TestTheProgramsOwnSettingsStayAsTheyAre: umask, signal handlers, stdout, the
// order of its exit handlers, its descriptors.
func TestTheProgramsOwnSettingsStayAsTheyAre(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	manners := cc(t, "manners", "test/manners.c", n.lab.real)
	cmd := n.command(n.container("a", []int{0}, "a"), manners)
	out, err := cmd.Output()
	if err != nil || string(out) != "begin\nend\nthird\nsecond\nfirst\n" {
		t.Errorf("%v\n%s", err, out)
	}
}
