package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/sluice-gpu/sluice/e2e/images"
)

// pauseImage makes the program that is both the first process of each machine and of each pod, and
// its image, and returns the image's archive.
func (c *Cluster) pauseImage(ctx context.Context) (string, error) {
	program := filepath.Join(c.bin, "pause")
	if err := images.BuildPause(ctx, program); err != nil {
		return "", err
	}
	archive := c.path("pause.tar")
	err := images.Write(archive, PauseImage, images.Image{
		Entrypoint: []string{"/pause"},
		Files:      map[string]string{"/pause": program},
	})
	return archive, err
}

// LoadImage gives an image archive (docker-archive or OCI layout, as a tar) to the named nodes, or
// to all when none is named. Pods then run it with imagePullPolicy Never or IfNotPresent.
func (c *Cluster) LoadImage(ctx context.Context, archive string, nodes ...string) error {
	if len(nodes) == 0 {
		nodes = c.nodeNames()
	}
	if _, err := os.Stat(archive); err != nil {
		return fmt.Errorf("image archive: %w", err)
	}
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, name := range nodes {
		m, err := c.findMachine(name)
		if err == nil && name == ControlPlane {
			err = fmt.Errorf("%s runs no containers", name)
		}
		if err != nil {
			return err
		}
		wg.Go(func() { errs[i] = m.importImage(ctx, archive) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// importImage reads an image archive of the outer machine into the node's containerd.
func (m *machine) importImage(ctx context.Context, archive string) error {
	file, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("image archive: %w", err)
	}
	defer file.Close()
	var message bytes.Buffer
	if err := m.run(ctx, file, io.Discard, &message, "ctr", "images", "import", "--digests=false", "-"); err != nil {
		return fmt.Errorf("%s: import %s: %w: %s", m.name, archive, err, bytes.TrimSpace(message.Bytes()))
	}
	return nil
}
