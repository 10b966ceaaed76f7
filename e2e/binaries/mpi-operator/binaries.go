//go:build binaries

// Package mpioperator pins the controller of MPIJobs that scenarios run.
package mpioperator

import _ "github.com/kubeflow/mpi-operator/cmd/mpi-operator"
