// Command images writes the product's container images as OCI archives, made of the binaries that
// `make build` left. It needs no container engine; `ctr images import`, `podman load` and `skopeo
// copy oci-archive:` read the result.
package main

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/spf13/cobra"

	"github.com/sluice-gpu/sluice/e2e/images"
	"github.com/sluice-gpu/sluice/e2e/product"
)

func main() {
	var out, registry, tag string
	cmd := &cobra.Command{
		Use: "images", Short: "Write the product's images as OCI archives", Args: cobra.NoArgs,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error { return write(out, registry, tag) },
	}
	cmd.Flags().StringVar(&out, "out", "build/images", "folder that the archives are written to")
	cmd.Flags().StringVar(&registry, "registry", "ghcr.io/sluice-gpu", "prefix of the images' names")
	cmd.Flags().StringVar(&tag, "tag", "0.1.0", "tag of the images")
	if err := cmd.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func write(out, registry, tag string) error {
	root, err := product.Root()
	if err != nil {
		return err
	}
	list, err := product.Images(root)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, item := range list {
		image, err := images.Build(images.Image{Entrypoint: item.Entrypoint, Files: item.Files})
		if err != nil {
			return fmt.Errorf("image %s: %w", item.Name, err)
		}
		archive := filepath.Join(out, item.Name+".oci.tar")
		reference := fmt.Sprintf("%s/%s:%s", registry, item.Name, tag)
		if err := writeArchive(archive, reference, image); err != nil {
			return fmt.Errorf("image %s: %w", item.Name, err)
		}
		fmt.Printf("%s  %s\n", archive, reference)
	}
	return nil
}

// writeArchive writes an OCI image layout with one image, as a tar.
func writeArchive(archive, reference string, image v1.Image) (err error) {
	dir, err := os.MkdirTemp("", "sluice-oci-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// containerd takes the image's name from the first annotation, other tools the tag from the second.
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: image,
		Descriptor: v1.Descriptor{Annotations: map[string]string{
			"io.containerd.image.name":          reference,
			"org.opencontainers.image.ref.name": reference,
		}},
	})
	if _, err := layout.Write(dir, index); err != nil {
		return err
	}
	file, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
	}()
	return tarFolder(file, dir)
}

// tarFolder writes the files below dir in name order and without times, so that the same images
// give the same archive.
func tarFolder(w io.Writer, dir string) error {
	archive := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return err
		}
		_, err = archive.Write(content)
		return err
	})
	if err != nil {
		return err
	}
	return archive.Close()
}
