//go:build binaries

// Package helm pins the Helm that installs the chart on the local cluster.
package helm

import _ "helm.sh/helm/v4/cmd/helm"
