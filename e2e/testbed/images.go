package testbed

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/sluice-gpu/sluice/e2e/fakegpu"
	"github.com/sluice-gpu/sluice/e2e/images"
	"github.com/sluice-gpu/sluice/e2e/product"
)

// The images' references: prefix, name, tag. No registry serves them; they are loaded into nodes.
const (
	ImagePrefix = "sluice.test/"
	// ProbeImage is the image of cudaprobe, the program that scenarios run as a CUDA workload.
	ProbeImage = ImagePrefix + "cudaprobe:test"
	// CompatImage is cudaprobe in an image that brings a driver of its own in CompatFolder, as
	// images with CUDA's compat packages do.
	CompatImage  = ImagePrefix + "compat:test"
	CompatFolder = "/usr/local/cuda-13.0/compat"
)

// loadImages makes the product's images and the probe's, and loads them into all nodes. It returns
// the tag of the product's images, which follows their content: pods of an earlier build are then
// replaced when the chart is installed again.
func (b *Testbed) loadImages(ctx context.Context) (tag string, err error) {
	root, err := product.Root()
	if err != nil {
		return "", err
	}
	products, err := product.Images(root)
	if err != nil {
		return "", err
	}
	if tag, err = contentTag(products); err != nil {
		return "", err
	}
	simulation, err := buildSimulation()
	if err != nil {
		return "", err
	}
	probe := product.Image{
		Name: "cudaprobe", Entrypoint: []string{"/usr/bin/cudaprobe"}, Cmd: []string{"info", "hold"}, Files: map[string]string{
			"/usr/bin/cudaprobe":      filepath.Join(simulation, fakegpu.Probe),
			"/usr/bin/cudaprobe-link": filepath.Join(simulation, fakegpu.ProbeLinked),
		},
	}
	compat := probe
	compat.Name = "compat"
	compat.Files = maps.Clone(probe.Files)
	compat.Files[CompatFolder+"/libcuda.so.1"] = filepath.Join(simulation, "libcuda.so."+fakegpu.DefaultDriverVersion)
	tests := map[string]string{probe.Name: ProbeImage, compat.Name: CompatImage}
	products = append(products, probe, compat)
	dir, err := os.MkdirTemp("", "sluice-images-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	b.say("loading %d images", len(products))
	for _, p := range products {
		reference := ImagePrefix + p.Name + ":" + tag
		if test, ok := tests[p.Name]; ok {
			reference = test
		}
		archive := filepath.Join(dir, p.Name+".tar")
		image := images.Image{Entrypoint: p.Entrypoint, Cmd: p.Cmd, Files: p.Files, Provided: []string{"libcuda.so.1"}}
		if err := images.Write(archive, reference, image); err != nil {
			return "", err
		}
		if err := b.Cluster.LoadImage(ctx, archive); err != nil {
			return "", fmt.Errorf("load image %s: %w", p.Name, err)
		}
	}
	return tag, nil
}

// contentTag is a tag made of all that the images consist of.
func contentTag(list []product.Image) (string, error) {
	sum := sha256.New()
	for _, image := range list {
		for _, path := range slices.Sorted(maps.Keys(image.Files)) {
			content, err := os.ReadFile(image.Files[path])
			if err != nil {
				return "", err
			}
			fmt.Fprintf(sum, "%s %s %d\n", image.Name, path, len(content))
			sum.Write(content)
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:6]), nil
}
