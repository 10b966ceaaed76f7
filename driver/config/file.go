package config

import (
	"bytes"
	"fmt"
	"os"
)

// File is a configuration that may change under a running program. A
// Kubernetes volume replaces it as a whole, so a reader never sees a part.
type File struct {
	// Name is the file's; empty: the default configuration, which never
	// changes.
	Name string

	seen []byte
	err  error // why the file cannot be used as it was when seen
}

// Open reads the configuration that a program begins with.
func Open(name string) (*File, *DriverConfiguration, error) {
	f := &File{Name: name}
	if name == "" {
		return f, Default(), nil
	}
	c, err := f.Changed()
	return f, c, err
}

// Changed returns the configuration if the file was written since the last
// call, or could not be read then, and nil if not. A file that is wrong is an error at every call until it
// is written again.
func (f *File) Changed() (*DriverConfiguration, error) {
	if f.Name == "" {
		return nil, nil
	}
	data, err := os.ReadFile(f.Name)
	if err != nil {
		f.seen = nil // once it is there again, the caller has to know
		return nil, fmt.Errorf("driver configuration: %w", err)
	}
	if f.seen != nil && bytes.Equal(data, f.seen) {
		return nil, f.err
	}
	f.seen = append([]byte{}, data...)
	c, err := Decode(data)
	if err != nil {
		f.err = fmt.Errorf("driver configuration %s: %w", f.Name, err)
		return nil, f.err
	}
	c.name, f.err = f.Name, nil
	return c, nil
}
