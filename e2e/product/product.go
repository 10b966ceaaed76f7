// Package product says what the product's container images hold. The binaries are those that
// `make build` leaves in bin/ and build/; nothing is compiled here.
package product

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Image is what one image holds.
type Image struct {
	// Name is the image's last path element, such as sluice-driver.
	Name       string
	Entrypoint []string
	// Cmd are the arguments that the program has by default.
	Cmd []string
	// Files maps a path in the image to a path on this machine.
	Files map[string]string
}

// Images are the product's images made of what was built below root, the repository's root. It is
// an error if something was not built.
func Images(root string) ([]Image, error) {
	images := []Image{
		{
			Name:       "sluice-driver",
			Entrypoint: []string{"/usr/bin/sluice-driver"},
			Files: map[string]string{
				"/usr/bin/sluice-driver":            "bin/sluice-driver",
				"/usr/bin/nvidia-cdi-hook":          "bin/nvidia-cdi-hook",
				"/usr/bin/sluice-cdi-hook":          "bin/sluice-cdi-hook",
				"/usr/lib/sluice/libsluice-cuda.so": "build/hook/libsluice-cuda.so",
				"/usr/lib/sluice/libsluice-nvml.so": "build/hook/libsluice-nvml.so",
				"/usr/lib/sluice/guard.so":          "build/hook/guard.so",
			},
		},
		{
			Name:       "sluice-quota",
			Entrypoint: []string{"/usr/bin/sluice-quota"},
			Files:      map[string]string{"/usr/bin/sluice-quota": "bin/sluice-quota"},
		},
	}
	for _, image := range images {
		for target, source := range image.Files {
			path := filepath.Join(root, source)
			if _, err := os.Stat(path); err != nil {
				return nil, fmt.Errorf("image %s needs %s, which is not built: run make build", image.Name, source)
			}
			image.Files[target] = path
		}
	}
	return images, nil
}

// Root finds the repository's root from the working directory upwards.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module github.com/sluice-gpu/sluice\n") {
			return dir, nil
		}
	}
	return "", fmt.Errorf("not inside the sluice repository")
}
