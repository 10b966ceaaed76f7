// Command bench measures what the limiter adds to the calls of the CUDA driver
// and prints one figure a line: name, value, unit.
//
// The driver behind the limiter does nothing, so the difference between a run
// with and a run without the limiter is the limiter. Times are medians of
// interleaved runs, or the least; where valgrind is installed, instructions are counted too,
// which does not depend on how busy the machine is.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sluice-gpu/sluice/hook/account"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bed is a folder with the program, the driver and the limiter in it.
type bed struct {
	dir     string
	program string
	native  string // library folder with the driver alone
	limited string // library folder with the limiter before it
}

func run() error {
	src, err := sourceFolder()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b, err := build(src, dir)
	if err != nil {
		return err
	}
	for _, figure := range []func(*bed) error{launches, pairs, reports, inits, threads, footprint, instructions, cores} {
		if err := figure(b); err != nil {
			return err
		}
	}
	return nil
}

// sourceFolder finds hook/ from the current folder upwards.
func sourceFolder() (string, error) {
	d, err := os.Getwd()
	for ; err == nil; d = filepath.Dir(d) {
		if _, e := os.Stat(filepath.Join(d, "hook", "build.sh")); e == nil {
			return filepath.Join(d, "hook"), nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("no hook/build.sh here or above: run this in the source tree")
		}
	}
	return "", err
}

func build(src, dir string) (*bed, error) {
	b := &bed{
		dir:     dir,
		program: filepath.Join(dir, "bench"),
		native:  filepath.Join(dir, "native"),
		limited: filepath.Join(dir, "limited"),
	}
	for _, d := range []string{b.native, b.limited} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	driver := filepath.Join(b.native, "libcuda.so.1")
	include := "-I" + filepath.Join(src, "include")
	limit := account.Limit{Card: account.UUID{15: 1}, Memory: 64 << 30}
	steps := []func() error{
		func() error {
			return sh("gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-Bsymbolic",
				"-Wl,-soname,libcuda.so.1", include, "-o", driver, filepath.Join(src, "bench", "c", "null_driver.c"))
		},
		func() error {
			return sh("gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", include, "-o", b.program,
				filepath.Join(src, "bench", "c", "bench.c"), driver, "-lpthread")
		},
		func() error {
			return sh("env", "REAL_CUDA="+driver, "SLUICE_SHARES="+filepath.Join(dir, "shares"), filepath.Join(src, "build.sh"), dir)
		},
		func() error {
			return os.Rename(filepath.Join(dir, "libsluice-cuda.so"), filepath.Join(b.limited, "libcuda.so.1"))
		},
		func() error { return account.Create(filepath.Join(dir, "shares", "a"), limit, account.Grant{}) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func sh(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w\n%s", name, args, err, out)
	}
	return nil
}

func (b *bed) command(lib string, args ...string) *exec.Cmd {
	cmd := exec.Command(b.program, args...)
	cmd.Env = []string{"LD_LIBRARY_PATH=" + lib}
	return cmd
}

func number(cmd *exec.Cmd) (float64, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%v: %w\n%s", cmd.Args, err, &stderr)
	}
	return strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
}

// both measures without and with the limiter, in turns, and returns medians.
func (b *bed) both(args ...string) (native, limited float64, err error) {
	const turns = 7
	var n, l []float64
	for range turns {
		for _, side := range []struct {
			lib string
			to  *[]float64
		}{{b.native, &n}, {b.limited, &l}} {
			v, err := number(b.command(side.lib, args...))
			if err != nil {
				return 0, 0, err
			}
			*side.to = append(*side.to, v)
		}
	}
	return median(n), median(l), nil
}

// least is both for what takes some nanoseconds: the least of many runs that are
// shorter than a turn on a busy CPU.
func (b *bed) least(args ...string) (native, limited float64, err error) {
	const turns = 60
	native, limited = math.Inf(1), math.Inf(1)
	for range turns {
		for _, side := range []struct {
			lib string
			to  *float64
		}{{b.native, &native}, {b.limited, &limited}} {
			v, err := number(b.command(side.lib, args...))
			if err != nil {
				return 0, 0, err
			}
			*side.to = min(*side.to, v)
		}
	}
	return native, limited, nil
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

func figure(name string, value float64, unit string) {
	fmt.Printf("%-48s %10.2f %s\n", name, value, unit)
}

func launches(b *bed) error {
	native, limited, err := b.least("launch", "200000")
	if err != nil {
		return err
	}
	figure("launch_uncapped_added", limited-native, "ns")
	return capped(b, func() error {
		native, limited, err := b.least("launch", "200000")
		figure("launch_capped_added", limited-native, "ns")
		return err
	})
}

// capped does something while the share is held to all of its card.
func capped(b *bed, do func() error) error {
	const all = 1_000_000
	share := filepath.Join(b.dir, "shares", "a")
	if err := account.UpdateGrant(share, account.Grant{CoreRate: all, Fallback: all, BusyFactor: all, Gated: true}); err != nil {
		return err
	}
	return errors.Join(do(), account.UpdateGrant(share, account.Grant{}))
}

func pairs(b *bed) error {
	for _, live := range []string{"100", "1000", "10000", "100000"} {
		native, limited, err := b.both("pair", live, "1000000")
		if err != nil {
			return err
		}
		figure("alloc_free_added_"+live+"_live", limited-native, "ns")
	}
	return nil
}

func reports(b *bed) error {
	_, limited, err := b.both("info", "5000000")
	figure("mem_get_info", limited, "ns")
	return err
}

// inits starts processes at once and takes the median of what each saw.
func inits(b *bed) error {
	for _, processes := range []int{1, 64, 128} {
		var sides [2]float64
		for i, lib := range []string{b.native, b.limited} {
			var all []float64
			for range max(1, 32/processes) {
				v, err := together(b, lib, processes)
				if err != nil {
					return err
				}
				all = append(all, v...)
			}
			sides[i] = median(all)
		}
		figure(fmt.Sprintf("init_added_%d_processes", processes), (sides[1]-sides[0])/1e3, "us")
	}
	return nil
}

func together(b *bed, lib string, processes int) ([]float64, error) {
	values, errs := make([]float64, processes), make([]error, processes)
	var wg sync.WaitGroup
	for i := range processes {
		wg.Go(func() { values[i], errs[i] = number(b.command(lib, "init")) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return values, nil
}

func threads(b *bed) error {
	_, two, err := b.both("threads", "2", "2000000")
	if err != nil {
		return err
	}
	_, sixteen, err := b.both("threads", "16", "2000000")
	figure("pairs_16_threads_over_2_threads", two/sixteen, "ratio")
	return err
}

func footprint(b *bed) error {
	native, limited, err := b.both("memory")
	if err != nil {
		return err
	}
	figure("private_memory_added_a_process", limited-native, "KiB")
	info, err := os.Stat(filepath.Join(b.dir, "shares", "a", account.AccountFile))
	if err != nil {
		return err
	}
	figure("account_file", float64(info.Size())/1024, "KiB")
	return nil
}

var collected = regexp.MustCompile(`Collected : (\d+)`)

// instructions counts those of a call: the difference between a long and a
// short run, with and without the limiter.
func instructions(b *bed) error {
	if _, err := exec.LookPath("valgrind"); err != nil {
		return nil
	}
	for _, c := range []struct {
		name string
		args []string
	}{
		{"alloc_free_added_instructions", []string{"pair", "1000"}},
		{"mem_get_info_instructions", []string{"info"}},
		{"launch_uncapped_instructions", []string{"launch"}},
	} {
		if err := b.instructions(c.name, c.args...); err != nil {
			return err
		}
	}
	return capped(b, func() error { return b.instructions("launch_capped_instructions", "launch") })
}

func (b *bed) instructions(name string, args ...string) error {
	const short, long = 1000, 11000
	count := func(lib string, n int) (float64, error) {
		all := append([]string{"--tool=callgrind", "--callgrind-out-file=/dev/null", b.program}, args...)
		cmd := exec.Command("valgrind", append(all, fmt.Sprint(n))...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+lib)
		out, err := cmd.CombinedOutput()
		m := collected.FindSubmatch(out)
		if err != nil || m == nil {
			return 0, fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
		}
		return strconv.ParseFloat(string(m[1]), 64)
	}
	var sides [2]float64
	for i, lib := range []string{b.native, b.limited} {
		few, err := count(lib, short)
		if err != nil {
			return err
		}
		many, err := count(lib, long)
		if err != nil {
			return err
		}
		sides[i] = (many - few) / (long - short)
	}
	figure(name, sides[1]-sides[0], "instructions")
	return nil
}
