// Package images makes container images out of files of this machine, without a registry, a daemon
// or a base image. An image has one layer with the files it was given and, for programs that are
// dynamically linked, the shared libraries that they need here.
package images

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Image says what an image consists of.
type Image struct {
	// Entrypoint and Cmd are the program and its default arguments.
	Entrypoint, Cmd []string
	Env             []string // NAME=value; PATH has the usual value when it is not here
	WorkingDir      string
	User            string // a number, as no image has names but root and nobody
	// Files maps absolute paths in the image to files or folders of this machine. Modes are
	// kept, owners are root.
	Files map[string]string
	// Content maps absolute paths in the image to what the file there contains.
	Content map[string]string
	// Provided names shared libraries that are put into the container when it runs, such as a
	// driver's: they need not be on this machine.
	Provided []string
	// Links maps absolute paths in the image to the targets of symbolic links.
	Links map[string]string
}

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Write makes the image and writes it to a docker-archive (a tar) that containerd imports. The same
// input gives the same bytes. The reference needs a tag, for example localhost/app:1.
func Write(archive, reference string, img Image) error {
	tag, err := name.NewTag(reference, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("image %s: %w", reference, err)
	}
	built, err := Build(img)
	if err != nil {
		return fmt.Errorf("image %s: %w", reference, err)
	}
	if err := os.MkdirAll(filepath.Dir(archive), 0o755); err != nil {
		return err
	}
	staging := archive + ".part"
	defer os.Remove(staging)
	if err := tarball.WriteToFile(staging, tag, built); err != nil {
		return fmt.Errorf("image %s: %w", reference, err)
	}
	return os.Rename(staging, archive)
}

// Build makes the image.
func Build(img Image) (v1.Image, error) {
	layer, err := layer(img)
	if err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer)), nil })
	if err != nil {
		return nil, err
	}
	built, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return nil, err
	}
	config, err := built.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Entrypoint: img.Entrypoint, Cmd: img.Cmd, Env: environment(img.Env), WorkingDir: img.WorkingDir, User: img.User}
	return mutate.ConfigFile(built, config)
}

func environment(env []string) []string {
	for _, e := range env {
		if strings.HasPrefix(e, "PATH=") {
			return env
		}
	}
	return append([]string{defaultPath}, env...)
}

// entry is one file, folder or link of a layer.
type entry struct {
	mode    os.FileMode
	source  string // of this machine; empty for content and links
	content []byte
	link    string
}

// layer makes the tar of the image's files, sorted by path, without times and owners.
func layer(img Image) ([]byte, error) {
	entries, err := collect(img)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, p := range slices.Sorted(maps.Keys(entries)) {
		e := entries[p]
		header := &tar.Header{Name: strings.TrimPrefix(p, "/"), Mode: int64(e.mode.Perm()), Typeflag: tar.TypeReg}
		content := e.content
		switch {
		case e.link != "":
			header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
		case e.mode.IsDir():
			header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
			if e.mode&os.ModeSticky != 0 {
				header.Mode |= 0o1000
			}
		case e.source != "":
			if content, err = os.ReadFile(e.source); err != nil {
				return nil, err
			}
		}
		header.Size = int64(len(content))
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// collect lists everything that is in the image, folders included.
func collect(img Image) (map[string]entry, error) {
	entries := map[string]entry{
		"/etc/passwd": {mode: 0o644, content: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")},
		"/etc/group":  {mode: 0o644, content: []byte("root:x:0:\nnogroup:x:65534:\n")},
		"/tmp":        {mode: os.ModeDir | os.ModeSticky | 0o777},
	}
	put := func(p string, e entry) error {
		if !path.IsAbs(p) || path.Clean(p) != p {
			return fmt.Errorf("path %q: want an absolute, clean path", p)
		}
		entries[p] = e
		return nil
	}
	for p, source := range img.Files {
		if err := putTree(put, p, source); err != nil {
			return nil, err
		}
	}
	for p, text := range img.Content {
		if err := put(p, entry{mode: 0o644, content: []byte(text)}); err != nil {
			return nil, err
		}
	}
	for p, target := range img.Links {
		if err := put(p, entry{mode: 0o777, link: target}); err != nil {
			return nil, err
		}
	}
	for _, e := range maps.Clone(entries) {
		if e.source == "" {
			continue
		}
		libraries, err := Libraries(e.source, img.Provided...)
		if err != nil {
			return nil, err
		}
		for _, library := range libraries {
			if _, given := entries[library]; !given {
				if err := put(library, entry{mode: 0o755, source: library}); err != nil {
					return nil, err
				}
			}
		}
	}
	for p := range maps.Clone(entries) {
		for dir := path.Dir(p); dir != "/"; dir = path.Dir(dir) {
			if _, given := entries[dir]; !given {
				entries[dir] = entry{mode: os.ModeDir | 0o755}
			}
		}
	}
	return entries, nil
}

func putTree(put func(string, entry) error, p, source string) error {
	return filepath.WalkDir(source, func(file string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(source, file)
		if err != nil {
			return err
		}
		info, err := os.Stat(file) // what a link points to
		if file != source && d.Type()&os.ModeSymlink != 0 {
			target, err := os.Readlink(file)
			if err != nil {
				return err
			}
			return put(path.Join(p, rel), entry{mode: 0o777, link: target})
		}
		if err != nil {
			return err
		}
		if info.IsDir() {
			return put(path.Join(p, rel), entry{mode: info.Mode()})
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s: neither a file nor a folder", file)
		}
		return put(path.Join(p, rel), entry{mode: info.Mode(), source: file})
	})
}

// Libraries lists the shared libraries and the program loader that a dynamically linked program
// needs on this machine, less those that are provided where it runs; none for a static program and
// for what is no program.
func Libraries(program string, provided ...string) ([]string, error) {
	f, err := elf.Open(program)
	var format *elf.FormatError
	if errors.As(err, &format) || errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return nil, nil
	}
	out, err := exec.Command("ldd", program).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w: %s", program, err, bytes.TrimSpace(out))
	}
	libraries, err := parseLdd(string(out), provided)
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w", program, err)
	}
	return libraries, nil
}

// parseLdd reads lines of the forms "name => /path (0x...)", "/path (0x...)" and, for what the
// kernel gives every process, "name (0x...)".
func parseLdd(out string, provided []string) ([]string, error) {
	var libraries []string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		switch {
		case len(fields) >= 1 && slices.Contains(provided, fields[0]):
		case len(fields) >= 4 && fields[1] == "=>" && fields[2] == "not":
			return nil, fmt.Errorf("library %s is not on this machine", fields[0])
		case len(fields) >= 3 && fields[1] == "=>" && path.IsAbs(fields[2]):
			libraries = append(libraries, fields[2])
		case len(fields) >= 1 && path.IsAbs(fields[0]):
			libraries = append(libraries, fields[0])
		}
	}
	return libraries, nil
}
