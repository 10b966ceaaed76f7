package images

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed pause/pause.c
var pauseSource []byte

// BuildPause compiles the program that sleeps as the first process of a machine or a pod, into a
// static binary. It is left alone when there is one that is no older than its source, which is
// kept beside it.
func BuildPause(ctx context.Context, program string) error {
	source := program + ".c"
	if have, err := os.ReadFile(source); err == nil && bytes.Equal(have, pauseSource) {
		if _, err := os.Stat(program); err == nil {
			return nil
		}
	}
	compiler, err := exec.LookPath("gcc")
	if err != nil {
		return errors.New("gcc not found (Debian: apt-get install gcc libc6-dev)")
	}
	staging, err := os.MkdirTemp(filepath.Dir(program), ".building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(staging)
	file, out := filepath.Join(staging, "pause.c"), filepath.Join(staging, "pause")
	if err := os.WriteFile(file, pauseSource, 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Os", "-static", "-s", "-o", out, file)
	if message, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile pause: %w: %s", err, message)
	}
	if err := os.Rename(out, program); err != nil {
		return err
	}
	return os.Rename(file, source)
}
