// Command sluice-cdi-hook is run by the container runtime before a limited
// container starts, as its CDI spec says. It is on the host, not in the image,
// and needs nothing of either: it is one static program.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sluice-gpu/sluice/cdi/cover"
)

const usage = `sluice-cdi-hook cover LIBRARY=STAND-IN...

A createContainer hook of the OCI runtime specification: reads the container's
state from standard input and mounts STAND-IN, a path in the container, over
every copy of LIBRARY, such as libcuda.so, that the container's image brings.
`

func main() {
	flag.Usage = func() { fmt.Fprint(flag.CommandLine.Output(), usage) }
	flag.Parse()
	if err := run(flag.Args(), os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "sluice-cdi-hook:", err)
		os.Exit(1)
	}
}

func run(args []string, stdin io.Reader) error {
	if len(args) < 2 || args[0] != "cover" {
		return fmt.Errorf("want: cover LIBRARY=STAND-IN..., got %q", args)
	}
	var standIns []cover.StandIn
	for _, arg := range args[1:] {
		library, path, ok := strings.Cut(arg, "=")
		if !ok || library == "" || !filepath.IsAbs(path) {
			return fmt.Errorf("%q is not LIBRARY=STAND-IN with an absolute path", arg)
		}
		standIns = append(standIns, cover.StandIn{Library: library, Path: path})
	}
	root, env, err := container(stdin)
	if err != nil {
		return err
	}
	_, err = cover.Cover(root, env, standIns)
	return err
}

// container returns the root folder and the environment of the container
// whose state the runtime writes.
func container(stdin io.Reader) (root string, env []string, err error) {
	var state specs.State
	if err := json.NewDecoder(stdin).Decode(&state); err != nil {
		return "", nil, fmt.Errorf("the container's state on standard input: %w", err)
	}
	b, err := os.ReadFile(filepath.Join(state.Bundle, "config.json"))
	if err != nil {
		return "", nil, err
	}
	var spec specs.Spec
	if err := json.Unmarshal(b, &spec); err != nil {
		return "", nil, fmt.Errorf("%s of the container: %w", "config.json", err)
	}
	if spec.Root == nil || spec.Root.Path == "" {
		return "", nil, fmt.Errorf("the container %s has no root folder", state.ID)
	}
	root = spec.Root.Path
	if !filepath.IsAbs(root) {
		root = filepath.Join(state.Bundle, root)
	}
	if spec.Process != nil {
		env = spec.Process.Env
	}
	return root, env, nil
}
