package images

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// contents reads an image's files: name to a letter for the kind, and content or link target.
func contents(t *testing.T, img v1.Image) map[string]string {
	t.Helper()
	reader := mutate.Extract(img)
	defer reader.Close()
	files := map[string]string{}
	for r := tar.NewReader(reader); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimSuffix(h.Name, "/")] = string(h.Typeflag) + ":" + h.Linkname + string(data)
	}
}

func TestImageHasItsFilesLinksAndTheirFolders(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a": "A", "tree/b": "B", "tree/sub/c": "C"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("b", filepath.Join(dir, "tree/link")); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "image.tar")
	err := Write(archive, "localhost/x:1", Image{
		Entrypoint: []string{"/bin/a", "-x"}, Env: []string{"K=v"}, User: "65534",
		Files:   map[string]string{"/bin/a": filepath.Join(dir, "a"), "/opt/tree": filepath.Join(dir, "tree")},
		Content: map[string]string{"/etc/x.conf": "text"},
		Links:   map[string]string{"/bin/sh": "a"},
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := contents(t, img)
	want := map[string]string{
		"bin": "5:", "bin/a": "0:A", "bin/sh": "2:a",
		"opt": "5:", "opt/tree": "5:", "opt/tree/b": "0:B", "opt/tree/link": "2:b", "opt/tree/sub": "5:", "opt/tree/sub/c": "0:C",
		"etc": "5:", "etc/x.conf": "0:text", "etc/passwd": got["etc/passwd"], "etc/group": got["etc/group"], "tmp": "5:",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(config.Config.Entrypoint, []string{"/bin/a", "-x"}) || !slices.Equal(config.Config.Env, []string{defaultPath, "K=v"}) || config.Config.User != "65534" {
		t.Errorf("config %+v", config.Config)
	}
}

func TestImageOfTheSameFilesIsTheSame(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(file, []byte("A"), 0o755); err != nil {
		t.Fatal(err)
	}
	img := Image{Files: map[string]string{"/a": file, "/b": file, "/c/d": file}}
	var digests []string
	for range 3 {
		built, err := Build(img)
		if err != nil {
			t.Fatal(err)
		}
		d, err := built.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, d.String())
	}
	if digests[0] != digests[1] || digests[1] != digests[2] {
		t.Errorf("digests %v", digests)
	}
}

func TestImageHasTheLibrariesOfDynamicPrograms(t *testing.T) {
	program := compile(t)
	img, err := Build(Image{Files: map[string]string{"/program": program}})
	if err != nil {
		t.Fatal(err)
	}
	files := contents(t, img)
	for _, library := range []string{"libm.so.6", "libc.so.6", "ld-linux"} {
		found := false
		for name, content := range files {
			found = found || strings.Contains(name, library) && strings.HasPrefix(content, "0:\x7fELF")
		}
		if !found {
			t.Errorf("no %s in the image", library)
		}
	}
	static := compile(t, "-static")
	if libraries, err := Libraries(static); err != nil || len(libraries) > 0 {
		t.Errorf("libraries of a static program: %v, %v", libraries, err)
	}
}

func compile(t *testing.T, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("gcc", append(flags, "-x", "c", "-o", out, "-", "-lm")...)
	cmd.Stdin = strings.NewReader("#include <math.h>\nint main(int n, char **v) { (void)v; return (int)cbrt(n); }\n")
	if message, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, message)
	}
	return out
}

func TestLddIsRead(t *testing.T) {
	tests := map[string]struct {
		out  string
		want []string
		err  string
	}{
		"usual": {
			out:  "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n",
			want: []string{"/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"},
		},
		"missing": {out: "\tlibcuda.so.1 => not found\n", err: "library libcuda.so.1 is not on this machine"},
		"nothing": {out: "\tstatically linked\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseLdd(test.out, []string{"libdriver.so.1"})
			if (err != nil) != (test.err != "") || err != nil && err.Error() != test.err {
				t.Errorf("error %v, want %q", err, test.err)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("libraries %v, want %v", got, test.want)
			}
		})
	}
}

func TestWrongReferencesAndPathsAreRefused(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "image.tar")
	tests := map[string]struct {
		reference string
		image     Image
	}{
		"no tag":        {"localhost/x", Image{}},
		"upper case":    {"localhost/X:1", Image{}},
		"relative path": {"localhost/x:1", Image{Content: map[string]string{"etc/x": ""}}},
		"unclean path":  {"localhost/x:1", Image{Content: map[string]string{"/etc/../x": ""}}},
		"missing file":  {"localhost/x:1", Image{Files: map[string]string{"/x": "/does/not/exist"}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if err := Write(archive, test.reference, test.image); err == nil {
				t.Error("written")
			}
			if left, _ := filepath.Glob(archive + "*"); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestPauseEndsWhenAskedTo(t *testing.T) {
	program := filepath.Join(t.TempDir(), "pause")
	for range 2 { // the second time there is nothing to do
		if err := BuildPause(t.Context(), program); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("ended without a status of its own")
	}
	if info, err := os.ReadFile(program); err != nil || !bytes.HasPrefix(info, []byte("\x7fELF")) {
		t.Errorf("no program: %v", err)
	}
}
