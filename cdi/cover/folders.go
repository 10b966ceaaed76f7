package cover

import (
	"bufio"
	"bytes"
	"path"
	"slices"
	"strings"
)

// image reads a container's root file system by paths of the container.
// Nothing that the image holds, links least of all, leads out of it.
type image interface {
	// read returns the first bytes of a file; nil if there is none.
	read(name string) []byte
	// list returns the names in a folder; nil if there is none.
	list(name string) []string
}

// The folders where the loader looks without being told to, ld.so(8), in the
// distributions' spellings.
var standard = []string{
	"/lib", "/usr/lib", "/lib64", "/usr/lib64",
	"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
	"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
}

// folders are where a program of the container can find a library by its name
// alone: the folders of CUDA's compat packages, of LD_LIBRARY_PATH as the
// container is given it, of the loader's configuration, and its own.
func folders(img image, env []string) []string {
	var out []string
	for _, cuda := range img.list("/usr/local") {
		if !strings.HasPrefix(cuda, "cuda") {
			continue
		}
		compat := path.Join("/usr/local", cuda, "compat")
		out = append(out, compat)
		for _, below := range img.list(compat) {
			out = append(out, path.Join(compat, below))
		}
	}
	for _, v := range env {
		if value, ok := strings.CutPrefix(v, "LD_LIBRARY_PATH="); ok {
			out = append(out, strings.FieldsFunc(value, func(r rune) bool { return r == ':' || r == ';' })...)
		}
	}
	out = append(out, configured(img, "/etc/ld.so.conf", 0)...)
	out = append(out, standard...)
	out = slices.DeleteFunc(out, func(dir string) bool { return !path.IsAbs(dir) })
	for i, dir := range out {
		out[i] = path.Clean(dir)
	}
	for _, dir := range slices.Compact(slices.Sorted(slices.Values(out))) {
		out = append(out, variants(img, dir, legacy)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// legacy are the names of folders for some processors, in the order in which
// loaders before glibc 2.37 nest them.
var legacy = []string{"tls", "haswell", "xeon_phi", "avx512_1", "x86_64"}

// variants are the folders below a folder that the loader asks before it, for
// what is built for some processors.
func variants(img image, dir string, names []string) []string {
	var out []string
	hwcaps := path.Join(dir, "glibc-hwcaps")
	for _, level := range img.list(hwcaps) {
		out = append(out, path.Join(hwcaps, level))
	}
	for i, name := range names {
		if below := path.Join(dir, name); img.list(below) != nil {
			out = append(append(out, below), variants(img, below, names[i+1:])...)
		}
	}
	return out
}

// nested bounds files that include one another.
const nested = 4

// configured are the folders that a configuration file of ldconfig(8) names,
// with the files that it includes.
func configured(img image, name string, depth int) []string {
	var out []string
	lines := bufio.NewScanner(bytes.NewReader(img.read(name)))
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0, fields[0] == "hwcap":
		case fields[0] == "include":
			for _, pattern := range fields[1:] {
				if !path.IsAbs(pattern) {
					pattern = path.Join(path.Dir(name), pattern)
				}
				for _, file := range matching(img, pattern) {
					if depth < nested {
						out = append(out, configured(img, file, depth+1)...)
					}
				}
			}
		default:
			dir, _, _ := strings.Cut(fields[0], "=")
			out = append(out, dir)
		}
	}
	return out
}

// matching are the files whose last path element matches the pattern's.
func matching(img image, pattern string) []string {
	dir, last := path.Split(pattern)
	var out []string
	for _, name := range img.list(path.Clean(dir)) {
		if ok, err := path.Match(last, name); err == nil && ok {
			out = append(out, path.Join(dir, name))
		}
	}
	return out
}

// isCopyOf tells whether a file's name is one of library's names, such as
// "libcuda.so", "libcuda.so.1" and "libcuda.so.580.95.05" of "libcuda.so".
func isCopyOf(name, library string) bool {
	rest, ok := strings.CutPrefix(name, library)
	return ok && (rest == "" || rest[0] == '.')
}
