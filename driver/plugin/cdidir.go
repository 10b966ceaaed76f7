package plugin

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

const cdiDirectoryUnusual = "CDIDirectoryUnusual"

// unusualCDIDir says what to look at if no container runtime reads specs of dir
// unless it is told to; "" if all do. What a runtime was told is not to be seen
// from here: it is in its configuration, and its socket is not ours to open.
func unusualCDIDir(dir string) string {
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		resolved = dir
	}
	for _, known := range cdi.DefaultSpecDirs {
		if at, err := filepath.EvalSymlinks(known); err == nil && at == resolved {
			return ""
		}
	}
	if slices.Contains(cdi.DefaultSpecDirs, filepath.Clean(dir)) {
		return ""
	}
	return fmt.Sprintf("CDI specs are written to %s, and container runtimes read %s unless they are told otherwise. "+
		"If pods here fail with \"unresolvable CDI devices\", name %s in the runtime's configuration (cdi_spec_dirs of containerd and CRI-O), or set the chart's driver.cdiDir to a folder that it reads",
		dir, strings.Join(cdi.DefaultSpecDirs, " and "), dir)
}

// checkCDIDir tells those who look at the node, or at the log, of an unusual
// folder before the first pod fails for it.
func (d *Driver) checkCDIDir(ctx context.Context) {
	if advice := unusualCDIDir(d.cfg.CDIDir); advice != "" {
		klog.FromContext(ctx).Info("Unusual CDI folder", "advice", advice)
		d.event(ctx, corev1.EventTypeWarning, cdiDirectoryUnusual, advice)
	}
}
