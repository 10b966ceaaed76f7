//go:build binaries

// Package rayoperator pins the controller of RayClusters and RayJobs that scenarios run.
package rayoperator

import _ "github.com/ray-project/kuberay/ray-operator"
