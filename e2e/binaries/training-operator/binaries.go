//go:build binaries

// Package trainingoperator pins the controller of PyTorchJobs and their like that scenarios run.
package trainingoperator

import _ "github.com/kubeflow/training-operator/cmd/training-operator.v1"
