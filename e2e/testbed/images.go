package testbed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sluice-gpu/sluice/e2e/fakegpu"
	"github.com/sluice-gpu/sluice/e2e/images"
	"github.com/sluice-gpu/sluice/e2e/product"
)

// The images' references: prefix, name, tag. No registry serves them; they are loaded into nodes.
const (
	ImagePrefix = "sluice.test/"
	ImageTag    = "test"
	// ProbeImage is the image of cudaprobe, the program that scenarios run as a CUDA workload.
	ProbeImage = ImagePrefix + "cudaprobe:" + ImageTag
)

// loadImages makes the product's images and the probe's, and loads them into all nodes.
func (b *Testbed) loadImages(ctx context.Context) error {
	root, err := product.Root()
	if err != nil {
		return err
	}
	products, err := product.Images(root)
	if err != nil {
		return err
	}
	simulation, err := buildSimulation()
	if err != nil {
		return err
	}
	products = append(products, product.Image{
		Name: "cudaprobe", Entrypoint: []string{"/usr/bin/cudaprobe"}, Cmd: []string{"info", "hold"}, Files: map[string]string{
			"/usr/bin/cudaprobe":      filepath.Join(simulation, fakegpu.Probe),
			"/usr/bin/cudaprobe-link": filepath.Join(simulation, fakegpu.ProbeLinked),
		},
	})
	dir, err := os.MkdirTemp("", "sluice-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b.say("loading %d images", len(products))
	for _, p := range products {
		archive := filepath.Join(dir, p.Name+".tar")
		image := images.Image{Entrypoint: p.Entrypoint, Cmd: p.Cmd, Files: p.Files, Provided: []string{"libcuda.so.1"}}
		if err := images.Write(archive, ImagePrefix+p.Name+":"+ImageTag, image); err != nil {
			return err
		}
		if err := b.Cluster.LoadImage(ctx, archive); err != nil {
			return fmt.Errorf("load image %s: %w", p.Name, err)
		}
	}
	return nil
}
