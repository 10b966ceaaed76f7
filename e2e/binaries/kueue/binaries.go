//go:build binaries

// Package kueue pins the manager of Kueue, beside which the quota controller can
// run.
package kueue

import _ "sigs.k8s.io/kueue/cmd/kueue"
