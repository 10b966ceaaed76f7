package testbed

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sluice-gpu/sluice/e2e/product"
)

// Examples returns the manifests of docs/user/examples whose file names begin with one of the
// prefixes, in the prefixes' order, with the probe's image in place of IMAGE.
func Examples(prefixes ...string) ([]byte, error) {
	root, err := product.Root()
	if err != nil {
		return nil, err
	}
	var manifests bytes.Buffer
	for _, prefix := range prefixes {
		files, err := filepath.Glob(filepath.Join(root, "docs/user/examples", prefix+"*.yaml"))
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("docs/user/examples has no file that begins with %s", prefix)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			manifests.WriteString("---\n")
			manifests.Write(bytes.ReplaceAll(text, []byte("IMAGE"), []byte(ProbeImage)))
		}
	}
	return manifests.Bytes(), nil
}
