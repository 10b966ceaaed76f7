package fakegpu

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestBuildsThatNobodyAskedForInDaysAreRemoved(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "fakegpu")
	now := time.Now()
	// Whose last use was so many days ago.
	for name, days := range map[string]int{"today": 0, "old": 9, "../fakegpu-old": 9, "../fakegpu-new": 1, "../other": 9} {
		dir := filepath.Join(cache, name)
		if err := os.MkdirAll(filepath.Join(dir, "lib"), 0o755); err != nil {
			t.Fatal(err)
		}
		used := now.AddDate(0, 0, -days)
		if err := os.Chtimes(dir, used, used); err != nil {
			t.Fatal(err)
		}
	}
	built, err := Build(cache)
	if err != nil {
		t.Fatal(err)
	}
	for name, stays := range map[string]bool{"today": true, "old": false, "../fakegpu-old": false, "../fakegpu-new": true, "../other": true, filepath.Base(built): true} {
		if _, err := os.Stat(filepath.Join(cache, name)); (err == nil) != stays {
			t.Errorf("%s: stays %v (%v), want %v", name, err == nil, err, stays)
		}
	}
	// A build that is asked for is in use from now on.
	long := now.AddDate(0, 0, -9)
	if err := os.Chtimes(built, long, long); err != nil {
		t.Fatal(err)
	}
	if again, err := Build(cache); err != nil || again != built {
		t.Errorf("%s, then %s (%v)", built, again, err)
	}
	if info, err := os.Stat(built); err != nil || info.ModTime().Before(now.Add(-time.Hour)) {
		t.Errorf("its time is %v (%v)", info.ModTime(), err)
	}
}
