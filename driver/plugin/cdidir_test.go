package plugin

import (
	"os"
	"path/filepath"
	"testing"

	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func TestAFolderThatEveryRuntimeReadsNeedsNoAdvice(t *testing.T) {
	for _, dir := range append(cdi.DefaultSpecDirs, "/var/run/cdi/", "/etc/./cdi") {
		if advice := unusualCDIDir(dir); advice != "" {
			t.Errorf("%s: %s", dir, advice)
		}
	}
	link := filepath.Join(t.TempDir(), "cdi")
	if err := os.Symlink("/var/run/cdi", link); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/var/run/cdi"); err == nil && unusualCDIDir(link) != "" {
		t.Error("a link to such a folder is one")
	}
}

// The kubelet only says that a device cannot be resolved. The node says where
// the specs are, and where they are looked for.
func TestACDIFolderThatRuntimesDoNotReadIsToldOfAtStart(t *testing.T) {
	n := newNode(t)
	n.start()
	n.eventuallySaid(cdiDirectoryUnusual, n.path("cdi"), "/var/run/cdi", "cdi_spec_dirs")
}
