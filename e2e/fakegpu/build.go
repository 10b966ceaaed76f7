package fakegpu

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

//go:embed build.sh abi src probe
var sources embed.FS

// Files of a build, by what they are for.
const (
	// Probe is a CUDA program for tests; ProbeLinked the same, linked with libcuda.so.1 (it needs
	// ProbePlugin beside it for --via deepbind).
	Probe       = "cudaprobe"
	ProbeLinked = "cudaprobe-link"
	ProbePlugin = "libcudaprobe-plugin.so"
	ctl         = "fakegpuctl"
)

// Build compiles the libraries and programs into a folder and returns it. It needs gcc. The folder
// is below cacheDir (when empty: sluice/fakegpu in the user's cache) and named by the content of
// the sources, so a build is made once; builds of several processes do not disturb each other.
// Builds of other sources that nobody asked for in days are removed.
func Build(cacheDir string) (string, error) {
	if cacheDir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no folder to build the simulated driver in: %w", err)
		}
		cacheDir = filepath.Join(user, "sluice", "fakegpu")
	}
	sum := sha256.New()
	err := fs.WalkDir(sources, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := sources.ReadFile(path)
		fmt.Fprintf(sum, "%s %d\n", path, len(text))
		sum.Write(text)
		return err
	})
	if err != nil {
		return "", err
	}
	out := filepath.Join(cacheDir, fmt.Sprintf("%x", sum.Sum(nil)[:8]))
	now := time.Now()
	if err := os.Chtimes(out, now, now); err == nil { // its time is when it was used last
		return out, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	prune(cacheDir, now.Add(-keepBuilds))
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(cacheDir, "building-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := compile(tmp); err != nil {
		return "", err
	}
	if err := os.Rename(filepath.Join(tmp, "out"), out); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		return "", err
	}
	return out, nil
}

// keepBuilds is for how long a build is kept that nobody asks for: branches are gone back to.
const keepBuilds = 3 * 24 * time.Hour

// prune removes builds that were used last before then, those beside the folder as well, where
// earlier versions had them. What cannot be removed stays for the next time.
func prune(cacheDir string, then time.Time) {
	for _, pattern := range []string{filepath.Join(cacheDir, "*"), cacheDir + "-*"} {
		builds, _ := filepath.Glob(pattern)
		for _, name := range builds {
			if info, err := os.Lstat(name); err == nil && info.IsDir() && info.ModTime().Before(then) {
				_ = os.RemoveAll(name)
			}
		}
	}
}

func compile(dir string) error {
	src := filepath.Join(dir, "src")
	if err := os.CopyFS(src, sources); err != nil {
		return err
	}
	cmd := exec.Command("sh", filepath.Join(src, "build.sh"), filepath.Join(dir, "out"), DefaultDriverVersion)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("cannot build the simulated driver (is gcc installed?): %w\n%s", err, output.Bytes())
	}
	return nil
}
