package hook

import (
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// wrapped returns the names that src/cuda.def says the limiter exports.
func wrapped(t *testing.T) []string {
	t.Helper()
	def, err := os.ReadFile("src/cuda.def")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^WRAP\((\w+),`).FindAllStringSubmatch(string(def), -1) {
		names = append(names, m[1])
	}
	slices.Sort(names)
	return names
}

// TestLimiterLoadsWithOldAndNewCLibraries: no symbol newer than GLIBC_2.17, no
// library but libc and the driver, so that it loads in every image in which the
// driver does, also where libdl and libpthread are no files any more.
func TestLimiterLoadsWithOldAndNewCLibraries(t *testing.T) {
	f, err := elf.Open(theLab(t).limiter)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{theLab(t).real, "libc.so.6"}; !slices.Equal(needed, want) {
		t.Errorf("needs %q, want %q", needed, want)
	}
	symbols, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	weak := []string{"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__"}
	for _, s := range symbols {
		if s.Library != "libc.so.6" {
			if !slices.Contains(weak, s.Name) {
				t.Errorf("%s comes from %q, want libc.so.6", s.Name, s.Library)
			}
			continue
		}
		version := strings.Split(strings.TrimPrefix(s.Version, "GLIBC_"), ".")
		major, _ := strconv.Atoi(version[0])
		minor, err := strconv.Atoi(version[1])
		if err != nil || major != 2 || minor > 17 {
			t.Errorf("%s has version %s, want at most GLIBC_2.17", s.Name, s.Version)
		}
	}
}

func TestLimiterExportsWhatItWrapsAndNothingElse(t *testing.T) {
	f, err := elf.Open(theLab(t).limiter)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var exported []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			exported = append(exported, s.Name)
		}
	}
	slices.Sort(exported)
	if want := wrapped(t); !slices.Equal(exported, want) {
		t.Errorf("exports %q\nwant %q", exported, want)
	}
	if soname, err := f.DynString(elf.DT_SONAME); err != nil || !slices.Equal(soname, []string{"libcuda.so.1"}) {
		t.Errorf("SONAME is %q, %v", soname, err)
	}
}

// TestLimiterStaysLoadedAndTakesNoThreadMemory: the driver and the program keep
// pointers into it, and libraries loaded late share little static TLS.
func TestLimiterStaysLoadedAndTakesNoThreadMemory(t *testing.T) {
	f, err := elf.Open(theLab(t).limiter)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags, err := f.DynValue(elf.DT_FLAGS_1)
	if err != nil || len(flags) != 1 || elf.DynFlag1(flags[0])&elf.DF_1_NODELETE == 0 {
		t.Errorf("DT_FLAGS_1 is %v, %v; want NODELETE", flags, err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_TLS && p.Memsz > 64 {
			t.Errorf("takes %d bytes of every thread, want at most 64", p.Memsz)
		}
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_W != 0 && p.Flags&elf.PF_X != 0 {
			t.Error("has a segment that is writable and executable")
		}
	}
	for _, s := range f.Sections {
		if s.Name == ".init_array" && s.Size > 8 {
			t.Error("has a constructor of its own; programs that use no CUDA must not notice it")
		}
	}
}

// TestLimiterAsksTheSystemForLittle: what it imports is all that it can do to a
// program. No environment that a tenant could set, no exit, no signals, no
// umask, no exit handlers, no stdout, no locale, no threads; and no file but
// the shares: it works without /proc, /tmp or anything writable.
func TestLimiterAsksTheSystemForLittle(t *testing.T) {
	dir := t.TempDir()
	if err := sh("./build.sh", dir); err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(filepath.Join(dir, "libsluice-cuda.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	allowed := strings.Fields(`
		__cxa_finalize __errno_location __register_atfork _ITM_deregisterTMCloneTable
		_ITM_registerTMCloneTable __gmon_start__
		dl_iterate_phdr syscall sched_yield clock_gettime nanosleep getpid
		open read write close fcntl opendir readdir closedir mmap munmap madvise
		malloc calloc free strdup
		memcpy memset memcmp strcmp strlen strerror snprintf vsnprintf`)
	symbols, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if !slices.Contains(allowed, s.Name) {
			t.Errorf("imports %s", s.Name)
		}
	}
	constants, err := f.Section(".rodata").Data()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/proc", "/tmp", "/dev", "/etc", "/var"} {
		if strings.Contains(string(constants), path) {
			t.Errorf("knows a path in %s", path)
		}
	}
}
