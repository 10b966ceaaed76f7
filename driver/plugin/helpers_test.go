package plugin

import (
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/sluice-gpu/sluice/hook/account"
)

func inode(info fs.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Ino }

// limitOf reads the limit in the one folder that matches the pattern.
func limitOf(t *testing.T, pattern string) account.Limit {
	t.Helper()
	dirs, err := filepath.Glob(pattern)
	if err != nil || len(dirs) != 1 {
		t.Fatalf("%s matches %v, want one folder", pattern, dirs)
	}
	l, err := account.ReadLimit(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// mounted tells whether the spec mounts something at or below a path.
func mounted(s *specs.Spec, path string) bool {
	mounts := append([]*specs.Mount(nil), s.ContainerEdits.Mounts...)
	for _, d := range s.Devices {
		mounts = append(mounts, d.ContainerEdits.Mounts...)
	}
	for _, m := range mounts {
		if m.ContainerPath == path || strings.HasPrefix(m.ContainerPath, path+"/") {
			return true
		}
	}
	return false
}
