package coretime

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Version is the driver version that the simulated driver says it is of.
const Version = "580.95.05"

// SimulatedDriver returns the folder of the simulated driver that is built from
// a source folder. It is built when its sources have changed and kept among the
// user's cached files, as it takes longer than most tests.
func SimulatedDriver(source string) (string, error) {
	sum := sha256.New()
	sources := os.DirFS(source)
	err := fs.WalkDir(sources, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains([]string{".c", ".h", ".sh"}, filepath.Ext(name)) {
			return err
		}
		b, err := fs.ReadFile(sources, name)
		fmt.Fprintf(sum, "%s %d\n%s", name, len(b), b)
		return err
	})
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	kept := filepath.Join(cache, "sluice", fmt.Sprintf("fakegpu-%x", sum.Sum(nil)[:8]))
	if _, err := os.Stat(kept); err == nil {
		return kept, nil
	}
	if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(kept), "fakegpu-new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	if err := command(filepath.Join(source, "build.sh"), fresh).run(); err != nil {
		return "", err
	}
	// Another test run may have been faster.
	if err := os.Rename(fresh, kept); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return kept, nil
}

type cmd struct{ *exec.Cmd }

func command(name string, args ...string) cmd { return cmd{exec.Command(name, args...)} }

func (c cmd) run() error {
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", c.Args, err, out)
	}
	return nil
}

// card is one simulated card and its node.
type card struct {
	dir, driver string
}

const cardUUID = "GPU-00000000-0000-0000-0000-000000000001"

func newCard(dir, driver, arbitration string) (card, error) {
	c := card{dir, driver}
	text := fmt.Sprintf("driver %s\ncuda 13000\narbitration %s\ncard 0\nminor 0\nname Simulated\nuuid %s\nmemory %d\nsms 8\ncc_major 9\n",
		Version, arbitration, cardUUID, uint64(80<<30))
	for _, f := range []struct{ name, text string }{{"node", text}, {"dev/nvidiactl", ""}, {"dev/nvidia0", ""}} {
		path := filepath.Join(dir, f.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return c, err
		}
		if err := os.WriteFile(path, []byte(f.text), 0o600); err != nil {
			return c, err
		}
	}
	return c, command(filepath.Join(driver, "fakegpuctl"), "init", dir).run()
}

func (c card) env(libraries string) []string {
	return []string{"FAKEGPU_DIR=" + c.dir, "FAKEGPU_DEV=" + filepath.Join(c.dir, "dev"), "LD_LIBRARY_PATH=" + libraries}
}

func (c card) control(arg string) ([]byte, error) {
	ctl := exec.Command(filepath.Join(c.driver, "fakegpuctl"), arg)
	ctl.Env = c.env(c.driver)
	out, err := ctl.Output()
	if err != nil {
		return nil, fmt.Errorf("fakegpuctl %s: %w", arg, err)
	}
	return out, nil
}

// stretch is a time for which one process had the card without a break.
type stretch struct {
	StartNs, EndNs uint64 // CLOCK_MONOTONIC
	OwnPID         int
}

func (c card) log() ([]stretch, error) {
	out, err := c.control("log")
	if err != nil {
		return nil, err
	}
	var all []stretch
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		var s stretch
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, lines.Err()
}

// usage is what the card did so far for each process that lives, and when.
func (c card) usage() (busy map[int]uint64, now uint64, err error) {
	out, err := c.control("usage")
	if err != nil {
		return nil, 0, err
	}
	var cards []struct {
		NowNs     uint64
		Processes []struct {
			OwnPID int
			BusyNs uint64
		}
	}
	if err := json.Unmarshal(out, &cards); err != nil || len(cards) != 1 {
		return nil, 0, fmt.Errorf("fakegpuctl usage: %w: %s", err, strings.TrimSpace(string(out)))
	}
	busy = map[int]uint64{}
	for _, p := range cards[0].Processes {
		busy[p.OwnPID] = p.BusyNs
	}
	return busy, cards[0].NowNs, nil
}
