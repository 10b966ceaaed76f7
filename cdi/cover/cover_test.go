package cover

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// drawn is an image told by its files' contents.
type drawn map[string]string

func (d drawn) read(name string) []byte { return []byte(d[name]) }

func (d drawn) list(dir string) []string {
	var out []string
	for name := range d {
		if rest, ok := strings.CutPrefix(name, strings.TrimSuffix(dir, "/")+"/"); ok {
			first, _, _ := strings.Cut(rest, "/")
			out = append(out, first)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestEveryFolderThatTheLoaderAsksIsLookedAt(t *testing.T) {
	img := drawn{
		"/usr/local/cuda-13.0/compat/libcuda.so.580":          "",
		"/usr/local/cuda-13.0/compat/lib.real/libcuda.so.580": "",
		"/usr/local/bin/tool":                                 "",
		"/etc/ld.so.conf":                                     "# libraries\ninclude ld.so.conf.d/*.conf\n/opt/first # ours\n",
		"/etc/ld.so.conf.d/a.conf":                            "/opt/compat\nhwcap 0 nosegneg\nrelative/folder\n/opt/old=libc5\ninclude /etc/more\n",
		"/etc/ld.so.conf.d/b.txt":                             "/opt/unread\n",
		"/etc/more":                                           "/opt/more\ninclude /etc/more\n", // itself: ends
		"/usr/lib64/glibc-hwcaps/x86-64-v3/libcuda.so.1":      "",
		"/a/tls/x86_64/libcuda.so.1":                          "",
	}
	got := folders(img, []string{"PATH=/bin", "LD_LIBRARY_PATH=/a:/b/../c;rel:/usr/lib"})
	for _, want := range []string{
		"/usr/local/cuda-13.0/compat", "/usr/local/cuda-13.0/compat/lib.real",
		"/opt/first", "/opt/compat", "/opt/old", "/opt/more", "/a", "/c", "/usr/lib", "/lib64",
		"/usr/lib64/glibc-hwcaps/x86-64-v3", "/a/tls", "/a/tls/x86_64",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not looked at: %q", want, got)
		}
	}
	for _, not := range []string{"/opt/unread", "rel", "relative/folder", "/usr/local/bin/compat", "/bin"} {
		if slices.Contains(got, not) {
			t.Errorf("%s is looked at", not)
		}
	}
}

func TestNamesOfALibraryAreItsOwn(t *testing.T) {
	for name, want := range map[string]bool{
		"libcuda.so": true, "libcuda.so.1": true, "libcuda.so.580.95.05": true,
		"libcudart.so.13": false, "libcuda.sox": false, "mylibcuda.so": false,
	} {
		if got := isCopyOf(name, "libcuda.so"); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// inANamespace runs f where what it mounts is seen by nobody else.
func inANamespace(t *testing.T, f func()) {
	t.Helper()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		err := errors.Join(unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		if err == nil {
			f()
		}
		failed <- err
	}()
	if err := <-failed; err != nil {
		t.Fatalf("a mount namespace, which needs root: %v", err)
	}
}

// container makes a root folder with files by their contents; a content that
// begins with "->" is a link's target.
func container(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		at := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		if target, ok := strings.CutPrefix(content, "->"); ok {
			err = errors.Join(err, os.Symlink(target, at))
		} else {
			err = errors.Join(err, os.WriteFile(at, []byte(content), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const limiter = "/run/sluice/driver/limiter-cuda.so"

var forCUDA = []StandIn{{Library: "libcuda.so", Path: limiter}}

func TestADriverThatTheImageBringsIsCovered(t *testing.T) {
	root := container(t, map[string]string{
		limiter: "limiter",
		"/usr/local/cuda-13.0/compat/libcuda.so.580": "theirs",
		"/usr/local/cuda-13.0/compat/libcuda.so.1":   "->libcuda.so.580",
		"/usr/local/cuda":                  "->/usr/local/cuda-13.0",
		"/opt/own/libcuda.so":              "->/opt/elsewhere/driver",
		"/opt/elsewhere/driver":            "theirs",
		"/usr/lib/libcudart.so.13":         "runtime",
		"/usr/lib/libcuda.so.1":            "->nowhere",
		"/usr/lib64/libcuda.so/README":     "a folder",
		"/opt/not-asked/libcuda.so.1":      "theirs",
		"/etc/ld.so.conf":                  "/opt/loop\n",
		"/opt/loop/libcuda.so.1":           "->libcuda.so.2",
		"/opt/loop/libcuda.so.2":           "->libcuda.so.1",
		"/opt/own/libcuda.so.linked":       "->" + limiter,
		"/opt/own/libnvidia-ml.so.1":       "theirs too",
		"/opt/own/libcuda.so.580.95.debug": "theirs",
	})
	inANamespace(t, func() {
		for _, round := range []string{"first", "again"} {
			covered, err := Cover(root, []string{"LD_LIBRARY_PATH=/opt/own"}, forCUDA)
			if err != nil {
				t.Errorf("%s: %v", round, err)
			}
			if round == "again" && len(covered) != 0 {
				t.Errorf("covered again: %q", covered)
			}
		}
		for name, want := range map[string]string{
			"/usr/local/cuda-13.0/compat/libcuda.so.580": "limiter",
			"/usr/local/cuda-13.0/compat/libcuda.so.1":   "limiter",
			"/opt/own/libcuda.so.580.95.debug":           "limiter",
			"/opt/elsewhere/driver":                      "limiter",
			"/usr/lib/libcudart.so.13":                   "runtime",
			"/opt/not-asked/libcuda.so.1":                "theirs",
			"/opt/own/libnvidia-ml.so.1":                 "theirs too",
		} {
			if got, err := os.ReadFile(path.Join(root, name)); err != nil || string(got) != want {
				t.Errorf("%s reads %q, %v; want %q", name, got, err, want)
			}
		}
	})
	// The image itself is as it was.
	if got, err := os.ReadFile(path.Join(root, "/opt/elsewhere/driver")); err != nil || string(got) != "theirs" {
		t.Errorf("outside of the container's namespace: %q, %v", got, err)
	}
}

func TestALinkOfTheImageDoesNotLeadOutOfIt(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "libcuda.so.1")
	if err := os.WriteFile(outside, []byte("the host's"), 0o644); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 20)
	root := container(t, map[string]string{
		limiter:                 "limiter",
		"/usr/lib/libcuda.so.1": "->" + up + outside[1:],
		"/usr/lib/libcuda.so.2": "->" + outside,
		"/lib64":                "->" + up + filepath.Dir(outside)[1:],
		"/etc/ld.so.conf":       "->" + outside,
	})
	inANamespace(t, func() {
		covered, err := Cover(root, nil, forCUDA)
		if err != nil || len(covered) != 0 {
			t.Errorf("covered %q, %v", covered, err)
		}
		if got, _ := os.ReadFile(outside); string(got) != "the host's" {
			t.Errorf("the host's file reads %q", got)
		}
	})
}

func TestWithoutAStandInTheContainerDoesNotStart(t *testing.T) {
	_, err := Cover(container(t, map[string]string{"/usr/lib/libcuda.so.1": "theirs"}), nil, forCUDA)
	if err == nil || !strings.Contains(err.Error(), limiter) {
		t.Errorf("got %v", err)
	}
}
